"""What must hold of the executor whatever is wanted, refused or removed meanwhile."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.host.cgroup.codec import fits
from koord.host.io_error import IoError
from koord.koordlet.cgroup_writer.effects import WriteOutcome
from koord.values.cpuset import CPUSet
from tests.koordlet.cgroup_writer.executor_fixture import FEW, TOP, ExecutorFixture, write

QUOTA, CPUS, LIMIT = "cpu.cfs_quota_us", "cpuset.cpus", "memory.limit_in_bytes"
GROUPS = [
    TOP,
    *(f"{TOP}/pod{pod}" for pod in "ab"),
    *(f"{TOP}/pod{pod}/{box}" for pod in "ab" for box in ("one", "two")),
]
CODES = [errno.EINVAL, errno.EBUSY, errno.EACCES, errno.ENOSPC, errno.ERANGE, errno.EIO, errno.EINTR, errno.ENOMEM]
VANISH = -1
Values = dict[str, str]


def parent(group: str) -> str:
    return group.rpartition("/")[0]


@st.composite
def quotas(draw: st.DrawFn) -> Values:
    """Quotas that fit: a child's is no limit or within that of the nearest parent that has one."""
    found: Values = {}
    room: dict[str, int] = {parent(TOP): 400_000}
    for group in GROUPS:
        above = room[parent(group)]
        quota = draw(st.one_of(st.just(-1), st.integers(1_000, above)))
        found[group], room[group] = str(quota), above if quota < 0 else quota
    return found


@st.composite
def cpusets(draw: st.DrawFn) -> Values:
    found: Values = {}
    room = {parent(TOP): list(range(4))}
    for group in GROUPS:
        room[group] = draw(st.lists(st.sampled_from(room[parent(group)]), min_size=1, unique=True))
        found[group] = str(CPUSet.of(room[group]))
    return found


@contextmanager
def fresh(version: int, *, journal: bool = False) -> Iterator[ExecutorFixture]:
    with tempfile.TemporaryDirectory() as folder:
        world = ExecutorFixture(Path(folder), version, journal=journal, only=FEW)
        for pod in "ab":
            world.machine.pod(BEST_EFFORT, pod, "containerd://one", "containerd://two")
        yield world


def guard(world: ExecutorFixture, knob: str) -> None:
    """After every single write each child fits in each of its parents."""
    place = world.tree.knob_file(knob)
    assert place is not None

    def check() -> None:
        fields = {group: world.tree.read(knob, group) for group in GROUPS}
        shown = {
            group: place.codec.extract(text, "") or ""
            for group, text in fields.items()
            if not isinstance(text, IoError)
        }
        for child, field in shown.items():
            for above in GROUPS:
                if child.startswith(f"{above}/") and above in shown:
                    assert fits(place.order, field, shown[above]), (child, field, above, shown[above])

    world.kernel.after_write = check


@given(version=st.sampled_from([1, 2]), before=quotas(), after=quotas(), order=st.permutations(GROUPS))
@settings(max_examples=40, deadline=None)
def test_quotas_change_without_a_child_above_its_parent(
    version: int, before: Values, after: Values, order: list[str]
) -> None:
    with fresh(version) as world:
        guard(world, QUOTA)
        for wanted in (before, after):
            statuses = world.do(*(write(QUOTA, group, wanted[group]) for group in order))
            assert set(statuses) <= {WriteOutcome.WRITTEN, WriteOutcome.SAME, WriteOutcome.FRESH}
            assert {group: world.value(QUOTA, group) for group in GROUPS} == wanted


@given(version=st.sampled_from([1, 2]), before=cpusets(), after=cpusets(), order=st.permutations(GROUPS))
@settings(max_examples=40, deadline=None)
def test_cpusets_change_without_a_child_outside_its_parent(
    version: int, before: Values, after: Values, order: list[str]
) -> None:
    with fresh(version) as world:
        guard(world, CPUS)
        for wanted in (before, after):
            statuses = world.do(*(write(CPUS, group, wanted[group]) for group in order))
            assert set(statuses) <= {WriteOutcome.WRITTEN, WriteOutcome.SAME, WriteOutcome.FRESH}
            assert {group: world.value(CPUS, group) for group in GROUPS} == wanted


