"""A node on which all runtime hooks act: cgroups of either version and driver, resctrl, cookies, a network device."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from koord.api.koordinator.protocol import (
    A_DEVICE_ALLOCATED,
    A_EXTENDED_RESOURCE_SPEC,
    A_NETWORK_QOS,
    A_OOM_SCORE_ADJ,
    A_RESCTRL,
    A_RESOURCE_STATUS,
    BEST_EFFORT,
    BURSTABLE,
    L_QOS_CLASS,
)
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY
from koord.api.koordinator.slo import (
    CgroupPath,
    CPUQOSConfig,
    HostApplicationSpec,
    NetworkQOSConfig,
    NodeSLOSpec,
    ResourceQOS,
    ResourceQOSPolicies,
    ResourceQOSStrategy,
    SystemStrategy,
)
from koord.host.cgroup.layout import CgroupLayout
from koord.koordlet.control_loop import ControlLoop
from koord.koordlet.hook_calls.hook_calls import HookCalls, HookPolicies, HookStatistics
from koord.koordlet.hook_calls.node_actions import NodeActions
from koord.koordlet.hook_calls.nri_handler import NriHookHandler
from koord.koordlet.hooks.registry import HOOKS
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.node_inputs import NodeInputs, NodeProperties
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.metrics import KoordletMetrics
from koord.koordlet.series.store import SeriesStore
from koord.koordlet.settings import KoordletSettings
from koord.koordlet.strategies.runtime_hooks import NAME, RuntimeHooksState
from koord.telemetry.clock import ManualClock
from koord.wire.nri_messages import ContainerAdjustment, LinuxPodSandbox, NriContainer, NriPodSandbox
from tests.host.fake_iproute import FakeIproute
from tests.host.fake_kernel import FakeKernel
from tests.host.fake_machine import FakeMachine
from tests.koordlet.cgroup_writer.executor_fixture import FEW
from tests.koordlet.fake_cookies import FakeCookies
from tests.koordlet.strategies.builders import pod
from tests.koordlet.test_pod_resctrl import FakeResctrl

GATES = frozenset(one.gate for one in HOOKS)
FILES = FEW | {"cgroup.procs", "cgroup.threads", "tasks", "net_cls.classid", "cpu.bvt_warp_ns", "cgroup.controllers"}
CPUINFO = "processor: 0\nvendor_id: GenuineIntel\nmodel name: Test\nflags: cat_l3 mba\n"
ROUTE = (
    "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    "eth0 00000000 0102A8C0 0003 0 0 100 00000000 0 0 0\n"
)
GI = 2**30
APPLICATION = "host-latency-sensitive/daemon"
KUBELET_SCORES = {"be": "1000", "ls": "900"}
PROCESSES = {"be": (11, 12), "ls": (21,)}


class PodWish(msgspec.Struct, frozen=True, kw_only=True):
    """What labels and annotations of the two pods say; None for nothing."""

    batch_milli: int | None = None
    qos: str = "LS"
    cpuset: str = ""
    score: int | None = None
    cache_percent: int | None = None
    egress: str = ""
    group: str = ""
    card: bool = False


class NodeWish(msgspec.Struct, frozen=True, kw_only=True):
    """What the Node and its NodeSLO say."""

    ratio: float | None = None
    cpu_policy: str = "groupIdentity"
    identity: bool = False
    idle: bool = False
    network_policy: str = ""
    application: bool = False

    def slo(self) -> NodeSLOSpec:
        def block(bvt: int) -> ResourceQOS:
            cpu = CPUQOSConfig(enable=self.identity, group_identity=bvt, sched_idle=int(self.idle and bvt < 0))
            network = NetworkQOSConfig(enable=True, egress_request="1M", egress_limit="10M")
            return ResourceQOS(cpu_qos=cpu, network_qos=network)

        return NodeSLOSpec(
            resource_qos_strategy=ResourceQOSStrategy(
                policies=ResourceQOSPolicies(cpu_policy=self.cpu_policy, net_qos_policy=self.network_policy or None),
                lsr_class=block(2),
                ls_class=block(1),
                be_class=block(-1),
            ),
            system_strategy=SystemStrategy(total_network_bandwidth="1G" if self.network_policy else "0"),
            host_applications=(
                HostApplicationSpec(
                    name="daemon",
                    qos="LS",
                    cgroup_path=CgroupPath(parent_dir="host-latency-sensitive", relative_path="daemon"),
                ),
            )
            if self.application
            else (),
        )


class HooksNode:
    """The node. `restart` is a new process of the agent on it; `tick` is a second of that agent."""

    def __init__(self, root: Path, version: int, driver: str) -> None:
        layout = CgroupLayout(driver)
        self.version = version
        self.machine = FakeMachine(root, version, layout, vendor=True, only=FILES)
        self.kernel = FakeKernel(self.machine.paths, version)
        self.clock = ManualClock()
        self.resctrl = FakeResctrl(root)
        self.cookies = FakeCookies()
        self.iproute = FakeIproute("eth0")
        self.state_dir = str(root / "state")
        for path, text in (
            ("proc/sys/kernel/random/boot_id", "boot-one\n"),
            ("sys/devices/system/cpu/online", "0-3\n"),
            ("proc/cpuinfo", CPUINFO),
            ("proc/net/route", ROUTE),
            ("proc/sys/kernel/sched_core", "0\n"),
            ("sys/fs/resctrl/info/L3/cbm_mask", "3ff\n"),
        ):
            self.machine.put(path, text)
        self.groups: dict[str, tuple[str, str]] = {}
        for uid, kube_qos in (("be", BEST_EFFORT), ("ls", BURSTABLE)):
            group = self.machine.pod(kube_qos, uid, f"containerd://{uid}1")
            box = layout.container_dir(group, f"containerd://{uid}1") or ""
            self.groups[uid] = (group, box)
            self._run_processes(uid, box)
        self.machine.make(APPLICATION)
        self._write_as_kubelet()
        self.pods = PodWish()
        self.node = NodeWish()
        self.restart()

    def _run_processes(self, uid: str, box: str) -> None:
        text = "".join(f"{one}\n" for one in PROCESSES[uid])
        for subsystem in ("cpu",) if self.version == 1 else ("",):
            for name in ("cgroup.procs", "tasks" if self.version == 1 else "cgroup.threads"):
                (Path(self.machine.tree.group_path(subsystem, box)) / name).write_text(text)
        for process in PROCESSES[uid]:
            self.cookies.cookies[process] = 0
            self.machine.put(f"proc/{process}/oom_score_adj", f"{KUBELET_SCORES[uid]}\n")

    def _write_as_kubelet(self) -> None:
        """Give groups what a kubelet gives by the specs of the two pods."""
        names = ("cpu.shares", "cpu.cfs_quota_us") if self.version == 1 else ("cpu.weight", "cpu.max")
        values = {
            "be": ("2", "-1") if self.version == 1 else ("1", "max 100000"),
            "ls": ("1024", "100000") if self.version == 1 else ("39", "100000 100000"),
        }
        for uid, texts in values.items():
            for group in self.groups[uid]:
                for name, text in zip(names, texts, strict=True):
                    assert self.kernel.write(f"{self.machine.tree.group_path('cpu', group)}/{name}", text) is None
        self.kernel.writes.clear()

    def restart(self) -> None:
        tree = self.machine.tree
        tree.host = self.kernel
        self.control_loop = ControlLoop(
            tree,
            SeriesStore({}, interval_s=1.0),
            self.clock,
            KoordletSettings(node="n", gates=GATES, state_dir=self.state_dir),
            KoordletMetrics("n"),
            None,
        )
        self.runner = self.control_loop.strategy_runner
        self.actions = NodeActions(
            self.resctrl,
            self.clock,
            self.control_loop,
            GATES,
            self.state_dir,
            lambda: None,
            lambda results, _: None,
            cookies=self.cookies,
            iproute=self.iproute,
        )
        calls = HookCalls(
            self.machine.layout,
            self.clock,
            HookPolicies(),
            HookStatistics(lambda *_: None),
            lambda: self._state().rules,
            self.runner.execute_at_once,
            lambda *_: None,
            self.actions.prepare_pod,
        )
        self.handler = NriHookHandler(calls, self.kernel, self.actions.remove_pod)

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        ratio = self.node.ratio
        inputs = NodeInputs(
            node=NodeProperties(
                name="n",
                capacity={CPU: 4000, MEMORY: 16 * GI},
                allocatable={CPU: 4000, MEMORY: 16 * GI},
                normalization_ratio=ratio or 1.0,
                has_normalization_ratio=ratio is not None,
            ),
            slo=effective_slo(self.node.slo()),
            pods=tuple(self._pod(uid) for uid in self.groups),
            earlier_writes=self.control_loop.executor.has_earlier_writes,
        )
        ran = self.runner.tick(self.clock.time(), inputs)
        assert [one.error for one in ran if one.error is not None] == []
        asyncio.run(self.actions.apply(self._state()))

    def settle(self) -> None:
        """Let all pass that waits: refused writes, groups that are kept for a while."""
        for seconds in (1.0, 20.0, 20.0, 1.0):
            self.tick(seconds)

    def outcome(self) -> Mapping[str, Any]:
        """Return everything that hooks left on the node, and what a new container of either pod would be given."""
        device = self.iproute.devices["eth0"]
        cookies = self.cookies.cookies
        return {
            "cgroups": self.machine.snapshot(),
            "scores": {
                process: (self.machine.root / f"proc/{process}/oom_score_adj").read_text()
                for processes in PROCESSES.values()
                for process in processes
            },
            "resctrl": {
                one.name: (self.resctrl.lines(one.name), self.resctrl.tasks(one.name))
                for one in self.resctrl.root.iterdir()
                if one.is_dir() and one.name != "info"
            },
            # Which number a cookie has is chance; who shares one, and who has none, is not.
            "cookies": {
                process: (cookie != 0, sorted(other for other in cookies if cookies[other] == cookie))
                for process, cookie in cookies.items()
            },
            "switch": (self.machine.root / "proc/sys/kernel/sched_core").read_text(),
            "traffic": (device.root, device.classes, sorted((one[1], one[2]) for one in device.filters.values())),
            "terway": {
                one.name: one.read_text() for one in sorted(Path(self.kernel.paths.terway).glob("*")) if one.is_file()
            },
            "answers": {uid: self._answer(uid) for uid in self.groups},
        }

    def _answer(self, uid: str) -> ContainerAdjustment | None:
        made = self._pod(uid)
        sandbox = NriPodSandbox(
            id="s",
            name=made.name,
            uid=uid,
            labels=dict(made.labels),
            annotations=dict(made.annotations),
            linux=LinuxPodSandbox(cgroup_parent=f"/{made.group}"),
        )
        return asyncio.run(self.handler.create_container(sandbox, NriContainer(id="new", name="main")))

    def _state(self) -> RuntimeHooksState:
        state = self.runner.state_of(NAME)
        assert isinstance(state, RuntimeHooksState)
        return state

    def _pod(self, uid: str) -> PodMeta:
        wish, (group, box) = self.pods, self.groups[uid]
        annotations: dict[str, Any] = {}
        amounts: dict[str, int] = {}
        if uid == "be":
            qos = "BE"
            own = {BATCH_CPU: str(wish.batch_milli), BATCH_MEMORY: "64Mi"}
            spec = {"containers": {"main": {"requests": own, "limits": own}}}
            annotations |= {} if wish.batch_milli is None else {A_EXTENDED_RESOURCE_SPEC: json.dumps(spec)}
            annotations |= {A_NETWORK_QOS: json.dumps({"egressLimit": wish.egress})} if wish.egress else {}
            annotations |= {} if wish.score is None else {A_OOM_SCORE_ADJ: str(wish.score)}
        else:
            qos, amounts = wish.qos, {CPU: 1000, MEMORY: GI}
            annotations |= {A_RESOURCE_STATUS: json.dumps({"cpuset": wish.cpuset})} if wish.cpuset else {}
            annotations |= {A_DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": 1}]})} if wish.card else {}
        if wish.cache_percent is not None:
            annotations[A_RESCTRL] = json.dumps({"llc": {"schemata": {"range": [0, wish.cache_percent]}}})
        container = ContainerMeta(
            name="main", id=f"containerd://{uid}1", group=box, running=True, requests=amounts, limits=amounts
        )
        made = pod(uid, requests=amounts, limits=amounts, containers=(container,), annotations=annotations)
        labels = {L_QOS_CLASS: qos} if qos else {}
        labels |= {"koordinator.sh/core-sched-group-id": wish.group} if wish.group else {}
        kube_qos = BEST_EFFORT if uid == "be" else BURSTABLE
        return msgspec.structs.replace(made, group=group, labels=labels, kube_qos=kube_qos, ip=f"10.0.0.{len(uid)}")
