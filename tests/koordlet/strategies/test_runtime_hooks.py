"""The reconciler of runtime hooks on a fake kernel: what it writes, what it gives back, and who owns which file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import A_RESOURCE_STATUS, L_QOS_CLASS
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY
from koord.api.koordinator.slo import NodeSLOSpec
from koord.host.cgroup import knob
from koord.koordlet.cgroup_writer.effects import FileWriteResult, WriteOutcome
from koord.koordlet.inputs.node_inputs import KubeletCpuManager, NodeProperties
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies import file_ownership
from koord.koordlet.strategies.runner import StrategyResult
from koord.koordlet.strategies.runtime_hooks import NAME, RuntimeHooksState
from tests.koordlet.cgroup_writer.executor_fixture import FEW
from tests.koordlet.strategies.builders import pod
from tests.koordlet.strategies.runner_fixture import (
    BE_BOX,
    BE_POD,
    GATES,
    LS_BOX,
    LS_POD,
    NODE,
    RunnerFixture,
    be_pod,
    burst_by,
    ls_pod,
    suppress_by,
)

MI = 2**20
EXTENDED = "node.koordinator.sh/extended-resource-spec"
HOOKS = frozenset({"BatchResource", "CPUSetAllocator", "CPUNormalization"})
ALL_GATES = GATES | HOOKS
KNOBS = (knob.CPU_SHARES, knob.CPU_QUOTA, knob.MEMORY_LIMIT, knob.CPUSET, knob.CPU_BURST)
QUIET = NodeSLOSpec()


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> RunnerFixture:
    return RunnerFixture(tmp_path, request.param, gates=ALL_GATES)


def batch_pod(milli: int | None, memory_mi: int = 64) -> PodMeta:
    if milli is None:
        return be_pod()
    own = {BATCH_CPU: str(milli), BATCH_MEMORY: f"{memory_mi}Mi"}
    text = json.dumps({"containers": {"c": {"requests": own, "limits": own}}})
    return msgspec.structs.replace(be_pod(), annotations={EXTENDED: text})


def service_pod(qos: str = "LS", cpuset: str = "") -> PodMeta:
    status = {A_RESOURCE_STATUS: json.dumps({"cpuset": cpuset})} if cpuset else {}
    return msgspec.structs.replace(ls_pod(), labels={L_QOS_CLASS: qos} if qos else {}, annotations=status)


def faster(ratio: float | None) -> NodeProperties:
    if ratio is None:
        return NODE
    return msgspec.structs.replace(NODE, normalization_ratio=ratio, has_normalization_ratio=True)


def batch_values(stage: RunnerFixture) -> list[tuple[str, str, str]]:
    knobs = (knob.CPU_SHARES, knob.CPU_QUOTA, knob.MEMORY_LIMIT)
    return [tuple(stage.world.value(name, group) for name in knobs) for group in (BE_POD, BE_BOX)]  # type: ignore[misc]


def tick(stage: RunnerFixture, *pods: PodMeta, spec: NodeSLOSpec = QUIET, **changes: Any) -> tuple[StrategyResult, ...]:
    stage.measure(100)
    return stage.tick(spec, pods=pods, **changes)


def shares(stage: RunnerFixture, value: int) -> str:
    """The shares as they read back: a weight of version 2 loses digits."""
    if stage.world.machine.version == 1:
        return str(value)
    return str(knob_round_trip(value))


def knob_round_trip(value: int) -> int:
    weight = 1 + (value - 2) * 9_999 // 262_142
    return (weight - 1) * 262_142 // 9_999 + 2


def test_batch_amounts_rise_and_fall_in_one_round_over_pod_and_container(stage: RunnerFixture) -> None:
    for milli, memory in ((500, 64), (800, 128), (300, 32), (2000, 256)):
        ran = tick(stage, batch_pod(milli, memory))
        wanted = (shares(stage, milli * 1024 // 1000), str(milli * 100), str(memory * MI))
        assert batch_values(stage) == [wanted, wanted]
        hooks = next(one for one in ran if one.strategy == NAME)
        assert all(result.is_settled for result in hooks.results)


def test_without_its_annotation_a_batch_pod_has_what_the_kubelet_gives(stage: RunnerFixture) -> None:
    tick(stage, batch_pod(500))
    tick(stage, batch_pod(None))
    assert batch_values(stage) == [("2", "-1", "-1")] * 2
    assert [one for one in stage.world.journal if one.owner == "BatchResource"] == []


def test_drift_is_repaired_within_one_period(stage: RunnerFixture) -> None:
    wanted = batch_pod(500)
    tick(stage, wanted)
    right = batch_values(stage)
    for _ in range(12):
        tick(stage, wanted)
    path = Path(stage.world.tree.group_path("cpu", BE_BOX))
    name = "cpu.shares" if stage.world.machine.version == 1 else "cpu.weight"
    assert stage.world.kernel.write(str(path / name), "2") is None
    for _ in range(10):
        tick(stage, wanted)
    assert batch_values(stage) == right


def test_unchanged_pods_are_not_decided_again(stage: RunnerFixture) -> None:
    wanted = batch_pod(500)
    tick(stage, wanted)
    first = stage.round.state_of(NAME)
    for _ in range(11):
        tick(stage, wanted)
    second = stage.round.state_of(NAME)
    assert isinstance(first, RuntimeHooksState)
    assert second is not first
    assert second.pods["be"] is first.pods["be"]


def test_hooks_run_at_once_when_pods_change_and_otherwise_once_a_period(stage: RunnerFixture) -> None:
    one, other = batch_pod(500), batch_pod(600)
    runs = [NAME in {ran.strategy for ran in tick(stage, seen)} for seen in (one, one, one, other, other)]
    assert runs == [True, False, False, True, False]


class TestPinnedPods:
    @pytest.mark.parametrize("qos", ["LSR", ""])
    def test_quota_goes_and_comes_back_with_the_annotation(self, stage: RunnerFixture, qos: str) -> None:
        for cpuset in ("1", "", "2", ""):
            for _ in range(2):
                tick(stage, service_pod(qos, cpuset), spec=burst_by("cpuBurstOnly"))
            quota = -1 if cpuset else 100_000
            assert (stage.quota(LS_POD), stage.quota(LS_BOX)) == (quota, quota)
            assert stage.cpus(LS_BOX) == (cpuset or "0-3")
            burst = stage.world.value(knob.CPU_BURST, LS_BOX)
            assert burst == ("0" if cpuset or qos == "LSR" else "100000")

    def test_a_container_that_started_pinned_gets_its_limit_back(self, stage: RunnerFixture) -> None:
        for group in (LS_BOX, LS_POD):
            path = Path(stage.world.tree.group_path("cpu", group))
            name, text = ("cpu.cfs_quota_us", "-1") if stage.world.machine.version == 1 else ("cpu.max", "max")
            assert stage.world.kernel.write(str(path / name), text) is None
        tick(stage, service_pod("LSR", "1"))
        tick(stage, service_pod("LSR"))
        assert (stage.quota(LS_POD), stage.quota(LS_BOX)) == (100_000, 100_000)

    def test_other_pods_leave_its_cpus(self, stage: RunnerFixture) -> None:
        pinned = pod("own", "LSR", cpuset="3")
        tick(stage, service_pod(), pinned)
        assert stage.cpus(LS_BOX) == "0-2"
        tick(stage, service_pod())
        assert stage.cpus(LS_BOX) == "0-3"

    def test_an_unreadable_annotation_leaves_all_as_it_is(self, stage: RunnerFixture) -> None:
        tick(stage, service_pod("LSR", "1"))
        broken = msgspec.structs.replace(service_pod("LSR"), annotations={A_RESOURCE_STATUS: "{"})
        ran = tick(stage, broken)
        assert (stage.quota(LS_POD), stage.quota(LS_BOX), stage.cpus(LS_BOX)) == (-1, -1, "1")
        assert A_RESOURCE_STATUS in next(one.plan.why for one in ran if one.strategy == NAME)


class TestNormalization:
    @pytest.mark.parametrize("policy", ["none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto"])
    def test_bursts_start_from_the_normalized_quota_and_nobody_fights(self, stage: RunnerFixture, policy: str) -> None:
        for ratio, quota in ((1.2, 83_334), (2.0, 50_000), (None, 100_000), (1.2, 83_334)):
            for _ in range(3):
                tick(stage, service_pod(), spec=burst_by(policy), node=faster(ratio))
                assert (stage.quota(LS_POD), stage.quota(LS_BOX)) == (quota, quota)

    def test_without_bursts_the_hook_writes_it(self, stage: RunnerFixture) -> None:
        stage.start(HOOKS)
        for ratio, quota in ((1.2, 83_334), (None, 100_000)):
            tick(stage, service_pod(), node=faster(ratio))
            assert (stage.quota(LS_POD), stage.quota(LS_BOX)) == (quota, quota)

    def test_gates_that_change_hand_the_quota_over(self, stage: RunnerFixture) -> None:
        for gates in (ALL_GATES, HOOKS, ALL_GATES, GATES, HOOKS):
            stage.start(gates)
            for _ in range(2):
                tick(stage, service_pod(), spec=burst_by("none"), node=faster(1.2))
            quota = 100_000 if gates == GATES else 83_334
            assert (stage.quota(LS_POD), stage.quota(LS_BOX)) == (quota, quota)


def test_suppression_by_quota_takes_the_quotas_of_batch_pods_off(stage: RunnerFixture) -> None:
    tick(stage, batch_pod(500))
    for _ in range(3):
        tick(stage, batch_pod(500), spec=suppress_by("cfsQuota"))
    assert [stage.quota(group) for group in (BE_POD, BE_BOX)] == [-1, -1]
    assert stage.quota("kubepods/besteffort") > 0
    tick(stage, batch_pod(500))
    tick(stage, batch_pod(500))
    assert [stage.quota(group) for group in (BE_POD, BE_BOX)] == [50_000, 50_000]


def test_no_quota_is_refused_while_suppression_by_quota_comes_and_goes(stage: RunnerFixture) -> None:
    """On version 1 a pod may not have more than all of them together, which suppression lifts after hooks decided."""
    refused: list[FileWriteResult] = []
    for spec in (QUIET, suppress_by("cfsQuota"), suppress_by("cfsQuota"), QUIET, QUIET):
        for ran in tick(stage, batch_pod(5_000), spec=spec):
            refused += [one for one in ran.results if one.status is WriteOutcome.REJECTED]
    assert refused == []
    assert stage.quota("kubepods/besteffort") == -1
    assert [stage.quota(group) for group in (BE_POD, BE_BOX)] == [500_000, 500_000]


class TestRestart:
    def test_values_stay_until_node_and_slo_are_seen_again(self, stage: RunnerFixture) -> None:
        tick(stage, batch_pod(500), service_pod("LSR", "1"))
        before = {name: stage.world.value(name, group) for name in KNOBS for group in (BE_POD, BE_BOX, LS_POD, LS_BOX)}
        stage.start(ALL_GATES)
        stage.measure(100)
        pods = (batch_pod(500), service_pod("LSR", "1"))
        stage.round.tick(stage.now_s, stage.node_inputs(None, node=None, pods=pods, earlier_writes=True))
        after = {name: stage.world.value(name, group) for name in KNOBS for group in (BE_POD, BE_BOX, LS_POD, LS_BOX)}
        assert after == before

    def test_cpus_stay_until_the_kubelet_told_whether_it_binds_any(self, stage: RunnerFixture) -> None:
        pinned = pod("own", "LSR", cpuset="3")
        tick(stage, service_pod(), pinned)
        stage.start(ALL_GATES)
        tick(stage, service_pod(), pinned, kubelet=KubeletCpuManager(known=False))
        assert stage.cpus(LS_BOX) == "0-2"

    def test_hooks_whose_gate_is_off_give_all_back(self, stage: RunnerFixture) -> None:
        tick(stage, batch_pod(500), service_pod("LSR", "1"))
        stage.start(GATES)
        tick(stage, batch_pod(500), service_pod("LSR", "1"))
        assert batch_values(stage) == [("2", "-1", "-1")] * 2
        assert (stage.quota(LS_POD), stage.quota(LS_BOX), stage.cpus(LS_BOX)) == (100_000, 100_000, unbound(stage))

    def test_restore_undoes_every_file(self, stage: RunnerFixture) -> None:
        before = stage.world.machine.snapshot()
        tick(stage, batch_pod(500), service_pod("LSR", "1"))
        stage.start(ALL_GATES)
        stage.world.executor.restore()
        after = stage.world.machine.snapshot()
        assert batch_values(stage) == [("2", "-1", "-1")] * 2
        changed = {path for path in before if before[path] != after[path] and "besteffort" not in path}
        assert changed == set(), "a pod with requests has exactly what it had"


def unbound(stage: RunnerFixture) -> str:
    return "0-3" if stage.world.machine.version == 1 else ""


class TestStartingPods:
    def test_a_pod_of_which_only_the_runtime_told_is_kept(self, stage: RunnerFixture) -> None:
        starting = msgspec.structs.replace(batch_pod(500), containers=(), phase="Pending")
        tick(stage, starting=(starting,))
        pod_quota = stage.quota(BE_POD)
        for _ in range(12):
            tick(stage, starting=(starting,))
        assert stage.quota(BE_POD) == pod_quota == 50_000
        tick(stage, batch_pod(500))
        tick(stage, batch_pod(None))
        assert batch_values(stage) == [("2", "-1", "-1")] * 2


def test_safe_mode_decides_and_writes_nothing(stage: RunnerFixture) -> None:
    before = stage.world.machine.snapshot()
    ran = tick(stage, batch_pod(500), safe_mode=True)
    assert next(one for one in ran if one.strategy == NAME).plan.effects
    assert stage.world.machine.snapshot() == before


_PODS = st.tuples(
    st.sampled_from([None, (500, 64), (800, 128), (300, 32)]),
    st.sampled_from(["", "1", "2-3"]),
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pods"), _PODS),
        st.tuples(st.just("ratio"), st.sampled_from([None, 1.2, 2.0])),
        st.tuples(st.just("burst"), st.sampled_from(["none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto"])),
        st.tuples(st.just("gates"), st.sampled_from([ALL_GATES, HOOKS, GATES, ALL_GATES - {"BatchResource"}])),
        st.tuples(st.just("wait"), st.integers(1, 12)),
    ),
    max_size=7,
)


class _Node:
    """What a story of changes leads to."""

    def __init__(self, stage: RunnerFixture, qos: str) -> None:
        self.stage = stage
        self.qos = qos
        self.batch: tuple[int, int] | None = None
        self.cpuset = ""
        self.ratio: float | None = None
        self.burst = "none"
        self.gates = ALL_GATES

    def step(self, what: str, value: Any) -> None:
        if what == "pods":
            self.batch, self.cpuset = value
        elif what == "ratio":
            self.ratio = value
        elif what == "burst":
            self.burst = value
        elif what == "gates":
            self.gates = value
            self.stage.start(value)
        self.run(value if what == "wait" else 1)

    def run(self, seconds: int) -> None:
        pods = (batch_pod(None) if self.batch is None else batch_pod(*self.batch), service_pod(self.qos, self.cpuset))
        for _ in range(seconds):
            tick(self.stage, *pods, spec=burst_by(self.burst), node=faster(self.ratio))

    def values(self) -> dict[tuple[str, str], str]:
        groups = (BE_POD, BE_BOX, LS_POD, LS_BOX)
        return {(name, group): self.stage.world.value(name, group) for name in KNOBS for group in groups}


@given(version=st.sampled_from([1, 2]), qos=st.sampled_from(["LS", "LSR", ""]), steps=_STEPS)
@example(version=1, qos="", steps=[("burst", "cpuBurstOnly"), ("pods", (None, "1")), ("pods", (None, ""))])
@settings(max_examples=60, deadline=None)
def test_any_story_ends_where_a_fresh_start_would(version: int, qos: str, steps: Sequence[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as lived, tempfile.TemporaryDirectory() as fresh:
        node = _Node(_kubelet_made(Path(lived), version), qos)
        for what, value in steps:
            node.step(what, value)
        node.run(3)
        other = _Node(_kubelet_made(Path(fresh), version), qos)
        other.batch, other.cpuset, other.ratio, other.burst = node.batch, node.cpuset, node.ratio, node.burst
        other.gates = node.gates
        other.stage.start(node.gates)
        other.run(3)
        assert node.values() == other.values()


def _kubelet_made(root: Path, version: int) -> RunnerFixture:
    """A node whose groups hold what a kubelet gives by the specs of the two pods."""
    stage = RunnerFixture(root, version, gates=ALL_GATES, only=FEW)
    name, texts = ("cpu.shares", ("2", "1024")) if version == 1 else ("cpu.weight", ("1", "39"))
    for groups, text in (((BE_POD, BE_BOX), texts[0]), ((LS_POD, LS_BOX), texts[1])):
        for group in groups:
            assert stage.world.kernel.write(f"{stage.world.tree.group_path('cpu', group)}/{name}", text) is None
    return stage


@pytest.mark.parametrize(
    ("qos", "cpuset", "gates", "owner"),
    [
        ("BE", "", ALL_GATES, "BatchResource"),
        ("BE", "1", ALL_GATES, "BatchResource"),
        ("LSR", "1", ALL_GATES, "CPUSetAllocator"),
        ("LSE", "", ALL_GATES, "CPUSetAllocator"),
        ("", "1", ALL_GATES, "CPUSetAllocator"),
        ("", "1", GATES, "CPUBurst"),
        ("", "", ALL_GATES, "CPUBurst"),
        ("LS", "1", ALL_GATES, "CPUBurst"),
        ("LS", "", HOOKS, "CPUNormalization"),
    ],
)
def test_the_quota_has_one_owner(qos: str, cpuset: str, gates: frozenset[str], owner: str) -> None:
    assert file_ownership.quota_owner(pod("x", qos, cpuset=cpuset), gates) == owner
