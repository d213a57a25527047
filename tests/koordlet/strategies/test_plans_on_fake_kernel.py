"""Plans executed on a fake kernel that refuses what Linux refuses: none of their writes is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from koord.api.config.slo.defaults import CPU_BURST as DEFAULT_BURST
from koord.api.koordinator.protocol import A_MEMORY_QOS, BE, BEST_EFFORT, BURSTABLE, GUARANTEED, LS
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.koordinator.slo import (
    BlkIOQOSConfig,
    BlockConfig,
    CPUQOSConfig,
    IOConfig,
    NodeSLOSpec,
    ResourceQOS,
    ResourceQOSStrategy,
    SystemStrategy,
)
from koord.host.cgroup import knob
from koord.host.cgroup.knob import CgroupFile
from koord.host.hardware import BlockDevices, MachineCpu
from koord.koordlet.cgroup_writer.effects import FileEffect, WriteCgroup, WriteOutcome
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.strategies.blkio import BlkioView, decide_blkio
from koord.koordlet.strategies.cpu_burst import BurstState, CpuBurstView, SharePool, SharePoolState, decide_cpu_burst
from koord.koordlet.strategies.cpu_suppress import BeGroup, CpuSuppressView, decide_cpu_suppress
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.group_identity import SWITCH_OWNER, GroupIdentityView, decide_group_identity
from koord.koordlet.strategies.memory_qos import MemoryQosView, decide_memory_qos
from koord.koordlet.strategies.strategy import StrategyPlan
from koord.koordlet.strategies.system_config import SystemConfigView, decide_system_config
from koord.values.cpuset import CPUSet
from tests.koordlet.cgroup_writer.executor_fixture import ExecutorFixture
from tests.koordlet.strategies.builders import pod

GI = 2**30
FINE = {WriteOutcome.WRITTEN, WriteOutcome.SAME, WriteOutcome.FRESH, WriteOutcome.REPLACED}
ROOT, BE_POD, BE_BOX = "kubepods/besteffort", "kubepods/besteffort/podbe", "kubepods/besteffort/podbe/one"
LS_POD, LS_BOX = "kubepods/burstable/podls", "kubepods/burstable/podls/two"
GROUPS = {GUARANTEED: "kubepods", BURSTABLE: "kubepods/burstable", BEST_EFFORT: ROOT}


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> ExecutorFixture:
    made = ExecutorFixture(tmp_path, request.param, vendor=True)
    made.machine.pod(BEST_EFFORT, "be", "containerd://one")
    made.machine.pod(BURSTABLE, "ls", "containerd://two")
    return made


def execute(world: ExecutorFixture, plan: StrategyPlan, *, also: Sequence[WriteOutcome] = ()) -> None:
    effects: list[FileEffect] = [one for one in plan.effects if not isinstance(one, EvictionRequest)]
    refused = [(one, status) for one, status in zip(effects, world.do(*effects)) if status not in {*FINE, *also}]
    assert refused == []
    world.clock.advance(1)


def ls_pod() -> PodMeta:
    amounts = {CPU: 2_000, MEMORY: GI}
    box = ContainerMeta(name="c", id="containerd://two", group=LS_BOX, running=True, requests=amounts, limits=amounts)
    return msgspec.structs.replace(pod("ls", LS, requests=amounts, limits=amounts, containers=(box,)), group=LS_POD)


def test_bursts_come_and_go_without_a_refusal(world: ExecutorFixture) -> None:
    for group in (LS_POD, LS_BOX):
        path = world.tree.path(CgroupFile(knob.CPU_QUOTA, group))
        assert path is not None
        Path(path).write_text("200000\n" if world.machine.version == 1 else "200000 100000\n")
    seen = CpuBurstView(
        strategy=msgspec.structs.replace(DEFAULT_BURST, policy="auto"),
        pool=SharePool(state="idle", why="idle"),
        now_s=0.0,
        pods=(ls_pod(),),
    )
    quota = {LS_POD: 200_000, LS_BOX: 200_000}
    story: list[tuple[int, SharePoolState, float, str]] = [
        (8, "idle", 0.5, "auto"),
        (3, "overload", 0.5, "auto"),
        (1, "idle", 0.0, "cpuBurstOnly"),
        (2, "idle", 0.5, "auto"),
        (1, "idle", 0.0, "none"),
    ]
    seen_quotas = []
    bursts: dict[str, BurstState] = {}
    for state, throttled, policy in (moment[1:] for moment in story for _ in range(moment[0])):
        plan = decide_cpu_burst(
            msgspec.structs.replace(
                seen,
                pool=SharePool(state=state, why=state),
                throttled={"containerd://two": throttled},
                quota_us=quota,
                strategy=msgspec.structs.replace(DEFAULT_BURST, policy=policy),
                bursts=bursts,
            )
        )
        bursts = plan.state
        execute(world, plan)
        quota = {group: int(world.value(knob.CPU_QUOTA, group)) for group in quota}
        assert quota[LS_POD] == quota[LS_BOX]
        seen_quotas.append(quota[LS_BOX])
    assert max(seen_quotas) == 600_000
    assert seen_quotas[-1] == 200_000
    assert world.value(knob.CPU_BURST, LS_BOX) == "0"


def suppressed(world: ExecutorFixture, policy: str, **changes: object) -> CpuSuppressView:
    quota = int(world.value(knob.CPU_QUOTA, ROOT))
    seen = CpuSuppressView(
        enabled=True,
        policy=policy,
        threshold_percent=65,
        capacity_milli=4_000,
        node_used_milli=1_000,
        pods=(ls_pod(), pod("be", BE)),
        pod_used_milli={"ls": 1_000},
        processors=tuple(MachineCpu(cpu=cpu, core=cpu // 2) for cpu in range(4)),
        groups=(
            BeGroup(path=ROOT, depth=0),
            BeGroup(path=BE_POD, depth=1, pod="be"),
            BeGroup(path=BE_BOX, depth=2, pod="be"),
        ),
        quota_us=quota,
        cpuset=CPUSet.parse(world.value(knob.CPUSET, ROOT)) or CPUSet.parse("0-3"),
    )
    return msgspec.structs.replace(seen, **changes)


def test_be_work_is_held_and_let_go_by_either_means(world: ExecutorFixture) -> None:
    execute(world, decide_cpu_suppress(suppressed(world, "cpuset")))
    assert {world.value(knob.CPUSET, group) for group in (ROOT, BE_POD, BE_BOX)} == {"0-1"}
    execute(world, decide_cpu_suppress(suppressed(world, "cfsQuota")))
    assert world.value(knob.CPU_QUOTA, ROOT) == "160000"
    assert {world.value(knob.CPUSET, group) for group in (ROOT, BE_POD, BE_BOX)} == {"0-3"}
    execute(world, decide_cpu_suppress(suppressed(world, "cfsQuota", enabled=False)))
    assert world.value(knob.CPU_QUOTA, ROOT) == "-1"


def test_idle_groups_come_and_go_with_their_weight(tmp_path: Path) -> None:
    world = ExecutorFixture(tmp_path, 1)
    pod = world.machine.pod("BestEffort", "x", "containerd://one")
    for group in (ROOT, pod):
        Path(world.tree.group_path("cpu", group), knob.CPU_SHARES).write_text("2\n")
    world.kernel.write(str(Path(world.tree.group_path("cpu", ROOT), knob.CPU_IDLE)), "1")  # an earlier version
    for idle, enable in ((1, True), (0, True), (0, False)):
        said = ResourceQOSStrategy(be_class=ResourceQOS(cpu_qos=CPUQOSConfig(enable=enable)))
        strategy = effective_slo(NodeSLOSpec(resource_qos_strategy=said)).resource_qos_strategy
        seen = GroupIdentityView(
            strategy=strategy, has_idle=True, idle=idle, groups=GROUPS, idle_candidates=(pod,) if enable else ()
        )
        plan = decide_group_identity(seen)
        world.executor.reconcile((SWITCH_OWNER,), [one for one in plan.effects if isinstance(one, WriteCgroup)])
        assert world.value(knob.CPU_IDLE, pod) == str(int(enable))
        kubelet = str(Path(world.tree.group_path("cpu", ROOT), knob.CPU_SHARES))
        assert world.kernel.write(kubelet, "2") is None, "the kubelet can write what it always writes"
    assert {world.value(knob.CPU_SHARES, group) for group in (ROOT, pod)} == {"2"}


def test_memory_and_disk_settings_are_taken(world: ExecutorFixture) -> None:
    protected = msgspec.structs.replace(
        ls_pod(), annotations={A_MEMORY_QOS: '{"minLimitPercent":100,"lowLimitPercent":100,"throttlingPercent":80}'}
    )
    strategy = effective_slo(
        NodeSLOSpec(
            resource_qos_strategy=ResourceQOSStrategy(
                be_class=ResourceQOS(
                    blkio_qos=BlkIOQOSConfig(
                        enable=True,
                        blocks=(BlockConfig(name="/dev/vda", type="device", io_cfg=IOConfig(read_iops=100)),),
                    )
                )
            )
        )
    ).resource_qos_strategy
    memory = MemoryQosView(strategy=strategy, allocatable_bytes=8 * GI, pods=(protected,), groups=GROUPS)
    execute(world, decide_memory_qos(memory), also=(WriteOutcome.OFF,))
    assert {world.value(knob.MEMORY_MIN, group) for group in ("kubepods", "kubepods/burstable", LS_POD, LS_BOX)} == {
        str(GI)
    }
    disks = BlkioView(strategy=strategy, disks=BlockDevices(disks={"/dev/vda": "253:0"}), besteffort=ROOT)
    execute(world, decide_blkio(disks))


def test_identities_of_a_vendors_kernel_are_taken(tmp_path: Path) -> None:
    world = ExecutorFixture(tmp_path, 1, vendor=True)
    world.machine.pod(BEST_EFFORT, "be", "containerd://one")
    said = ResourceQOSStrategy(be_class=ResourceQOS(cpu_qos=CPUQOSConfig(enable=True)))
    strategy = effective_slo(NodeSLOSpec(resource_qos_strategy=said)).resource_qos_strategy
    owner = msgspec.structs.replace(pod("be", BE), group=BE_POD)
    seen = GroupIdentityView(
        strategy=strategy, has_bvt=True, groups=GROUPS, pods=(owner,), children={BE_POD: (BE_BOX,)}
    )
    execute(world, decide_group_identity(seen))
    assert {world.value(knob.CPU_BVT, group) for group in (ROOT, BE_POD, BE_BOX)} == {"-1"}


def test_settings_of_the_machine_are_taken(tmp_path: Path) -> None:
    world = ExecutorFixture(tmp_path, 2)
    world.machine.put("proc/sys/vm/min_free_kbytes", "67584\n")
    world.machine.put("proc/sys/vm/watermark_scale_factor", "10\n")
    strategy = SystemStrategy(min_free_kbytes_factor=88, watermark_scale_factor=150)
    execute(world, decide_system_config(SystemConfigView(strategy=strategy, capacity_bytes=16 * GI)))
    assert world.value(knob.WATERMARK_SCALE_FACTOR, "") == "150"


def leave(world: ExecutorFixture, name: str, group: str, value: str) -> None:
    """Write a file as another agent did, before this one started."""
    file, path = world.tree.knob_file(name), world.tree.path(CgroupFile(name, group))
    assert file is not None
    assert path is not None
    text, field = Path(path).read_text(), file.codec.encode(value)
    assert field is not None
    assert world.kernel.write(path, file.codec.render(text, "", field)) is None


def test_what_another_agent_left_is_not_what_restore_gives_back(world: ExecutorFixture) -> None:
    unbound, groups = "0-3" if world.machine.version == 1 else "", (ROOT, BE_POD, BE_BOX)
    files = [(knob.CPU_QUOTA, ROOT), *((knob.CPUSET, group) for group in groups)]
    before = {(name, group): world.value(name, group) for name, group in files}
    for policy, held in (("cfsQuota", "75000"), ("cpuset", "-1")):
        leave(world, knob.CPU_QUOTA, ROOT, "35000")
        for group in reversed(groups):
            leave(world, knob.CPUSET, group, "0-1")
        execute(world, decide_cpu_suppress(suppressed(world, policy, unbound_cpus=unbound)))
        assert world.value(knob.CPU_QUOTA, ROOT) == held
        assert [one for one in world.executor.restore() if not one.is_settled] == []
        assert {(name, group): world.value(name, group) for name, group in files} == before


def test_bursts_that_another_agent_left_are_not_given_back(world: ExecutorFixture) -> None:
    for group in (LS_POD, LS_BOX):
        leave(world, knob.CPU_QUOTA, group, "200000")
        leave(world, knob.CPU_BURST, group, "100000")
    seen = CpuBurstView(
        strategy=msgspec.structs.replace(DEFAULT_BURST, policy="cpuBurstOnly", cpu_burst_percent=50),
        pool=SharePool(state="idle", why="idle"),
        now_s=0.0,
        pods=(ls_pod(),),
        quota_us={LS_POD: 200_000, LS_BOX: 200_000},
    )
    execute(world, decide_cpu_burst(seen))
    assert {world.value(knob.CPU_BURST, group) for group in (LS_POD, LS_BOX)} == {"100000"}
    world.executor.restore()
    assert {world.value(knob.CPU_BURST, group) for group in (LS_POD, LS_BOX)} == {"0"}


def test_identities_that_another_agent_left_are_not_given_back(tmp_path: Path) -> None:
    world = ExecutorFixture(tmp_path, 1, vendor=True)
    world.machine.pod(BEST_EFFORT, "be", "containerd://one")
    for group in (ROOT, BE_POD, BE_BOX):
        leave(world, knob.CPU_BVT, group, "-1")
    said = ResourceQOSStrategy(be_class=ResourceQOS(cpu_qos=CPUQOSConfig(enable=True)))
    strategy = effective_slo(NodeSLOSpec(resource_qos_strategy=said)).resource_qos_strategy
    owner = msgspec.structs.replace(pod("be", BE), group=BE_POD)
    seen = GroupIdentityView(
        strategy=strategy, has_bvt=True, groups=GROUPS, pods=(owner,), children={BE_POD: (BE_BOX,)}
    )
    execute(world, decide_group_identity(seen))
    assert {world.value(knob.CPU_BVT, group) for group in (ROOT, BE_POD, BE_BOX)} == {"-1"}
    world.executor.restore()
    assert {world.value(knob.CPU_BVT, group) for group in (ROOT, BE_POD, BE_BOX)} == {"0"}
