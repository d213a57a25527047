"""The TimeSlice strategy: decisions, and ticks on a fake machine with the slices of a kernel in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from koord.host.cgroup.knob import TASKS, CgroupFile
from koord.koordlet.cgroup_writer.effects import SetTimeSlice, WriteOutcome
from koord.koordlet.hook_calls.node_actions import undo_time_slices
from koord.koordlet.strategies.time_slice import LONG_NS, OWNER, TimeSliceView, decide_time_slice
from tests.koordlet.fake_time_slices import OWN_NS, FakeTimeSlices
from tests.koordlet.strategies.runner_fixture import BE_BOX, GATES, LS_BOX, RunnerFixture, suppress_by

USED = {"ls": 1_000, "be": 900}
SHORT_NS = 500_000  # somebody's own setting


def decided(view: TimeSliceView) -> dict[int, int]:
    plan = decide_time_slice(view)
    return {task: one.slice_ns for one in plan.effects if isinstance(one, SetTimeSlice) for task in one.tasks}


@pytest.mark.parametrize(
    ("view", "want"),
    [
        pytest.param(TimeSliceView(default_ns=OWN_NS, yielding={1: OWN_NS}), {}, id="no-node-slo"),
        pytest.param(TimeSliceView(wanted=True, yielding={1: 0}), {}, id="older-kernel"),
        pytest.param(
            TimeSliceView(
                wanted=True, default_ns=OWN_NS, yielding={1: OWN_NS, 2: LONG_NS, 3: SHORT_NS}, others={4: OWN_NS}
            ),
            {1: LONG_NS},
            id="wanted",
        ),
        pytest.param(
            TimeSliceView(wanted=True, default_ns=OWN_NS, others={4: LONG_NS, 5: SHORT_NS}), {4: 0}, id="no-longer-be"
        ),
        pytest.param(
            TimeSliceView(wanted=False, default_ns=OWN_NS, yielding={1: OWN_NS, 2: LONG_NS}, others={3: LONG_NS}),
            {2: 0, 3: 0},
            id="not-wanted",
        ),
    ],
)
def test_decisions(view: TimeSliceView, want: dict[int, int]) -> None:
    assert decided(view) == want


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> RunnerFixture:
    return RunnerFixture(tmp_path, request.param, gates=GATES | {"GroupIdentity"})


def give_slices(
    stage: RunnerFixture, slices: FakeTimeSlices, gates: frozenset[str] = GATES | {"GroupIdentity"}
) -> None:
    stage.slices = slices
    stage.start(gates)


def set_threads(stage: RunnerFixture, group: str, *threads: int) -> None:
    path = stage.world.tree.path(CgroupFile(TASKS, group))
    assert path is not None
    Path(path).write_text("".join(f"{one}\n" for one in threads))


def ticks(stage: RunnerFixture, policy: str, count: int = 3) -> None:
    for _ in range(count):
        stage.measure(2_000, USED)
        stage.tick(suppress_by(policy))


def test_be_threads_have_long_slices_while_the_policy_is_idle_cpuset(stage: RunnerFixture) -> None:
    slices = FakeTimeSlices()
    slices.slices = {11: OWN_NS, 12: OWN_NS, 13: SHORT_NS, 21: OWN_NS}
    give_slices(stage, slices)
    set_threads(stage, BE_BOX, 11, 12, 13, 99)  # 99 has ended since
    set_threads(stage, LS_BOX, 21)
    ticks(stage, "idleCpuset")
    assert slices.slices == {11: LONG_NS, 12: LONG_NS, 13: SHORT_NS, 21: OWN_NS}
    slices.slices[14] = OWN_NS  # a new thread of a shell that somebody opened in the pod
    set_threads(stage, BE_BOX, 11, 12, 13, 14)
    ticks(stage, "idleCpuset")
    assert slices.slices[14] == LONG_NS
    ticks(stage, "cpuset")
    assert slices.slices == {11: OWN_NS, 12: OWN_NS, 13: SHORT_NS, 14: OWN_NS, 21: OWN_NS}


def test_threads_are_not_looked_at_while_no_slice_is_long(stage: RunnerFixture) -> None:
    slices = FakeTimeSlices()
    slices.slices = {11: LONG_NS}
    give_slices(stage, slices)
    set_threads(stage, BE_BOX, 11)
    ticks(stage, "cpuset", 5)  # an earlier agent's slices are taken back first
    assert slices.slices == {11: OWN_NS}
    settled = slices.reads
    ticks(stage, "cpuset", 5)
    assert slices.reads == settled
    ticks(stage, "idleCpuset")
    assert slices.slices == {11: LONG_NS}


def test_slices_are_taken_back_when_suppression_is_switched_off(stage: RunnerFixture) -> None:
    slices = FakeTimeSlices()
    slices.slices = {11: LONG_NS}
    give_slices(stage, slices, frozenset({"GroupIdentity"}))
    set_threads(stage, BE_BOX, 11)
    ticks(stage, "idleCpuset")
    assert slices.slices == {11: OWN_NS}


def test_a_thread_that_refuses_is_told(stage: RunnerFixture) -> None:
    slices = FakeTimeSlices()
    slices.slices, slices.stubborn = {11: OWN_NS, 12: OWN_NS}, {11}
    give_slices(stage, slices)
    set_threads(stage, BE_BOX, 11, 12)
    stage.measure(2_000, USED)
    (told,) = (one for one in stage.tick(suppress_by("idleCpuset")) if one.strategy == OWNER)
    assert [(one.status, "11" in one.detail) for one in told.results] == [(WriteOutcome.FAILED, True)]
    assert slices.slices[12] == LONG_NS


def test_restore_gives_the_schedulers_own_slices_back(stage: RunnerFixture) -> None:
    slices = FakeTimeSlices()
    slices.slices = {11: LONG_NS, 12: SHORT_NS, 21: LONG_NS}
    set_threads(stage, BE_BOX, 11, 12)
    set_threads(stage, LS_BOX, 21)  # no pod that the agent gives long slices
    assert undo_time_slices(stage.world.tree, slices) == []
    assert slices.slices == {11: OWN_NS, 12: SHORT_NS, 21: LONG_NS}
