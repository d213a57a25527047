"""`koord up` says when it is ready, ends when asked, and has one line for every way it cannot start."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.koord_up_process import koord_up, start_koord_up


def refused(*args: str) -> str:
    """What `koord up` says on stderr when it does not start; it must be one line and no traceback."""
    command = [sys.executable, "-m", "koord", "up", *args]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("koord: ")
    return lines[0]


def get(url: str, token: str, context: ssl.SSLContext) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, context=context, timeout=20) as answer:
        return json.load(answer)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "ctrl-c"])
def test_it_serves_until_it_is_told_to_stop(number: signal.Signals) -> None:
    with koord_up("--nodes", "0", "--components", "") as running:
        assert stat.S_IMODE(running.kubeconfig.stat().st_mode) == 0o600
        found = get(f"{running.url}/api/v1/namespaces", running.token, running.ssl())
        assert {item["metadata"]["name"] for item in found["items"]} >= {"default", "kube-system"}
        assert running.stop(number) == 0


def test_it_logs_what_the_programs_do_when_asked() -> None:
    with koord_up("--nodes", "1", "-v", "5") as running:
        assert running.stop() == 0
        assert running.process.stderr is not None
        assert re.search(r"^I\d{4} \d\d:\d\d:\d\d", running.process.stderr.read(), re.MULTILINE)


@pytest.mark.parametrize(("nodes", "lines"), [("1", 0), ("11", 1)])
def test_many_nodes_say_how_to_switch_their_agents_on(nodes: str, lines: int) -> None:
    with koord_up("--nodes", nodes, "--components", "nodes,manager") as running:
        assert running.stop() == 0
        assert running.process.stdout is not None
        said = [line for line in running.process.stdout if "--set nodes.agents=true" in line]
        assert len(said) == lines


def test_no_token_no_answer() -> None:
    with koord_up("--nodes", "0", "--components", "") as running:
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(f"{running.url}/api/v1/namespaces", "wrong", running.ssl())
        assert caught.value.code == 401
        assert json.load(caught.value)["reason"] == "Unauthorized"
        caught.value.close()


def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in refused("--listen", f"127.0.0.1:{port}")


def test_remote_addresses_must_be_allowed() -> None:
    assert "--allow-remote" in refused("--listen", "0.0.0.0:0")


def test_remote_clients_need_a_certificate_that_they_can_check() -> None:
    assert "--tls-cert-file" in refused("--listen", "0.0.0.0:0", "--allow-remote")
    assert "go together" in refused("--tls-cert-file", "x.crt")


def test_a_signal_rotates_the_token() -> None:
    with koord_up("--nodes", "0", "--components", "") as running:
        old = running.token
        before = running.kubeconfig.read_text()
        running.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 20
        while running.kubeconfig.read_text() == before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert old not in running.kubeconfig.read_text()
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(f"{running.url}/api", old, running.ssl())
        assert caught.value.code == 401
        caught.value.close()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        pytest.param(("--listen", "here"), "expected HOST:PORT", id="bad-listen"),
        pytest.param(("--listen", "127.0.0.1:99999"), "expected HOST:PORT", id="bad-port"),
        pytest.param(("--durable",), "needs --data-dir", id="durable-in-memory"),
        pytest.param(("--components", "cook"), "no component cook", id="unknown-component"),
        pytest.param(("--set", "x"), "expected KEY=VALUE", id="bad-set"),
        pytest.param(("--set", "cook.v=4"), "no such setting", id="set-for-nobody"),
        pytest.param(("--set", "scheduler.config=/nowhere"), "cannot read /nowhere", id="config-missing"),
        pytest.param(("--data-dir", "/proc/nowhere"), "cannot use data directory", id="unwritable-data-dir"),
        pytest.param(
            ("--kubeconfig", "/proc/nowhere/k", "--listen", "127.0.0.1:0"),
            "cannot write kubeconfig",
            id="unwritable-kubeconfig",
        ),
    ],
)
def test_bad_flags_are_one_line(args: tuple[str, ...], says: str) -> None:
    assert says in refused(*args)


def test_a_certificate_of_an_extender_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    extender = {"urlPrefix": "https://127.0.0.1:1", "filterVerb": "filter", "tlsConfig": {"caFile": "/nowhere/ca.crt"}}
    file = tmp_path / "scheduler.yaml"
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    file.write_text(yaml.safe_dump({**kind, "extenders": [{**extender, "enableHTTPS": True}]}))
    assert "/nowhere/ca.crt" in refused("--set", f"scheduler.config={file}", "--listen", "127.0.0.1:0")


def test_a_second_instance_on_one_directory_is_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with koord_up("--nodes", "0", "--components", "", "--data-dir", str(data)):
        assert "is in use by another koord" in refused("--data-dir", str(data), "--listen", "127.0.0.1:0")


def test_the_kubeconfig_survives_a_restart(tmp_path: Path) -> None:
    """Same token, same authority: only the port may change, and not even that when it is given."""
    data, kubeconfig = str(tmp_path / "data"), tmp_path / "kubeconfig"
    first = start_koord_up("--nodes", "0", "--components", "", "--data-dir", data, kubeconfig=kubeconfig)
    token, context = first.token, first.ssl()
    assert first.stop() == 0
    second = start_koord_up("--nodes", "0", "--components", "", "--data-dir", data, kubeconfig=kubeconfig)
    try:
        assert second.token == token
        assert get(f"{second.url}/api/v1/namespaces", token, context)
    finally:
        assert second.stop() == 0
        for running in (first, second):
            running.process.stdout.close()  # type: ignore[union-attr]
            running.process.stderr.close()  # type: ignore[union-attr]
