"""What hooks decide besides cgroup values comes about on the node: resctrl groups, cookies, traffic classes."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path

import msgspec
import pytest

from koord.api.koordinator.slo import (
    CPUQOSConfig,
    NetworkQOSConfig,
    NodeSLOSpec,
    ResourceQOS,
    ResourceQOSPolicies,
    ResourceQOSStrategy,
    SystemStrategy,
)
from koord.koordlet.control_loop import ControlLoop
from koord.koordlet.core_sched_manager import CoreSchedOutcome, CoreSchedResult
from koord.koordlet.hook_calls.node_actions import NodeActions, undo_node_actions
from koord.koordlet.hooks.hook import NodeRules
from koord.koordlet.hooks.registry import HookDecision
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.metrics import KoordletMetrics
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.settings import KoordletSettings
from koord.koordlet.strategies.runtime_hooks import RuntimeHooksState, RuntimeHooksView, decide_runtime_hooks
from tests.host.fake_iproute import FakeIproute
from tests.koordlet.cgroup_writer.executor_fixture import ExecutorFixture
from tests.koordlet.fake_cookies import FakeCookies
from tests.koordlet.strategies.builders import pod
from tests.koordlet.test_pod_resctrl import FakeResctrl

GATES = frozenset({"OOMScoreAdj", "Resctrl", "CoreSched", "TCNetworkQoS"})
RESCTRL, SCORE = "node.koordinator.sh/resctrl", "koordinator.sh/oom-score-adj"
HALF = json.dumps({"llc": {"schemata": {"range": [0, 50]}}, "mb": {"schemata": {"percent": 60}}})
CPUINFO = "processor: 0\nvendor_id: GenuineIntel\nmodel name: Test\nflags: cat_l3 mba\n"
ROUTE = (
    "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    "eth0 00000000 0102A8C0 0003 0 0 100 00000000 0 0 0\n"
)
OFF = NodeSLOSpec()
CORE_SCHED = NodeSLOSpec(
    resource_qos_strategy=ResourceQOSStrategy(
        policies=ResourceQOSPolicies(cpu_policy="coreSched"), be_class=ResourceQOS(cpu_qos=CPUQOSConfig(enable=True))
    )
)
TRAFFIC = NodeSLOSpec(
    resource_qos_strategy=ResourceQOSStrategy(
        policies=ResourceQOSPolicies(net_qos_policy="tc"),
        be_class=ResourceQOS(network_qos=NetworkQOSConfig(enable=True, egress_request="1M", egress_limit="10M")),
    ),
    system_strategy=SystemStrategy(total_network_bandwidth="1G"),
)


class ActionsFixture:
    """A node with resctrl, core scheduling and one network device, all of them fakes of the kernel's side."""

    def __init__(self, root: Path, gates: frozenset[str] = GATES) -> None:
        self.world = ExecutorFixture(root, 2)
        machine = self.world.machine
        machine.put("sys/devices/system/cpu/online", "0-3\n")
        machine.put("proc/cpuinfo", CPUINFO)
        machine.put("proc/net/route", ROUTE)
        self.switch = machine.put("proc/sys/kernel/sched_core", "0\n")
        self.resctrl = FakeResctrl(root)
        machine.put("sys/fs/resctrl/info/L3/cbm_mask", "3ff\n")
        machine.put("sys/fs/resctrl/info/MB/min_bandwidth", "10\n")
        self.cookies = FakeCookies()
        self.iproute = FakeIproute("eth0")
        self.told: list[CoreSchedResult] = []
        self.state_dir = str(root / "state")
        self.control_loop = ControlLoop(
            self.world.tree,
            SeriesStore({}, interval_s=1.0),
            self.world.clock,
            KoordletSettings(node="n", gates=gates, state_dir=self.state_dir),
            KoordletMetrics("n"),
            None,
        )
        self.actions = NodeActions(
            self.resctrl,
            self.world.clock,
            self.control_loop,
            gates,
            self.state_dir,
            lambda: None,
            lambda results, _: self.told.extend(results),
            cookies=self.cookies,
            iproute=self.iproute,
        )

    def run(self, name: str, *processes: int, **annotations: str) -> PodMeta:
        """Return a batch pod of one container whose processes live."""
        group = self.world.machine.pod("BestEffort", name, f"containerd://{name}")
        box = f"{group}/{name}"
        text = "".join(f"{one}\n" for one in processes)
        for file in ("cgroup.procs", "cgroup.threads"):
            (Path(self.world.tree.group_path("", box)) / file).write_text(text)
        self.cookies.cookies.update(dict.fromkeys(processes, 0))
        container = ContainerMeta(name="main", id=f"containerd://{name}", group=box, running=True)
        made = pod(name, "BE", containers=(container,), annotations=annotations)
        return msgspec.structs.replace(made, group=group, ip="10.0.0.7")

    def apply(self, slo: NodeSLOSpec, *pods: PodMeta) -> dict[str, str]:
        """Carry out what hooks decide for these pods, and return what keeps each hook from acting."""
        asyncio.run(self.actions.apply(self.state(slo, *pods)))
        return {name: problem for name, problem in self.actions.problems.items() if problem}

    def state(self, slo: NodeSLOSpec, *pods: PodMeta) -> RuntimeHooksState:
        rules = NodeRules(gates=GATES, slo=slo, cache=self.control_loop.machine.shape.cache)
        state = decide_runtime_hooks(RuntimeHooksView(rules=rules, pods=pods)).state
        assert isinstance(state, RuntimeHooksState)
        return state

    def decision(self, of: PodMeta) -> HookDecision:
        return self.state(OFF, of).pods[of.uid].groups[0].decision

    def groups(self) -> list[str]:
        return sorted(one.name for one in self.resctrl.root.iterdir() if one.is_dir() and one.name != "info")


