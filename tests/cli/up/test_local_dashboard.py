"""The dashboard inside `koord up`: its address in the ready line, its switch, and an address that is taken."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest

from koord.cli.up.components import choose_components
from tests.koord_up_process import koord_up, start_koord_up


def test_the_ready_line_has_an_address_that_answers() -> None:
    with koord_up("--nodes", "1") as running:
        assert running.dashboard is not None
        base, token = running.dashboard.split("/#token=")
        asked = urllib.request.Request(f"{base}/api/updates", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    "arguments", [("--set", "dashboard.enabled=false"), ("--components", "nodes")], ids=["setting", "components"]
)
def test_it_can_be_left_out(arguments: tuple[str, ...]) -> None:
    with koord_up("--nodes", "0", *arguments) as running:
        assert running.dashboard is None


def test_an_address_that_is_taken_ends_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RuntimeError, match=r"the dashboard cannot listen on 127\.0\.0\.1:\d+.*dashboard\.enabled"):
            start_koord_up("--nodes", "0", "--set", f"dashboard.listen={address}", kubeconfig=tmp_path / "kubeconfig")


@pytest.mark.parametrize(
    ("key", "value"),
    [("dashboard.enabled", "no"), ("dashboard.listen", "0.0.0.0:80"), ("dashboard.listen", "evil.example:80")],
)
def test_a_setting_that_cannot_be_is_refused(key: str, value: str) -> None:
    said = choose_components("all", nodes=1, profile=None, settings={key: value})
    assert isinstance(said, str)
    assert said.startswith(f"--set {key}={value}")
