"""A process killed before or after any single write is recovered: the next one restores the originals."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koord.koordlet.cgroup_writer.effects import WriteCgroup
from tests.koordlet.cgroup_writer.executor_fixture import FEW, TOP, ExecutorFixture, write

POD, BOX = f"{TOP}/podx", f"{TOP}/podx/one"
GROUPS = (TOP, POD, BOX)
_QUOTAS = [("cpu.cfs_quota_us", quota) for quota in ("-1", "50000", "90000")]
_CPUS = [("cpuset.cpus", cpus) for cpus in ("0", "1-2", "0-3")]
_MEMORY = [("memory.limit_in_bytes", limit) for limit in ("-1", "33554432", "134217728")]
_IDLE = [("cpu.idle", idle) for idle in ("0", "1")]
_SHARES = [("cpu.shares", shares) for shares in ("2", "512")]
_BURST = [("cpu.cfs_burst_us", burst) for burst in ("0", "50000")]
Kill = tuple[int, bool]


class Killed(BaseException):
    """Nothing catches this, as nothing catches SIGKILL."""


def _arm(world: ExecutorFixture, kill: Kill | None) -> None:
    """Die at a write: before it reaches the kernel, or right after."""
    left, after = kill if kill is not None else (-1, False)

    def count() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise Killed

    def before(path: str, text: str) -> int | None:
        if not after:
            count()
        return None

    world.kernel.trouble = before
    world.kernel.after_write = count if after else None


@st.composite
def batches(draw: st.DrawFn) -> list[WriteCgroup]:
    """Any values, fitting or not: what the kernel refuses must come back as well."""
    choices = draw(
        st.lists(
            st.tuples(
                st.sampled_from([*_QUOTAS, *_CPUS, *_MEMORY, *_IDLE, *_SHARES, *_BURST]), st.sampled_from(GROUPS)
            ),
            max_size=8,
        )
    )
    return [write(knob, group, value) for (knob, value), group in choices]


@given(
    version=st.sampled_from([1, 2]),
    rounds=st.lists(st.tuples(batches(), st.none() | st.tuples(st.integers(0, 6), st.booleans())), max_size=4),
    undoing=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=2),
)
@example(
    version=1, rounds=[([write("memory.limit_in_bytes", BOX, "33554432")], (0, True))], undoing=[]
)  # memsw follows
@settings(max_examples=100, deadline=None)
def test_whenever_it_is_killed_the_original_tree_comes_back(
    version: int, rounds: list[tuple[list[WriteCgroup], Kill | None]], undoing: list[Kill]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = ExecutorFixture(Path(folder), version, journal=True, only=FEW)
        world.machine.pod("BestEffort", "x", "containerd://one")
        _limit(world)
        original = world.machine.snapshot()
        for batch, kill in rounds:
            _arm(world, kill)
            with suppress(Killed):
                world.executor.execute(batch)
            world.clock.advance(1)
            if kill is not None:
                world.start()
        for kill in undoing:
            _arm(world, kill)
            with suppress(Killed):
                world.executor.restore()
            world.start()
        _arm(world, None)
        world.executor.restore()
        assert world.machine.snapshot() == original
        assert len(world.journal) == 0


def _limit(world: ExecutorFixture) -> None:
    """A container with limits, as a runtime makes it."""
    shares = world.tree.group_path("cpu", BOX)
    name = "cpu.shares" if world.machine.version == 1 else "cpu.weight"
    Path(shares, name).write_text("77\n")
    if world.machine.version == 1:
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
            Path(world.tree.group_path("memory", BOX), name).write_text("67108864\n")


@given(version=st.sampled_from([1, 2]), kills=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=3))
@settings(max_examples=40, deadline=None)
def test_killed_anywhere_the_originals_that_specs_tell_come_back(version: int, kills: list[Kill]) -> None:
    """A container started with some of its values, and gets others: all go back to what its spec says."""
    with tempfile.TemporaryDirectory() as folder:
        world = ExecutorFixture(Path(folder), version, journal=True, only=FEW)
        world.machine.pod("BestEffort", "x", "containerd://one")
        start = {"memory.limit_in_bytes": str(64 * 2**20), "cpu.cfs_quota_us": "50000"}
        for name, value in start.items():
            world.executor.execute([write(name, BOX, value, "runtime")])
        world.journal_path = str(Path(folder) / "agent.jsonl")
        world.start()
        wanted = [
            msgspec.structs.replace(write(name, group, value), original="-1")
            for name, value in start.items()
            for group in (POD, BOX)
        ]
        for kill in kills:
            _arm(world, kill)
            with suppress(Killed):
                world.executor.reconcile(("tester",), wanted, verify=True)
            world.start()
        _arm(world, None)
        world.executor.reconcile(("tester",), wanted, verify=True)
        assert {world.value(name, BOX) for name in start} == set(start.values())
        world.start()
        world.executor.restore()
        assert {world.value(name, group) for name in start for group in (POD, BOX)} == {"-1"}
        assert len(world.journal) == 0