@pytest.fixture
def node(tmp_path: Path) -> ActionsFixture:
    return ActionsFixture(tmp_path)


class TestResctrl:
    def test_a_pods_threads_are_in_its_group(self, node: ActionsFixture) -> None:
        assert node.apply(OFF, node.run("a", 7, 8, **{RESCTRL: HALF}), node.run("b", 9)) == {}
        assert node.groups() == ["koordlet-a"]
        assert node.resctrl.lines("koordlet-a") == {"L3:0=1f;1=1f", "MB:0=60;1=60"}
        assert node.resctrl.tasks("koordlet-a") == [7, 8]

    def test_the_group_is_there_before_the_first_container(self, node: ActionsFixture) -> None:
        asking = node.run("a", **{RESCTRL: HALF})
        assert node.actions.prepare_pod(node.decision(asking)) == ""
        assert node.groups() == ["koordlet-a"]
        assert node.resctrl.lines("koordlet-a") == {"L3:0=1f;1=1f", "MB:0=60;1=60"}

    def test_a_pod_that_asks_for_nothing_has_no_group(self, node: ActionsFixture) -> None:
        assert node.actions.prepare_pod(node.decision(node.run("b"))) == ""
        assert node.groups() == []

    def test_what_the_kernel_refuses_is_told_and_told_over(self, node: ActionsFixture) -> None:
        asking = node.run("a", 7, **{RESCTRL: HALF})
        node.resctrl.ended.add(7)  # a thread that ended is no problem
        assert node.apply(OFF, asking) == {}
        node.resctrl.root.rename(node.resctrl.root.with_name("away"))
        assert "resctrl" in node.apply(OFF, asking)["Resctrl"]
        node.resctrl.root.with_name("away").rename(node.resctrl.root)
        assert node.apply(OFF, asking) == {}

    def test_a_pod_that_goes_takes_its_group_along(self, node: ActionsFixture) -> None:
        node.apply(OFF, node.run("a", 7, **{RESCTRL: HALF}))
        node.actions.remove_pod("a")
        node.actions.remove_pod("unknown")
        assert node.groups() == []

    def test_a_group_that_nobody_wants_any_more_is_removed_after_a_while(self, node: ActionsFixture) -> None:
        node.apply(OFF, node.run("a", 7, **{RESCTRL: HALF}))
        node.apply(OFF)
        assert node.groups() == ["koordlet-a"]  # its pod may be starting, and in no list yet
        node.world.clock.advance(60)
        node.apply(OFF)
        assert node.groups() == []

    def test_undo_removes_the_groups_of_pods_alone(self, node: ActionsFixture) -> None:
        node.apply(OFF, node.run("a", 7, **{RESCTRL: HALF}))
        (node.resctrl.root / "LS").mkdir()
        assert undo_node_actions(node.world.tree, node.state_dir) != []  # the kernel's folder is not an empty one here
        node.resctrl.remove_folder(str(node.resctrl.root / "koordlet-a"))
        assert undo_node_actions(node.world.tree, node.state_dir) == []
        assert node.groups() == ["LS"]


