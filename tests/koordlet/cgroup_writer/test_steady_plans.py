"""A plan that is wanted again while all of it is right costs nothing, and never hides a change."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.host.cgroup.knob import CgroupFile
from koord.koordlet.cgroup_writer.effects import OwnerConflict, WriteOutcome
from tests.koordlet.cgroup_writer.executor_fixture import TOP, ExecutorFixture, write

QUOTA, SHARES = "cpu.cfs_quota_us", "cpu.shares"
POD, BOX = f"{TOP}/podx", f"{TOP}/podx/one"
PLAN = (write(QUOTA, POD, "50000"), write(QUOTA, BOX, "50000"), write(SHARES, BOX, "512"))


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ExecutorFixture:
    made = ExecutorFixture(tmp_path_factory.mktemp("world"), request.param, journal=True)
    made.machine.pod(BEST_EFFORT, "x", "containerd://one")
    return made


def overwrite(world: ExecutorFixture, knob: str, group: str, value: str) -> None:
    """Let somebody else write a file."""
    path, knob_file = world.tree.path(CgroupFile(knob, group)), world.tree.knob_file(knob)
    assert path is not None
    assert knob_file is not None
    field = knob_file.codec.encode(value)
    assert field is not None
    text = world.kernel.read(path)
    assert isinstance(text, str)
    assert world.kernel.write(path, knob_file.codec.render(text, "", field)) is None


def shares(world: ExecutorFixture) -> str:
    """Return the field of the file: version 2 has coarser numbers."""
    return world.value(SHARES, BOX)


def as_read(world: ExecutorFixture, value: str) -> str:
    knob_file = world.tree.knob_file(SHARES)
    assert knob_file is not None
    return knob_file.codec.decode(knob_file.codec.encode(value) or "")


def test_the_same_plan_is_the_same_result(world: ExecutorFixture) -> None:
    assert set(world.do(*PLAN)) == {WriteOutcome.WRITTEN}
    first = world.executor.execute(PLAN)
    again = world.executor.execute(list(PLAN))
    assert [one.status for one in again] == [WriteOutcome.FRESH] * 3
    assert again == first


def test_a_file_that_somebody_else_wrote_is_mended_when_it_is_due(world: ExecutorFixture) -> None:
    world.do(*PLAN)
    world.do(*PLAN)
    overwrite(world, SHARES, BOX, "1024")
    world.clock.advance(2)
    assert world.do(*PLAN)[2] is WriteOutcome.WRITTEN
    assert shares(world) == as_read(world, "512")


def test_another_owner_is_a_conflict_still(world: ExecutorFixture) -> None:
    world.do(*PLAN)
    world.do(*PLAN)
    world.executor.release("tester")
    world.do(write(SHARES, BOX, "256", "other"))
    with pytest.raises(OwnerConflict):
        world.do(*PLAN)


def test_a_complete_plan_that_names_less_restores_the_rest(world: ExecutorFixture) -> None:
    for _ in range(3):
        world.executor.reconcile(("tester",), PLAN)
    world.executor.reconcile(("tester",), PLAN[:2])
    assert shares(world) != as_read(world, "512")
    world.executor.reconcile(("tester",), PLAN)
    assert shares(world) == as_read(world, "512")


def test_kept_files_are_part_of_the_plan(world: ExecutorFixture) -> None:
    for _ in range(2):
        world.executor.reconcile(("tester",), PLAN)
    for _ in range(2):
        world.executor.reconcile(("tester",), PLAN[:2], kept=((BOX, SHARES),))
    assert shares(world) == as_read(world, "512")
    world.executor.reconcile(("tester",), PLAN[:2])
    assert shares(world) != as_read(world, "512")


STEP = st.one_of(
    st.tuples(st.just("plan"), st.sampled_from(["100", "200"]), st.sampled_from(["50000", "80000"])),
    st.tuples(st.just("part"), st.sampled_from(["100", "200"]), st.just("")),
    st.tuples(st.just("foreign"), st.sampled_from(["300", "400"]), st.just("")),
    st.tuples(st.just("wait"), st.sampled_from(["1", "5", "70"]), st.just("")),
)


@settings(max_examples=60)
@given(steps=st.lists(STEP, max_size=14), version=st.sampled_from([1, 2]))
def test_any_story_ends_with_the_wanted_values(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]], version: int
) -> None:
    root: Path = tmp_path_factory.mktemp("world")
    world = ExecutorFixture(root, version, journal=True)
    world.machine.pod(BEST_EFFORT, "x", "containerd://one")
    for what, value, quota in steps:
        if what == "plan":
            plan = (write(SHARES, BOX, value), write(QUOTA, POD, quota), write(QUOTA, BOX, quota))
            for _ in range(2):
                world.executor.reconcile(("tester",), plan)
        elif what == "part":
            world.executor.reconcile(("tester",), (write(SHARES, BOX, value),))
        elif what == "foreign":
            overwrite(world, SHARES, BOX, value)
        else:
            world.clock.advance(float(value))
    world.clock.advance(70)
    assert all(one.is_applied for one in world.executor.reconcile(("tester",), PLAN))
    assert (world.value(QUOTA, POD), world.value(QUOTA, BOX)) == ("50000", "50000")
    assert shares(world) == as_read(world, "512")
    world.executor.restore()
    assert len(world.journal) == 0
