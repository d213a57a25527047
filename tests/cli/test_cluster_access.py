"""What commands that talk to a cluster have in common: the kubeconfig's namespace, and one line for every failure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from koord.cli import cluster_access
from koord.cli.main import cli
from koord.telemetry.clock import LoopClock, run_virtual
from tests.koord_up_process import koord_up


def koord(kubeconfig: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, [*args, "--kubeconfig", str(kubeconfig)])


@pytest.fixture(scope="module")
def in_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A kubeconfig whose context names the namespace shop."""
    with koord_up("--nodes", "1") as running:
        config = yaml.safe_load(running.kubeconfig.read_text())
        config["contexts"][0]["context"]["namespace"] = "shop"
        path = tmp_path_factory.mktemp("kube") / "config"
        path.write_text(yaml.safe_dump(config))
        yield path


@pytest.mark.parametrize(
    ("given", "space"),
    [
        pytest.param(("web",), "shop", id="the-contexts"),
        pytest.param(("other/web",), "other", id="in-the-name"),
        pytest.param(("web", "-n", "third"), "third", id="by-flag"),
    ],
)
def test_the_namespace_of_a_pod(in_shop: Path, given: tuple[str, ...], space: str) -> None:
    assert f"{space}/web" in koord(in_shop, "explain", "eviction", *given).stderr


def test_pods_that_name_no_namespace_are_of_the_contexts(in_shop: Path, tmp_path: Path) -> None:
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "c"}]}}
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(pod))
    (outcome,) = json.loads(koord(in_shop, "simulate", "-f", str(file), "-o", "json").stdout)
    assert outcome["pod"] == "shop/web"
    (verdict,) = json.loads(koord(in_shop, "quota", "what-if", "-f", str(file), "-o", "json").stdout)
    assert verdict["pod"] == "shop/web"


def test_a_server_that_cannot_be_reached_is_one_line_without_python_in_it(in_shop: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(in_shop.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    done = koord(path, "top", "nodes")
    assert done.exit_code == 1
    assert "127.0.0.1:1" in done.stderr
    assert "ssl" not in done.stderr
    assert "object at" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_certificate_that_is_not_trusted_is_named(in_shop: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(in_shop.read_text())
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    done = koord(path, "top", "nodes")
    assert "certificate" in done.stderr
    assert "object at" not in done.stderr


def test_a_watch_prints_again_after_its_interval_until_it_is_ended() -> None:
    class EndedError(Exception):
        pass

    seen: list[str] = []

    async def watched(clock: LoopClock) -> list[float]:
        times: list[float] = []

        async def main() -> None:
            times.append(clock.monotonic())
            seen.append("printed")
            if len(times) == 3:
                raise EndedError

        with pytest.raises(EndedError):
            await cluster_access.repeat(main, clock, lambda: seen.append("cleared"))
        return [at - times[0] for at in times]

    assert run_virtual(watched) == [0.0, cluster_access.WATCH_INTERVAL_S, 2 * cluster_access.WATCH_INTERVAL_S]
    assert seen == ["cleared", "printed"] * 3
