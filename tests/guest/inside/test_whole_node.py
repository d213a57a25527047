"""A whole node on cgroup v2: kubelet, containerd and runc start pods, and koordlet decides their values through NRI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from tests.real.real_node import Site, batch, known, pinned, web
from tools import nodeagent, realnode
from tools.nodeagent import Agent, Json, order, until

pytestmark = pytest.mark.real

BEHIND: Json = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}}
# The server has no default route by which to find its own address.
ADDRESS = ("--advertise-address", realnode.ADDRESS)
MI = 2**20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    assert realnode.missing() == ""
    with realnode.running(ADDRESS) as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        assert tree.version == 2
        site = Site(node, tree, tmp_path_factory.mktemp("koordlet"))
        nodeagent.install(site.api)
        lent = {"kubernetes.io/batch-cpu": "4k", "kubernetes.io/batch-memory": "1Gi"}  # as the manager would
        site.api.merge("/api/v1/nodes/node1/status", {"status": {"capacity": lent, "allocatable": lent}})
        body = {"metadata": {"name": "batch-5500"}, "value": 5500}
        site.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        yield site


@pytest.fixture(scope="module")
def agent(site: Site) -> Iterator[Agent]:
    with nodeagent.running(site.node, site.folder / "agent") as agent:
        until(lambda: known(agent).get("podsFrom") == "kubelet", "the kubelet tells its pods")
        until(lambda: _nri(agent).get("connected"), "containerd takes the plugin")
        yield agent


def _nri(agent: Agent) -> Json:
    ways = json.loads(agent.fetch("/apis/v1/hooks") or '{"connections": []}')["connections"]
    return next((one for one in ways if one["name"] == "nri"), {})


def _file(site: Site, group: str, name: str) -> str:
    return (Path(site.tree.group_path("", group)) / name).read_text().strip()


def _started_with(site: Site, name: str) -> Json:
    """What runc was told of the container's CPUs and memory: nobody changes it later."""
    container = site.container(name).rpartition("/")[2]
    found: Json = json.loads(site.node.ctr("containers", "info", container))["Spec"]["linux"]["resources"]
    return found


def test_containers_start_with_their_values(site: Site, agent: Agent) -> None:
    site.run(pinned("pinned", 1))
    site.run(web("web"), batch("batch"))
    until(lambda: _started_with(site, "pinned")["cpu"].get("cpus") == "1", "through NRI")
    assert _file(site, site.container("pinned"), "cpuset.cpus") == "1"
    until(lambda: _file(site, site.container("pinned"), "cpu.max") == "max 100000", "its own CPUs have no quota")
    until(lambda: _file(site, site.group("pinned"), "cpu.max") == "max 100000", "neither has its pod")
    cpu = _started_with(site, "batch")["cpu"]
    assert (cpu["shares"], cpu["quota"]) == (512, 50_000)
    assert _started_with(site, "batch")["memory"]["limit"] == 64 * MI
    wanted = {"cpu.max": "50000 100000", "memory.max": str(64 * MI), "cpu.weight": "20"}
    groups = (site.group("batch"), site.container("batch"))
    until(lambda: [{name: _file(site, one, name) for name in wanted} for one in groups] == [wanted, wanted], "batch")
    assert _started_with(site, "web")["cpu"].get("cpus") == "0,2-3"
    assert _file(site, site.container("web"), "cpuset.cpus") == "0,2-3"
    assert _file(site, site.container("web"), "cpu.max") == "20000 100000"


def test_the_kubelet_restarts_while_best_effort_is_idle(site: Site, agent: Agent) -> None:
    order(site.api, BEHIND)
    until(lambda: _file(site, site.group("batch"), "cpu.idle") == "1", "best-effort work is idle")
    assert _file(site, site.top, "cpu.idle") == "0"
    log = site.node.folder / "kubelet.log"
    site.node.stop("kubelet")
    before = log.stat().st_size
    site.node.start("kubelet")

    def said() -> str:
        return log.read_bytes()[before:].decode(errors="replace")

    site.run(web("after"))
    assert site.node.processes["kubelet"].poll() is None, said()[-3000:]
    assert "failed to update top level" not in said()
    assert _file(site, site.group("batch"), "cpu.idle") == "1"
    order(site.api, {})
    until(lambda: _file(site, site.group("batch"), "cpu.idle") == "0", "it is not any more")
    until(lambda: _file(site, site.group("batch"), "cpu.weight") == "20", "its weight is what it was")


def test_no_fault_was_logged(agent: Agent) -> None:
    log = agent.log()
    assert "Traceback" not in log, log[-3000:]


def test_restore_leaves_what_the_kubelet_gave(site: Site, agent: Agent) -> None:
    assert agent.stop() == 0
    done = nodeagent.restore(site.node, site.folder / "agent")
    assert done.returncode == 0, done
    assert _file(site, site.container("web"), "cpuset.cpus") in ("", "0-3")
    assert _file(site, site.group("batch"), "cpu.max") == "max 100000"