@given(
    version=st.sampled_from([1, 2]),
    before=quotas(),
    after=quotas(),
    troubles=st.lists(st.sampled_from([None, None, *CODES, VANISH]), max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_refusals_and_removals_never_raise_never_break_the_rule_and_heal(
    version: int, before: Values, after: Values, troubles: list[int | None]
) -> None:
    with fresh(version) as world:
        world.do(*(write(QUOTA, group, before[group]) for group in GROUPS))
        guard(world, QUOTA)
        left = list(troubles)

        def trouble(path: str, text: str) -> int | None:
            code = left.pop() if left else None
            if code == VANISH:
                world.machine.remove(f"{TOP}/podb")
                return errno.ENODEV
            return code

        world.kernel.trouble = trouble
        wanted = [write(QUOTA, group, after[group]) for group in GROUPS]
        while left:
            world.do(*wanted)
            world.clock.advance(700)
            left[:] = left[:-1]  # rounds that write nothing use troubles up, too
        world.kernel.trouble = None
        for _ in range(2):  # what was held in the first round goes in the second
            world.do(*wanted)
            world.clock.advance(700)
        for group in GROUPS:
            if (
                world.kernel.is_folder(world.tree.group_path("cpu", group))
                and QUOTA not in world.executor.disabled_knobs
            ):
                assert world.value(QUOTA, group) == after[group]


@given(
    version=st.sampled_from([1, 2]),
    rounds=st.lists(st.tuples(quotas(), cpusets(), st.booleans()), min_size=1, max_size=4),
)
@settings(max_examples=40, deadline=None)
def test_restoring_gives_the_original_tree_back_whatever_was_done(
    version: int, rounds: list[tuple[Values, Values, bool]]
) -> None:
    with fresh(version, journal=True) as world:
        original = world.machine.snapshot()
        for quota, cpus, restarted in rounds:
            if restarted:
                world.start()
            world.do(*(write(QUOTA, group, value, owner="quota") for group, value in quota.items()))
            world.do(*(write(CPUS, group, value, owner="cpus") for group, value in cpus.items()))
        world.executor.restore()
        assert world.machine.snapshot() == original
        assert len(world.journal) == 0


@given(version=st.sampled_from([1, 2]), limits=st.lists(st.integers(4096, 1 << 40) | st.just(-1), max_size=6))
@settings(max_examples=40, deadline=None)
def test_memory_limits_with_swap_limits_come_back(version: int, limits: list[int]) -> None:
    with fresh(version) as world:
        group = GROUPS[-1]
        if version == 1:
            for name in (LIMIT, "memory.memsw.limit_in_bytes"):
                Path(world.tree.group_path("memory", group), name).write_text("67108864\n")
        original = world.machine.snapshot()
        for limit in limits:
            assert world.do(write(LIMIT, group, str(limit)))[0] in (
                WriteOutcome.WRITTEN,
                WriteOutcome.SAME,
                WriteOutcome.FRESH,
            )
        world.executor.release("tester")
        assert world.machine.snapshot() == original


@st.composite
def bursts(draw: st.DrawFn) -> tuple[int, int]:
    """A quota and a burst that a mainline kernel takes beside it."""
    quota = draw(st.integers(1_000, 400_000) | st.just(-1))
    return quota, draw(st.integers(0, 400_000 if quota < 0 else quota))


@given(version=st.sampled_from([1, 2]), pairs=st.lists(bursts(), min_size=1, max_size=6), swapped=st.booleans())
@settings(max_examples=40, deadline=None)
def test_quota_and_burst_always_reach_their_values_in_one_batch(
    version: int, pairs: list[tuple[int, int]], swapped: bool
) -> None:
    with fresh(version) as world:
        group = GROUPS[-1]
        for quota, burst in pairs:
            batch = [write(QUOTA, group, str(quota)), write("cpu.cfs_burst_us", group, str(burst))]
            statuses = world.do(*(reversed(batch) if swapped else batch))
            assert set(statuses) <= {WriteOutcome.WRITTEN, WriteOutcome.SAME, WriteOutcome.FRESH}
            assert (world.value(QUOTA, group), world.value("cpu.cfs_burst_us", group)) == (str(quota), str(burst))
