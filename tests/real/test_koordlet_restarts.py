"""On a real node the kubelet, containerd and koordlet restart while best-effort work is of the idle class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from tests.real.real_node import IDLE, SHARES, Site, batch
from tools import nodeagent, realnode
from tools.nodeagent import Json, order, pod, until

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real-node")]

QUICK = ("--runtime-hooks-reconcile-interval=1s", "--kubelet-sync-interval=2s")
BEHIND: Json = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    reason = realnode.missing()
    if reason:
        pytest.skip(reason)
    with realnode.running() as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        site = Site(node, tree, tmp_path)
        nodeagent.install(site.api)
        body = {"metadata": {"name": "batch-5500"}, "value": 5500}
        site.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        lent = {"kubernetes.io/batch-cpu": "20k", "kubernetes.io/batch-memory": "20Gi"}
        site.api.merge("/api/v1/nodes/node1/status", {"status": {"capacity": lent, "allocatable": lent}})
        yield site


def _is_ready(site: Site) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in site.conditions())


def test_everybody_restarts_while_best_effort_work_is_idle(site: Site) -> None:
    folder = site.folder / "agent"
    site.run(batch("one"), pod("plain"))
    if not site.value(IDLE, site.group("one")):
        pytest.skip("this kernel has no cpu.idle")
    before = site.values()
    order(site.api, BEHIND)

    def idle(*names: str) -> bool:
        return all(site.value(IDLE, site.group(name)) == "1" for name in names)

    with nodeagent.running(site.node, folder, *QUICK) as agent:
        until(lambda: idle("one", "plain"), "pods without requests are idle")
        agent.kill()
    site.node.stop("kubelet")
    site.node.start("kubelet")
    with nodeagent.running(site.node, folder, *QUICK) as agent:
        until(lambda: _is_ready(site), "the kubelet is back", 60)
        site.run(batch("two"))
        until(lambda: idle("one", "two", "plain"), "the new pod is idle, too")
        site.node.stop("containerd")
        site.node.start("containerd")
        until(lambda: _is_ready(site), "the kubelet has its runtime back", 60)
        site.run(batch("three"))
        until(lambda: idle("one", "two", "three"), "and the next one")
        assert site.value(IDLE, site.top) == "0", "never the group that the kubelet writes"
        assert "Traceback" not in agent.log()
    kubelet = (site.node.folder / "kubelet.log").read_text()
    assert "cpu.shares: invalid argument" not in kubelet
    site.remove("two", "three")
    said = nodeagent.restore(site.node, folder)
    assert said.returncode == 0, said.stderr
    assert site.values() == before
    assert site.value(SHARES, site.group("one")) == "2"
    said = nodeagent.restore(site.node, folder)
    assert "the journal is empty" in said.stdout


def test_what_a_deleted_node_slo_wanted_is_undone_by_the_next_start(site: Site) -> None:
    folder = site.folder / "agent"
    site.run(batch("one"))
    before = site.values()
    if not site.value(IDLE, site.group("one")):
        pytest.skip("this kernel has no cpu.idle")
    order(site.api, BEHIND)
    gates = f"{nodeagent.GATES},BatchResource=false,CPUSetAllocator=false"  # what annotations want is not undone
    with nodeagent.running(site.node, folder, *QUICK, gates=gates) as agent:
        until(lambda: site.value(IDLE, site.group("one")) == "1", "best-effort work is idle")
        agent.kill()
    site.api.delete(nodeagent.NODE_SLO)
    with nodeagent.running(site.node, folder, *QUICK, gates=gates):
        until(lambda: site.values() == before, "nobody wants it any more")
