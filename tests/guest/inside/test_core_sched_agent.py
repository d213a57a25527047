"""koordlet gives real processes in real groups cookies of core scheduling, keeps them and takes them away again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.core_sched import PrctlCookies
from koord.host.filesystem import Host
from tests.guest.inside import guest_node
from tests.guest.inside.guest_node import GuestNode, GuestPod
from tests.guest.inside.pod_groups import CGROUPS
from tools.nodeagent import Agent, Json, until

pytestmark = pytest.mark.real

GROUP, POLICY = "koordinator.sh/core-sched-group-id", "koordinator.sh/core-sched-policy"
ON: Json = {
    "resourceQOSStrategy": {
        "policies": {"cpuPolicy": "coreSched", "netQOSPolicy": "terway-qos"},
        "lsClass": {"cpuQOS": {"enable": True, "coreExpeller": True}},
        "beClass": {"cpuQOS": {"enable": True, "schedIdle": 1}},
    },
    "systemStrategy": {"totalNetworkBandwidth": "10G"},
}
OFF: Json = {"resourceQOSStrategy": {"policies": {"cpuPolicy": "groupIdentity"}}}
GATES, NO_GATES = "CoreSched=true,TerwayQoS=true", "CoreSched=false,TerwayQoS=false"
TERWAY = Path("/var/lib/terway/qos")
# A second thread lives on after the first, which is the leader of the process, has ended.
LEADERLESS = (
    "import ctypes, sys, threading;"
    "threading.Thread(target=sys.stdin.read).start();"
    "print(threading.enumerate()[-1].native_id, flush=True);"
    "ctypes.CDLL(None).syscall(60, 0)"
)
FORKING = ("sh", "-c", "read go; sleep 3600 & echo $!; wait")

COOKIES = PrctlCookies(Host.local())


def cookie(process: int) -> int:
    found = COOKIES.cookie(process)
    assert isinstance(found, int), found
    return found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuestNode]:
    assert COOKIES.supported() is None
    with guest_node.running("cgroupfs", tmp_path_factory.mktemp("node")) as node:
        yield node


class Pods:
    """The pods of this module. Those of `grouped` are to have cookies while core scheduling is on."""

    def __init__(self, node: GuestNode) -> None:
        self.first = node.run_pod("first", "LS", labels={GROUP: "g"})
        self.second = node.run_pod("second", "LS", labels={GROUP: "g"})
        self.plain = node.run_pod("plain", "LS")
        self.alone = node.run_pod("alone", "LS", labels={POLICY: "exclusive"})
        self.batch = node.run_pod("batch", "BE", labels={GROUP: "g"})
        node.groups.write(self.batch.group, "cpu.weight", "1")  # the kubelet's of a pod without requests
        self.free = node.run_pod("free", "LS", labels={POLICY: "none"})
        self.system = node.run_pod("system", "SYSTEM")
        self.own = node.run_pod("own", "LS", labels={POLICY: "none"})
        assert COOKIES.create(self.own.pid) is None
        self.owns = cookie(self.own.pid)
        self.grouped = [self.first, self.second, self.plain, self.alone, self.batch]

    def cookies(self) -> dict[str, int]:
        return {pod.name: cookie(pod.pid) for pod in self.grouped}

    def all_have_one(self) -> bool:
        return all(self.cookies().values())

    def none_has_one(self) -> bool:
        return not any(self.cookies().values())


@pytest.fixture(scope="module")
def pods(node: GuestNode) -> Pods:
    return Pods(node)


def wait_until_on(node: GuestNode, pods: Pods, agent: Agent) -> None:
    node.wait(pods.all_have_one, "all groups have cookies", agent)
    node.wait(lambda: len(list(TERWAY.iterdir())) == 2 if TERWAY.is_dir() else False, "Terway has its files", agent)


def wait_until_off(node: GuestNode, pods: Pods, agent: Agent) -> None:
    node.wait(pods.none_has_one, "no container has a cookie", agent)
    node.wait(lambda: list(TERWAY.iterdir()) == [], "Terway's files are deleted", agent)
    assert cookie(pods.own.pid) == pods.owns != 0, "what an application made for itself stays"


def test_groups_members_children_and_ended_leaders(node: GuestNode, pods: Pods) -> None:
    groups = node.groups
    node.order(ON)
    with node.agent(GATES) as agent:
        wait_until_on(node, pods, agent)
        found = pods.cookies()
        assert found["first"] == found["second"]
        assert len({found["first"], found["plain"], found["alone"], found["batch"], pods.owns}) == 5
        assert cookie(pods.free.pid) == cookie(pods.system.pid) == 0
        assert cookie(agent.pid) == cookie(os.getpid()) == 0
        told = f'core_sched_cookie="{found["first"]}",core_sched_group="g-expeller"'
        node.wait(lambda: told in agent.fetch("/metrics"), "metrics tell the cookie", agent)

        node.wait(lambda: groups.read(pods.batch.group, "cpu.idle") == "1", "the BE pod is idle", agent)
        assert groups.read(groups.best_effort, "cpu.idle") == "0", "the kubelet writes the weight of that group"

        forking = groups.run(pods.first.box, FORKING)
        node.wait(lambda: cookie(forking.pid) == found["first"], "a process that came later has the cookie", agent)
        assert forking.stdin is not None
        assert forking.stdout is not None
        forking.stdin.write(b"go\n")
        forking.stdin.flush()
        assert cookie(int(forking.stdout.readline())) == found["first"], "a child inherits it"

        below = CGROUPS / pods.first.box / "init.scope"
        below.mkdir()
        nested = groups.run(str(below.relative_to(CGROUPS)))
        node.wait(lambda: cookie(nested.pid) == found["first"], "a group that the container made counts", agent)

        leaderless = groups.run(pods.plain.box, (sys.executable, "-c", LEADERLESS))
        assert leaderless.stdout is not None
        thread = int(leaderless.stdout.readline())
        node.wait(lambda: cookie(thread) == found["plain"], "threads of a leader that ended have it", agent)

        pods.first.process.kill()
        pods.first.process.wait()
        third = node.run_pod("third", "LS", labels={GROUP: "g"})
        node.wait(lambda: cookie(third.pid) == found["second"], "the cookie outlives who had it first", agent)
        pods.grouped.remove(pods.first)
        pods.grouped.append(third)


def test_a_killed_agent_is_followed_by_one_that_adopts_its_cookies(node: GuestNode, pods: Pods) -> None:
    before = pods.cookies()
    with node.agent(GATES) as agent:
        late = node.run_pod("late", "LS", labels={GROUP: "g"})
        node.wait(lambda: cookie(late.pid) == before["second"], "a new member shares the old cookie", agent)
        assert pods.cookies() == before
        agent.kill()
    assert pods.cookies() == before
    pods.grouped.append(late)
    with node.agent(GATES) as agent:
        node.order(OFF)
        wait_until_off(node, pods, agent)
        assert cookie(_nested_process(pods.first)) == 0
        node.order(ON)
        wait_until_on(node, pods, agent)
        agent.kill()


def _nested_process(pod: GuestPod) -> int:
    return int((CGROUPS / pod.box / "init.scope/cgroup.procs").read_text().split()[0])


def test_what_was_switched_off_while_no_agent_ran_is_taken_away(node: GuestNode, pods: Pods) -> None:
    assert pods.all_have_one()
    node.order(OFF)
    with node.agent(GATES) as agent:
        wait_until_off(node, pods, agent)
        node.order(ON)
        wait_until_on(node, pods, agent)
        agent.kill()
    node.delete_order()
    with node.agent(GATES) as agent:
        wait_until_off(node, pods, agent)
        node.order(ON)
        wait_until_on(node, pods, agent)


def test_a_gate_that_is_off_takes_all_away(node: GuestNode, pods: Pods) -> None:
    assert pods.all_have_one(), "an agent that ends leaves what it holds"
    with node.agent(NO_GATES) as agent:
        wait_until_off(node, pods, agent)
        node.wait(lambda: node.groups.read(pods.batch.group, "cpu.idle") == "0", "the BE pod is not idle", agent)


def test_restore_takes_all_away(node: GuestNode, pods: Pods) -> None:
    before = node.groups.snapshot()
    with node.agent(GATES) as agent:
        wait_until_on(node, pods, agent)
        node.wait(lambda: node.groups.read(pods.batch.group, "cpu.idle") == "1", "the BE pod is idle", agent)
    done = node.restore()
    assert done.returncode == 0, done
    assert "overwritten" not in done.stderr, done.stderr
    assert pods.none_has_one()
    assert list(TERWAY.iterdir()) == []
    assert cookie(pods.own.pid) == pods.owns
    until(lambda: node.groups.snapshot() == before, "files are as before")
