"""koordlet evicts by CRI on a real node: containerd kills the containers, and the kubelet sees what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from tests.real.real_node import Site, batch, evictions, known, told_events, web
from tools import nodeagent, realnode
from tools.nodeagent import Json, order, until

pytestmark = [pytest.mark.real, pytest.mark.machine]

SHORT: Json = {
    "resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 2, "memoryEvictLowerPercent": 1}
}
FLAGS = ("--only-evict-by-api=false", "--kubelet-sync-interval=2s", "--memory-evict-cool-time-seconds=1")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    reason = realnode.missing()
    if reason:
        pytest.skip(reason)
    pytest.importorskip("grpc", reason="gRPC is not installed")
    with realnode.running() as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        site = Site(node, tree, tmp_path_factory.mktemp("cri"))
        nodeagent.install(site.api, report_s=1, durations=("20s",))
        lent = {"kubernetes.io/batch-cpu": "20k", "kubernetes.io/batch-memory": "20Gi"}  # as the manager would
        site.api.merge("/api/v1/nodes/node1/status", {"status": {"capacity": lent, "allocatable": lent}})
        body = {"metadata": {"name": "batch-5500"}, "value": 5500}
        site.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        yield site


def ended(site: Site, name: str) -> list[int]:
    """Return the exit codes of the pod's container, now and before its last start."""
    (status,) = (site.pod(name) or {})["status"]["containerStatuses"]
    states = (status.get("state", {}), status.get("lastState", {}))
    return [state["terminated"]["exitCode"] for state in states if "terminated" in state]


def test_containers_are_killed_and_the_restart_policy_says_what_then(site: Site) -> None:
    once = batch("once", labels={"app": "kept"})
    once["spec"]["restartPolicy"] = "Never"
    site.run(once, batch("again"), web("web"))
    kept = {"selector": {"matchLabels": {"app": "kept"}}, "minAvailable": 1}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"}, "spec": kept}
    site.api.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    with nodeagent.running(site.node, site.folder / "agent", *FLAGS) as agent:
        until(lambda: known(agent).get("pods") == 3, "three pods are known")
        order(site.api, SHORT)
        until(lambda: {one["name"] for one in evictions(agent)} == {"once", "again"}, "both batch pods are evicted")
        order(site.api, {})
        until(lambda: ended(site, "once") == [137], "one has ended")
        until(lambda: (site.pod("once") or {})["status"]["phase"] == "Failed", "its pod has failed")
        until(lambda: 137 in ended(site, "again"), "the other was killed")
        until(
            lambda: (site.pod("again") or {})["status"]["containerStatuses"][0]["restartCount"] > 0, "it starts again"
        )
        records = evictions(agent)
        assert {(one["outcome"], one["detail"]) for one in records} == {("evicted", "the runtime stopped main")}
        wanted = {("once", "evictPodSuccess"), ("again", "evictPodSuccess")}
        until(lambda: wanted <= told_events(site), "events tell it")
        (counted,) = re.findall(
            r'^koordlet_pod_eviction\{.*reason="evicted".*\} (\S+)$', agent.fetch("/metrics"), re.MULTILINE
        )
        assert float(counted) == sum(one.get("count", 1) for one in records)
        assert ended(site, "web") == []
        assert "Traceback" not in agent.log()
