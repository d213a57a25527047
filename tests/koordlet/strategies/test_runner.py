"""The strategy runner on a fake machine holds, releases, switches off, evicts and survives errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from koord.api.koordinator.protocol import A_MEMORY_QOS, A_RESOURCE_STATUS, BE, L_EVICTION_ENABLED, TRUE
from koord.api.koordinator.resource_name import BATCH_CPU
from koord.api.koordinator.slo import (
    BlkIOQOSConfig,
    BlockConfig,
    CPUQOSConfig,
    IOConfig,
    NodeSLOSpec,
    ResourceQOS,
    ResourceQOSPolicies,
    ResourceQOSStrategy,
    ResourceThresholdStrategy,
)
from koord.host.cgroup import knob
from koord.host.hardware import BlockDevices
from koord.koordlet.cgroup_writer.effects import FileEffect, FileWriteResult, WriteCgroup
from koord.koordlet.control_loop import HostMachine
from koord.koordlet.inputs.machine import MachineShape
from koord.koordlet.inputs.node_inputs import KubeletCpuManager
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.strategies.registry import StrategyEntry
from koord.koordlet.strategies.runner import StrategyResult, StrategyRunner
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan
from koord.values.cpuset import CPUSet
from tests.koordlet.strategies.builders import pod
from tests.koordlet.strategies.runner_fixture import (
    BE_BOX,
    BE_POD,
    GATES,
    GI,
    LS_BOX,
    LS_POD,
    NODE,
    TOP,
    RunnerFixture,
    be_pod,
    burst_by,
    ls_pod,
    suppress_by,
)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> RunnerFixture:
    return RunnerFixture(tmp_path, request.param)


def of(ran: Sequence[StrategyResult], strategy: str) -> StrategyResult:
    return next(one for one in ran if one.strategy == strategy)


def test_nothing_happens_before_a_node_slo_was_seen(stage: RunnerFixture) -> None:
    stage.measure(1_000, {"ls": 500})
    before = stage.values()
    ran = stage.tick(None)
    assert stage.values() == before
    assert {one.plan.why for one in ran} >= {"no NodeSLO was seen yet"}


def test_nothing_happens_before_pods_are_known(stage: RunnerFixture) -> None:
    stage.measure(1_000)
    assert stage.tick(suppress_by("cfsQuota"), pods=(), pods_known=False) == ()


def test_be_is_held_by_quota_as_the_formula_says(stage: RunnerFixture) -> None:
    stage.measure(1_800, {"ls": 1_000, "be": 500})
    stage.tick(suppress_by("cfsQuota"))
    # 65% of 4000m, less 1000m of the service and 300m that nobody explains.
    assert stage.quota(TOP) == 130_000


def test_be_is_held_by_cpus_down_to_its_containers(stage: RunnerFixture) -> None:
    stage.measure(1_300, {"ls": 1_000})
    stage.tick(suppress_by("cpuset"))
    assert {stage.cpus(group) for group in (TOP, BE_POD, BE_BOX)} == {"0-1"}


def test_a_static_kubelet_keeps_its_upper_levels(stage: RunnerFixture) -> None:
    stage.measure(1_300, {"ls": 1_000})
    stage.tick(suppress_by("cpuset"), kubelet=KubeletCpuManager(cpu_manager_policy="static"))
    assert stage.cpus(BE_BOX) == "0-1"
    assert stage.cpus(BE_POD) in ("0-3", "")


def test_switching_off_lets_go_at_once(stage: RunnerFixture) -> None:
    stage.measure(1_300, {"ls": 1_000})
    stage.tick(suppress_by("cfsQuota"))
    stage.measure(1_300, {"ls": 1_000})
    stage.tick(suppress_by("cfsQuota", enable=False))
    assert stage.quota(TOP) == -1


def test_a_deleted_node_slo_puts_everything_back(stage: RunnerFixture) -> None:
    stage.measure(1_300, {"ls": 1_000})
    stage.tick(suppress_by("cfsQuota"))
    stage.measure(1_300, {"ls": 1_000})
    stage.tick(NodeSLOSpec())
    assert stage.quota(TOP) == -1


def test_a_gate_that_is_off_gives_back_what_an_earlier_process_wrote(stage: RunnerFixture) -> None:
    before = stage.values()
    stage.measure(1_300, {"ls": 1_000}, throttled=0.5)
    spec = msgspec.structs.replace(suppress_by("cpuset"), cpu_burst_strategy=burst_by("auto").cpu_burst_strategy)
    stage.tick(spec)
    assert stage.values() != before
    stage.start(frozenset())
    stage.measure(1_300, {"ls": 1_000})
    ran = stage.tick(spec)
    assert stage.values() == before
    assert {one.plan.why for one in ran} == {"its gate is off"}


def test_safe_mode_decides_and_writes_nothing(stage: RunnerFixture) -> None:
    before = stage.values()
    stage.measure(1_300, {"ls": 1_000})
    ran = stage.tick(suppress_by("cfsQuota"), safe_mode=True)
    assert stage.values() == before
    assert of(ran, "CPUSuppresss").plan.effects != ()
    assert of(ran, "CPUSuppresss").results == ()


def test_a_throttled_service_bursts_within_its_pod_and_comes_back(stage: RunnerFixture) -> None:
    for _ in range(4):
        stage.measure(400, {"ls": 400}, throttled=0.5)
        stage.tick(burst_by("auto"))
    assert stage.quota(LS_BOX) > 100_000
    assert stage.quota(LS_POD) >= stage.quota(LS_BOX)
    assert int(stage.world.value(knob.CPU_BURST, LS_BOX)) <= stage.quota(LS_BOX)
    stage.measure(400, {"ls": 400})
    stage.tick(burst_by("none"))
    assert (stage.quota(LS_POD), stage.quota(LS_BOX)) == (100_000, 100_000)
    assert stage.world.value(knob.CPU_BURST, LS_BOX) == "0"


def test_normalization_is_part_of_the_quota_only_where_its_gate_is_on(stage: RunnerFixture) -> None:
    node = msgspec.structs.replace(NODE, normalization_ratio=1.25)
    stage.measure(400, {"ls": 400})
    stage.tick(burst_by("none"), node=node)
    assert stage.quota(LS_BOX) == 100_000
    stage.start(GATES | {"CPUNormalization"})
    stage.measure(400, {"ls": 400})
    stage.tick(burst_by("none"), node=node)
    assert (stage.quota(LS_POD), stage.quota(LS_BOX)) == (80_000, 80_000)


def test_best_effort_work_keeps_off_cpus_that_are_reserved_by_amount(stage: RunnerFixture) -> None:
    stage.measure(100)
    stage.tick(suppress_by("cpuset"), node=msgspec.structs.replace(NODE, reservation_milli=1_000))
    assert 0 not in CPUSet.parse(stage.cpus(TOP))
    stage.measure(100)
    stage.tick(NodeSLOSpec(), node=msgspec.structs.replace(NODE, reservation_milli=1_000))
    assert 0 not in CPUSet.parse(stage.cpus(TOP)), "suppressed or not"


def test_normalization_needs_no_bursts(stage: RunnerFixture) -> None:
    stage.start(frozenset({"CPUNormalization"}))
    faster = msgspec.structs.replace(NODE, normalization_ratio=1.2, has_normalization_ratio=True)
    for node, quota in ((faster, 83_334), (NODE, 100_000)):
        for _ in range(2):
            stage.measure(400, {"ls": 400}, throttled=0.9)
            stage.tick(burst_by("auto"), node=node)
        assert (stage.quota(LS_POD), stage.quota(LS_BOX)) == (quota, quota)
        assert stage.world.value(knob.CPU_BURST, LS_BOX) == "0", "bursts are off, whatever the NodeSLO says"
    pinned = msgspec.structs.replace(ls_pod(), annotations={A_RESOURCE_STATUS: '{"cpuset":"1"}'})
    stage.measure(400, {"ls": 400})
    stage.tick(burst_by("auto"), node=faster, pods=(pinned,))
    assert stage.quota(LS_BOX) == 100_000, "its CPUs are its own"


def test_pods_with_cpus_of_their_own_keep_them_under_the_cpu_manager(stage: RunnerFixture) -> None:
    stage.start(GATES | {"BECPUManager", "CPUSetAllocator"})
    pinned = msgspec.structs.replace(be_pod(), annotations={A_RESOURCE_STATUS: '{"cpuset":"2-3"}'})
    for pods, cpus in (((pinned,), "2-3"), ((be_pod(),), "0-3"), ((pinned,), "2-3")):
        stage.measure(100)
        stage.tick(suppress_by("cpuset"), pods=pods)
        assert (stage.cpus(BE_BOX), stage.cpus(TOP)) == (cpus, "0-3")


def test_strategies_run_as_often_as_they_want(tmp_path: Path) -> None:
    stage = RunnerFixture(tmp_path, gates=GATES | {"GroupIdentity"})
    seen = []
    for _ in range(12):
        stage.measure(100)
        seen += [one.strategy for one in stage.tick(NodeSLOSpec())]
    assert seen.count("GroupIdentity") == 2
    assert seen.count("CPUBurst") == 12


def test_a_clock_that_goes_back_stops_nothing(stage: RunnerFixture) -> None:
    stage.measure(1_300, {"ls": 1_000})
    stage.tick(suppress_by("cfsQuota"))
    stage.world.clock.advance(-3600)
    stage.measure(2_300, {"ls": 2_000})
    stage.tick(suppress_by("cfsQuota"))
    assert stage.quota(TOP) == 30_000


def test_groups_that_vanish_are_no_trouble(stage: RunnerFixture) -> None:
    stage.measure(1_300, {"ls": 1_000})
    stage.tick(suppress_by("cpuset"))
    stage.world.machine.remove(BE_POD)
    stage.world.machine.remove(LS_POD)
    stage.world.clock.advance(5)
    stage.measure(300)
    ran = stage.tick(suppress_by("cpuset"))
    assert of(ran, "CPUSuppresss").error is None
    assert stage.cpus(TOP) == "0-2"


class _Broken(HostMachine):
    def execute(
        self,
        effects: Sequence[FileEffect],
        *,
        complete_owners: Sequence[str] = (),
        kept: Sequence[tuple[str, str]] = (),
        verify: bool = False,
    ) -> Sequence[FileWriteResult]:
        if any(effect.owner == "CPUSuppresss" for effect in effects):
            raise RuntimeError("a fault of the program")
        return super().execute(effects, complete_owners=complete_owners, kept=kept, verify=verify)


def test_one_strategys_fault_spares_the_others(stage: RunnerFixture) -> None:
    machine = _Broken(stage.world.tree, stage.world.executor, may_write=False, resctrl=False, disks=False)
    rounds = StrategyRunner(machine, stage.store, GATES)
    stage.measure(1_300, {"ls": 1_000})
    spec = msgspec.structs.replace(
        suppress_by("cfsQuota"), cpu_burst_strategy=burst_by("cpuBurstOnly").cpu_burst_strategy
    )
    ran = rounds.tick(stage.now_s, stage.node_inputs(spec))
    assert isinstance(of(ran, "CPUSuppresss").error, RuntimeError)
    assert stage.world.value(knob.CPU_BURST, LS_BOX) == "100000"


# Evictions ---------------------------------------------------------------------------------------------------------

MEMORY_SLO = NodeSLOSpec(
    resource_used_threshold_with_be=ResourceThresholdStrategy(
        enable=True, memory_evict_threshold_percent=70, memory_evict_lower_percent=60
    )
)


def big(name: str, priority: int) -> PodMeta:
    return pod(name, BE, priority=priority, requests={BATCH_CPU: 1_000})


@pytest.fixture
def pressed(tmp_path: Path) -> RunnerFixture:
    stage = RunnerFixture(tmp_path, gates=GATES | {"BEMemoryEvict"})
    press(stage)
    stage.tick(MEMORY_SLO)  # the pause after an eviction counts from the start on, too
    stage.world.clock.advance(5)
    return stage


PODS = (big("first", 5_000), big("second", 5_100), big("third", 5_200), ls_pod())


def press(stage: RunnerFixture, node_bytes: int = 12 * GI) -> None:
    stage.measure(100, memory_bytes=node_bytes, pods_bytes={"first": 2 * GI, "second": GI, "third": 3 * GI})


def wanted(ran: Sequence[StrategyResult]) -> list[str]:
    return [victim.name for one in ran for victim in one.evictions]


def test_memory_pressure_evicts_the_least_important_until_it_is_enough(pressed: RunnerFixture) -> None:
    press(pressed)
    # 75% used, down to 60%: 2.4 GiB must go, and the first brings 2.
    assert wanted(pressed.tick(MEMORY_SLO, pods=PODS)) == ["first", "second"]


def test_what_is_asked_for_is_credited_until_the_answer_comes(pressed: RunnerFixture) -> None:
    press(pressed)
    assert wanted(pressed.tick(MEMORY_SLO, pods=PODS)) == ["first", "second"]
    press(pressed)
    assert wanted(pressed.tick(MEMORY_SLO, pods=PODS)) == []


def test_victims_that_hang_drag_nobody_along(pressed: RunnerFixture) -> None:
    press(pressed)
    for name in wanted(pressed.tick(MEMORY_SLO, pods=PODS)):
        pressed.round.evicted(pressed.now_s, name)
    hanging = tuple(
        msgspec.structs.replace(one, terminating=True) if one.name in ("first", "second") else one for one in PODS
    )
    for _ in range(300):
        press(pressed)
        assert wanted(pressed.tick(MEMORY_SLO, pods=hanging)) == []


@pytest.mark.parametrize(("by_stopping", "leaving_s"), [(False, 120), (True, 30)], ids=["by-api", "by-cri"])
def test_victims_that_stay_and_do_not_end_are_chosen_again_after_a_while(
    pressed: RunnerFixture, by_stopping: bool, leaving_s: int
) -> None:
    press(pressed)
    for name in wanted(pressed.tick(MEMORY_SLO, pods=PODS)):
        pressed.round.evicted(pressed.now_s, name, by_stopping=by_stopping)
    answered_s = pressed.now_s
    chosen: list[str] = []
    while not chosen:
        press(pressed)
        chosen = wanted(pressed.tick(MEMORY_SLO, pods=PODS))
    assert chosen == ["first", "second"]
    assert leaving_s <= pressed.now_s - answered_s <= leaving_s + 2


def test_a_pod_that_may_not_go_lets_the_next_one_be_chosen(pressed: RunnerFixture) -> None:
    press(pressed)
    assert wanted(pressed.tick(MEMORY_SLO, pods=PODS)) == ["first", "second"]
    pressed.round.eviction_failed(pressed.now_s, "first", "disruption budget")
    pressed.round.evicted(pressed.now_s, "second")
    for _ in range(3):
        press(pressed)
        assert wanted(pressed.tick(MEMORY_SLO, pods=PODS)) == []  # the pause after an eviction
    for _ in range(2):
        press(pressed)
        chosen = wanted(pressed.tick(MEMORY_SLO, pods=PODS))
        if chosen:
            break
    assert chosen == ["third"]


def test_an_answer_that_never_comes_is_asked_for_again(pressed: RunnerFixture) -> None:
    press(pressed)
    assert wanted(pressed.tick(MEMORY_SLO, pods=PODS)) == ["first", "second"]
    pressed.world.clock.advance(60)
    press(pressed)
    assert wanted(pressed.tick(MEMORY_SLO, pods=PODS)) == ["first", "second"]


def test_safe_mode_evicts_nobody(pressed: RunnerFixture) -> None:
    press(pressed)
    ran = pressed.tick(MEMORY_SLO, pods=PODS, safe_mode=True)
    assert wanted(ran) == []
    assert of(ran, "memoryEvict").plan.effects != ()


# Settings that are kept in place ------------------------------------------------------------------------------------


def test_a_setting_that_nobody_asks_for_any_more_goes_back_to_what_it_was(tmp_path: Path) -> None:
    stage = RunnerFixture(tmp_path, 2, gates=frozenset({"CgroupReconcile"}))
    asks = msgspec.structs.replace(ls_pod(), annotations={A_MEMORY_QOS: '{"minLimitPercent":100,"wmarkRatio":95}'})
    stage.measure(100)
    stage.tick(NodeSLOSpec(), pods=(asks,))
    assert {stage.world.value(knob.MEMORY_MIN, group) for group in ("kubepods", LS_POD, LS_BOX)} == {str(GI)}
    stage.measure(100)
    stage.tick(NodeSLOSpec(), pods=(ls_pod(),))
    assert {stage.world.value(knob.MEMORY_MIN, group) for group in ("kubepods", LS_POD, LS_BOX)} == {"0"}


def test_idle_groups_stand_in_and_are_handed_over_to_another_policy(tmp_path: Path) -> None:
    stage = RunnerFixture(tmp_path, 2, gates=frozenset({"GroupIdentity"}))
    on = ResourceQOSStrategy(be_class=ResourceQOS(cpu_qos=CPUQOSConfig(enable=True)))
    weight = stage.world.value(knob.CPU_SHARES, BE_POD)
    stage.measure(100)
    stage.tick(NodeSLOSpec(resource_qos_strategy=on))
    assert (stage.world.value(knob.CPU_IDLE, BE_POD), stage.world.value(knob.CPU_IDLE, TOP)) == ("1", "0")
    other = msgspec.structs.replace(on, policies=ResourceQOSPolicies(cpu_policy="coreSched"))
    stage.world.clock.advance(10)
    stage.measure(100)
    stage.tick(NodeSLOSpec(resource_qos_strategy=other))
    assert stage.world.value(knob.CPU_IDLE, BE_POD) == "0"
    assert stage.world.value(knob.CPU_SHARES, BE_POD) == weight
    # Nobody owns the files now: whoever comes next may take them.
    assert not any(key[0] == knob.CPU_IDLE for key in stage.world.executor.owners)


def test_disk_limits_of_a_disk_that_cannot_be_found_stay(tmp_path: Path) -> None:
    stage = RunnerFixture(tmp_path, 1, gates=frozenset({"BlkIOReconcile"}))
    machine = _WithDisk(stage.world.tree, stage.world.executor, may_write=False, resctrl=False, disks=False)
    stage.round = StrategyRunner(machine, stage.store, frozenset({"BlkIOReconcile"}))

    def limited(name: str) -> NodeSLOSpec:
        block = BlockConfig(name=name, type="device", io_cfg=IOConfig(read_iops=100))
        classes = ResourceQOS(blkio_qos=BlkIOQOSConfig(enable=True, blocks=(block,)))
        return NodeSLOSpec(resource_qos_strategy=ResourceQOSStrategy(be_class=classes))

    for name, limit in (("/dev/vda", "253:0 100"), ("/dev/gone", "253:0 100")):
        stage.measure(100)
        stage.tick(limited(name))
        assert stage.world.machine.text(knob.READ_IOPS, TOP) == limit
    stage.measure(100)
    stage.tick(NodeSLOSpec())
    assert stage.world.machine.text(knob.READ_IOPS, TOP) == ""


class _WithDisk(HostMachine):
    @property
    def shape(self) -> MachineShape:
        return msgspec.structs.replace(super().shape, disks=BlockDevices(disks={"/dev/vda": "253:0"}))


def test_be_work_that_starves_loses_its_least_important_pod(tmp_path: Path) -> None:
    stage = RunnerFixture(tmp_path, gates=GATES | {"BECPUEvict"})
    spec = NodeSLOSpec(
        resource_used_threshold_with_be=ResourceThresholdStrategy(
            enable=True,
            cpu_evict_be_satisfaction_lower_percent=30,
            cpu_evict_be_satisfaction_upper_percent=40,
            cpu_evict_time_window_seconds=10,
        )
    )
    chosen: list[str] = []
    for _ in range(25):
        stage.measure(3_000, {"first": 500, "second": 450})
        for name, milli in (
            (metric_kind.BE_USAGE, 950),
            (metric_kind.BE_REQUEST, 4_000),
            (metric_kind.BE_REAL_LIMIT, 1_000),
        ):
            stage.store.add((metric_kind.NODE_BE, name), stage.now_s, milli)
        chosen += wanted(stage.tick(spec, pods=PODS))
    # They may use 1000m of 4000m: below 30%, so 600m of requests must go, and the first pod asks for 1000m.
    assert chosen == ["first"]


def test_lending_nothing_for_a_moment_evicts_nobody(tmp_path: Path) -> None:
    stage = RunnerFixture(tmp_path, gates=GATES | {"CPUAllocatableEvict"})
    spec = NodeSLOSpec(
        resource_used_threshold_with_be=ResourceThresholdStrategy(
            enable=True,
            cpu_allocatable_evict_threshold_percent=100,
            cpu_allocatable_evict_lower_percent=90,
            allocatable_evict_priority_threshold=5_999,
        )
    )
    agreed = tuple(msgspec.structs.replace(one, labels={**one.labels, L_EVICTION_ENABLED: TRUE}) for one in PODS)
    chosen: list[str] = []
    for second in range(100):
        stage.measure(100, {"first": 10, "second": 10, "third": 10})
        chosen += wanted(stage.tick(spec, pods=agreed))
        assert second >= 59 or chosen == []  # a kubelet that registers anew shows nothing for a moment
    assert sorted(chosen) == ["first", "second", "third"]


def _count_ticks(inputs: StrategyInputs) -> int:
    return int(inputs.states.get("Counting", 0))


def _write_count(ticks: int) -> StrategyPlan:
    """Write the number of earlier ticks as shares, and nothing in the third tick."""
    write = WriteCgroup(
        group=TOP, file=knob.CPU_SHARES, value=str(1000 * (ticks + 1)), owner="Counting", cause="Test", why="1 + 1"
    )
    return StrategyPlan(effects=(write,) if ticks < 2 else (), complete=True, state=ticks + 1)


COUNTING = StrategyEntry(
    name="Counting",
    gates=("Counting",),
    observe=_count_ticks,
    decide=_write_count,
    files=(knob.CPU_SHARES,),
    restores=("Counting",),
)


def test_a_row_is_all_that_a_new_strategy_needs(stage: RunnerFixture) -> None:
    original = stage.world.value(knob.CPU_SHARES, TOP)
    runner = StrategyRunner(stage.machine, stage.store, frozenset({"Counting"}), strategies=(COUNTING,))
    seen: list[str] = []
    for _ in range(3):
        stage.measure(1_000)
        ran = runner.tick(stage.now_s, stage.node_inputs(None))
        assert [(one.strategy, one.error) for one in ran] == [("Counting", None)]
        seen.append(stage.world.value(knob.CPU_SHARES, TOP))
    assert len({original, *seen}) == 3
    assert seen[2] == original  # a complete plan that does not name a file restores it


def test_the_row_of_a_disabled_strategy_says_what_is_restored(stage: RunnerFixture) -> None:
    original = stage.world.value(knob.CPU_SHARES, TOP)
    stage.measure(1_000)
    StrategyRunner(stage.machine, stage.store, frozenset({"Counting"}), strategies=(COUNTING,)).tick(
        stage.now_s, stage.node_inputs(None)
    )
    assert stage.world.value(knob.CPU_SHARES, TOP) != original
    ran = StrategyRunner(stage.machine, stage.store, frozenset(), strategies=(COUNTING,)).tick(
        stage.now_s, stage.node_inputs(None)
    )
    assert [one.plan.why for one in ran] == ["its gate is off"]
    assert stage.world.value(knob.CPU_SHARES, TOP) == original


def test_an_idle_cpuset_makes_be_pods_idle_and_gives_both_back(stage: RunnerFixture) -> None:
    stage.start(GATES | {"GroupIdentity"})
    used = {"ls": 1_000, "be": 900}
    for _ in range(3):
        stage.measure(2_000, used)
        stage.tick(suppress_by("idleCpuset"))
    assert stage.world.value(knob.CPU_IDLE, BE_POD) == "1"
    assert stage.world.value(knob.CPU_IDLE, TOP) == "0", "the kubelet writes the shares of this group"
    # 65 % of 4000m less 1100m is 1500m; others use 27 % of each CPU, and 1500 / 0.73 is two CPUs.
    assert stage.cpus(TOP) == stage.cpus(BE_BOX) == "0-1"
    assert stage.quota(TOP) == -1
    stage.measure(2_000, used)
    stage.tick(suppress_by("cpuset", enable=False))
    assert stage.world.value(knob.CPU_IDLE, BE_POD) == "0"
    assert stage.cpus(TOP) == "0-3"
