"""`koord restore-nodes` as the chart runs it before an uninstall, on a cluster of `koord up`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from koord.cli.main import cli
from koord.cli.manifests.manifests import manifests
from tests.koord_up_process import KoordUpProcess, koord_up

SYSTEM = "koordinator-system"


def kubectl(running: KoordUpProcess, *args: str, given: str | None = None) -> str:
    command = ["kubectl", "--kubeconfig", str(running.kubeconfig), *args]
    done = subprocess.run(command, capture_output=True, text=True, input=given, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seen(running: KoordUpProcess, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kubectl(running, "get", *args, "-o", "json"))
    return found


def restore(running: KoordUpProcess, *args: str) -> Result:
    return CliRunner().invoke(cli, ["restore-nodes", *args, "--kubeconfig", str(running.kubeconfig)])


@pytest.fixture
def running() -> Iterator[KoordUpProcess]:
    """Yield a cluster whose nodes run the pods of an installation and show what a manager wrote."""
    with koord_up("--nodes", "2", "--components", "workloads,nodes,scheduler") as cluster:
        made = [one for one in manifests() if isinstance(one, dict) and one["kind"] != "CustomResourceDefinition"]
        kubectl(cluster, "apply", "--server-side", "-f", "-", given=yaml.safe_dump_all(made))
        kubectl(cluster, "-n", SYSTEM, "rollout", "status", "daemonset/koordlet", "--timeout=60s")
        shown = {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1Gi"}
        condition = {"type": "koordinator.sh/CPUBurst", "status": "True"}
        patch = json.dumps({"status": {"capacity": shown, "allocatable": shown, "conditions": [condition]}})
        kubectl(cluster, "patch", "node", "node-0", "--subresource=status", "--type=strategic", "-p", patch)
        yield cluster


def test_nodes_are_as_before_and_nobody_writes_to_them(running: KoordUpProcess) -> None:
    done = restore(running)
    assert done.exit_code == 0, done.output
    assert "node-0: restored" in done.output
    assert "node-1: restored" in done.output
    assert seen(running, "-n", SYSTEM, "pods")["items"] == []
    assert seen(running, "-n", SYSTEM, "daemonsets")["items"] == []
    assert {one["spec"]["replicas"] for one in seen(running, "-n", SYSTEM, "deployments")["items"]} == {0}
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        assert seen(running, kind)["items"] == []
    status = seen(running, "node", "node-0")["status"]
    assert not [name for name in (*status["capacity"], *status["allocatable"]) if "batch" in name]
    assert not [one for one in status["conditions"] if one["type"].startswith("koordinator.sh/")]
    again = restore(running)
    assert again.exit_code == 0, again.output
    assert "there is no DaemonSet koordlet" in again.output


def test_machines_alone_are_put_back_for_the_koordlet_of_others(running: KoordUpProcess) -> None:
    done = restore(running, "--koordlet-only")
    assert done.exit_code == 0, done.output
    assert "node-0: restored" in done.output
    assert "node-1: restored" in done.output
    assert seen(running, "-n", SYSTEM, "daemonsets")["items"] == []
    assert 0 not in [one["spec"]["replicas"] for one in seen(running, "-n", SYSTEM, "deployments")["items"]]
    assert len(seen(running, "mutatingwebhookconfigurations")["items"]) == 1
    status = seen(running, "node", "node-0")["status"]
    assert status["capacity"]["kubernetes.io/batch-cpu"] == "1k", "what the node lends is the manager's"
    assert not [one for one in status["conditions"] if one["type"].startswith("koordinator.sh/")]


def test_the_koordlet_of_koordinator_is_left_as_it_is(running: KoordUpProcess) -> None:
    """It knows no `restore`: as a container before the agent it would run for ever."""
    theirs = "registry.example/koordinator-sh/koordlet:v1.8.0"
    kubectl(running, "-n", SYSTEM, "set", "image", "daemonset/koordlet", f"koordlet={theirs}")
    before = seen(running, "-n", SYSTEM, "daemonset", "koordlet")["spec"]
    done = restore(running, "--koordlet-only")
    assert done.exit_code == 1
    assert f"DaemonSet {SYSTEM}/koordlet runs Koordinator's own {theirs}: it is left as it is" in done.stderr
    assert seen(running, "-n", SYSTEM, "daemonset", "koordlet")["spec"] == before


def test_the_time_is_limited_and_what_it_waited_for_is_said(running: KoordUpProcess) -> None:
    held = seen(running, "-n", SYSTEM, "pods", "-l", "koord-app=koord-manager")["items"][0]["metadata"]["name"]
    finalizer = '{"metadata":{"finalizers":["example.com/hold"]}}'
    kubectl(running, "-n", SYSTEM, "patch", "pod", held, "-p", finalizer)
    done = restore(running, "--timeout", "1s")
    assert done.exit_code == 1
    assert "pods still run: " in done.stderr
    assert held in done.stderr


def test_a_time_that_is_none_is_refused() -> None:
    done = CliRunner().invoke(cli, ["restore-nodes", "--timeout", "soon"])
    assert done.exit_code == 1
    assert "--timeout" in done.stderr
