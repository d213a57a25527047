"""`koord explain pod` and `koord simulate` as people run them, against one `koord up`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.koord_up_process import KoordUpProcess, koord_up

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}]},
}


@pytest.fixture(scope="module")
def running() -> Iterator[KoordUpProcess]:
    with koord_up("--nodes", "2") as cluster:
        yield cluster


def koord(running: KoordUpProcess, *args: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "koord", *args, "--kubeconfig", str(running.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, input=given, timeout=60, check=False)


def test_an_unknown_pod_is_one_line(running: KoordUpProcess) -> None:
    done = koord(running, "explain", "pod", "default/nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == 'koord: pods "nobody" not found\n'


def test_where_a_pod_would_go_and_nothing_is_made(running: KoordUpProcess) -> None:
    done = koord(running, "simulate", "-f", "-", given=yaml.safe_dump(POD))
    assert done.returncode == 0, done.stderr
    assert "default/p would go to node-" in done.stdout
    assert koord(running, "explain", "pod", "p").returncode == 1


def test_a_deployment_is_tried_pod_by_pod(running: KoordUpProcess) -> None:
    big = {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "20"}}}]}
    labels = {"app": "big"}
    spec = {
        "replicas": 3,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": big},
    }
    given = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "big"}, "spec": spec}
    done = koord(running, "simulate", "-f", "-", "-o", "json", given=yaml.safe_dump(given))
    outcomes = json.loads(done.stdout)
    assert sorted(outcome["node"] for outcome in outcomes) == ["", "node-0", "node-1"]
    assert "2 Insufficient cpu" in next(o["message"] for o in outcomes if not o["node"])


def test_a_saved_snapshot_decides_alike(running: KoordUpProcess, tmp_path: Path) -> None:
    saved = tmp_path / "snapshot.yaml"
    live = koord(running, "simulate", "-f", "-", "--save", str(saved), "-o", "json", given=yaml.safe_dump(POD))
    again = koord(running, "simulate", "-f", "-", "--snapshot", str(saved), "-o", "json", given=yaml.safe_dump(POD))
    assert again.returncode == 0, again.stderr
    first, second = json.loads(live.stdout), json.loads(again.stdout)
    assert first[0]["node"] == second[0]["node"] != ""


@pytest.mark.parametrize(
    ("args", "given", "line"),
    [
        pytest.param(("-f", "/nowhere.yaml"), "", "cannot read /nowhere.yaml", id="missing-file"),
        pytest.param(("-f", "-"), "kind: [", "not YAML", id="not-yaml"),
        pytest.param(("-f", "-"), "just: words", "no kind", id="not-an-object"),
        pytest.param(
            ("-f", "-"), "{apiVersion: v1, kind: Service, metadata: {name: s}}", "no Pod", id="nothing-to-place"
        ),
        pytest.param(("-f", "-", "--config", "/nowhere"), "", "cannot read /nowhere", id="missing-config"),
    ],
)
def test_bad_input_is_one_line(running: KoordUpProcess, args: tuple[str, ...], given: str, line: str) -> None:
    done = koord(running, "simulate", *args, given=given)
    assert done.returncode == 1
    assert done.stdout == ""
    assert line in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