class TestCoreSched:
    def test_the_switch_comes_before_the_cookies_and_both_go_with_the_policy(self, node: ActionsFixture) -> None:
        pods = (node.run("a", 11, 12), node.run("b", 13))
        assert node.apply(CORE_SCHED, *pods) == {}
        assert node.switch.read_text() == "1\n"
        cookie = node.cookies.cookies[11]
        assert cookie != 0
        assert {node.cookies.cookies[one] for one in (11, 12, 13)} == {cookie}, "the default group is one"
        outcomes = {one.container.id: one.outcome for one in node.told}
        assert set(outcomes.values()) == {CoreSchedOutcome.ADDED, CoreSchedOutcome.ASSIGNED}
        assert node.apply(OFF, *pods) == {}
        assert node.switch.read_text() == "0\n"
        assert {node.cookies.cookies[one] for one in (11, 12, 13)} == {0}

    def test_without_its_switch_no_cookie_is_made(self, node: ActionsFixture) -> None:
        node.world.kernel.trouble = lambda path, _: errno.EBUSY if path.endswith("sched_core") else None
        problems = node.apply(CORE_SCHED, node.run("a", 11))
        assert "sched_core" in problems["CoreSched"]
        assert node.cookies.cookies[11] == 0
        assert node.told == []
        node.world.kernel.trouble = None
        node.world.clock.advance(3600)  # the executor waits before it tries a refused write again
        assert node.apply(CORE_SCHED, node.run("a", 11)) == {}
        assert node.cookies.cookies[11] != 0

    def test_a_switch_that_may_not_be_written_is_told_each_time(self, node: ActionsFixture) -> None:
        node.world.kernel.trouble = lambda path, _: errno.EPERM if path.endswith("sched_core") else None
        for _ in range(2):
            assert "sched_core" in node.apply(CORE_SCHED, node.run("a", 11))["CoreSched"]
        assert node.cookies.cookies[11] == 0

    def test_a_process_that_refuses_is_told(self, node: ActionsFixture) -> None:
        node.run("a", 11)
        node.cookies.stubborn.add(11)
        problems = node.apply(CORE_SCHED, node.run("a", 11))
        assert problems["CoreSched"]
        assert [one.outcome for one in node.told] == [CoreSchedOutcome.FAILED]

    def test_a_kernel_without_it_is_told_only_where_it_is_wanted(self, node: ActionsFixture) -> None:
        node.cookies.missing = True
        assert node.apply(OFF, node.run("a", 11)) == {}
        assert "CoreSched" in node.apply(CORE_SCHED, node.run("a", 11))


class TestTraffic:
    def test_classes_come_and_go_with_the_policy(self, node: ActionsFixture) -> None:
        batch = node.run("a")
        assert node.apply(TRAFFIC, batch) == {}
        device = node.iproute.devices["eth0"]
        assert device.root["kind"] == "htb"
        assert "1:4" in device.classes
        assert [one[1] for one in device.filters.values()] == ["10.0.0.7"]
        record = Path(node.state_dir) / "tc.json"
        assert json.loads(record.read_text())["device"] == "eth0"
        assert node.apply(OFF, batch) == {}
        assert device.root["kind"] == "noqueue"
        assert not record.exists()

    def test_what_tc_refuses_is_told_and_tried_again(self, node: ActionsFixture) -> None:
        node.iproute.refuse.add("class")
        assert node.apply(TRAFFIC, node.run("a"))["tcPlugin"]
        node.iproute.refuse.clear()
        assert node.apply(TRAFFIC, node.run("a")) == {}
        assert "1:4" in node.iproute.devices["eth0"].classes

    def test_a_machine_without_tc_is_told(self, node: ActionsFixture) -> None:
        node.iproute.missing = True
        assert "there is none" in node.apply(TRAFFIC, node.run("a"))["tcPlugin"]
        assert node.apply(OFF, node.run("a")) == {}


def test_an_agent_whose_gates_are_off_undoes_what_an_earlier_one_did(node: ActionsFixture) -> None:
    score = node.world.machine.put("proc/7/oom_score_adj", "1000\n")
    asking = node.run("a", 7, **{RESCTRL: HALF, SCORE: "500"})
    assert node.apply(TRAFFIC, asking) == {}
    device = node.iproute.devices["eth0"]
    assert (score.read_text(), node.groups(), device.root["kind"]) == ("500\n", ["koordlet-a"], "htb")
    after = NodeActions(
        node.resctrl,
        node.world.clock,
        node.control_loop,
        frozenset(),
        node.state_dir,
        lambda: None,
        lambda results, _: None,
        cookies=node.cookies,
        iproute=node.iproute,
    )
    for _ in range(2):
        asyncio.run(after.apply(node.state(TRAFFIC, asking)))
        node.world.clock.advance(60)  # a group that nobody wants is kept for a while
    assert (score.read_text(), node.groups(), device.root["kind"]) == ("1000\n", [], "noqueue")
    assert not (Path(node.state_dir) / "tc.json").exists()
    assert {name: problem for name, problem in after.problems.items() if problem} == {}
