"""`koord dashboard` beside a real kube-apiserver that has nothing of koord: a kubeconfig is enough."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.real.kubectl import kubectl
from tools import assets, controlplane

pytestmark = pytest.mark.real

OBJECTS = """
apiVersion: v1
kind: Node
metadata: {name: worker}
status: {capacity: {cpu: "8", memory: 16Gi, pods: "110"}, allocatable: {cpu: "8", memory: 16Gi, pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: waiting, namespace: default}
spec: {containers: [{name: main, image: nginx, resources: {requests: {cpu: "1"}}}]}
"""


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[str], Any]]:
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    with controlplane.running() as plane:
        said = kubectl(plane.kubeconfig, "apply", "-f", "-", stdin=OBJECTS)
        assert said.code == 0, said.err
        command = [sys.executable, "-m", "koord", "dashboard", "--kubeconfig", str(plane.kubeconfig)]
        command += ["--listen", "127.0.0.1:0", "--history", "none"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dashboard:
            assert dashboard.stdout is not None
            address, _, token = dashboard.stdout.readline().split()[-1].partition("/#token=")

            def answer(path: str) -> Any:
                request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
                with urllib.request.urlopen(request, timeout=30) as reply:
                    return json.load(reply)

            yield answer
            dashboard.terminate()


def test_nodes_and_pods_are_there_and_what_is_not_measured_is_said(ask: Callable[[str], Any]) -> None:
    update = ask("/api/updates?since=0")
    while not update["ready"]:
        update = ask(f"/api/updates?epoch={update['epoch']}&since={update['version']}")
    assert [node[0] for node in update["nodes"]] == ["worker"]
    assert "This cluster has no NodeMetrics" in " ".join(update["notes"])
    assert [(pod["name"], pod["node"], pod["cpu_used"]) for pod in ask("/api/reports/pods")["pods"]] == [
        ("waiting", "", None)
    ]


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ("reservations", "this cluster has no Reservations: koord crds prints what it lacks"),
        ("migrations", "this cluster has no PodMigrationJobs: koord crds prints what it lacks"),
        ("quotas", "no pod of koord-scheduler runs in namespace koordinator-system"),
        ("gangs", "no pod of koord-scheduler runs in namespace koordinator-system"),
        ("interference", "no koordlet runs on worker in namespace koordinator-system"),
    ],
)
def test_a_page_says_what_the_cluster_lacks(ask: Callable[[str], Any], report: str, words: str) -> None:
    assert words in ask(f"/api/reports/{report}")["failure"]
