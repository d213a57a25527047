"""Whatever was switched on and off, killed, kept from a full disk or restarted: a restore gives the originals back."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koord.koordlet.cgroup_writer.effects import WriteOutcome
from tests.koordlet.cgroup_writer.executor_fixture import FEW, TOP, ExecutorFixture, write

POD, BOX = f"{TOP}/podx", f"{TOP}/podx/one"
OWNERS = {
    "identity": [("cpu.idle", "1"), ("cpu.idle", "0")],
    "batch": [("cpu.shares", "512"), ("cpu.shares", "2"), ("memory.limit_in_bytes", "33554432")],
    "suppress": [("cpu.cfs_quota_us", "50000"), ("cpuset.cpus", "0"), ("cpuset.cpus", "1-2")],
}


class Killed(BaseException):
    """Nothing catches this, as nothing catches SIGKILL."""


What = Literal["wants", "releases", "restores", "restarts", "fills", "empties"]


class Step(msgspec.Struct, frozen=True):
    """One thing that happens. `kill` is the number of writes after which the process dies in it, None for never."""

    what: What
    owner: str = "identity"
    wanted: tuple[tuple[str, str, str], ...] = ()
    kill: int | None = None


@st.composite
def steps(draw: st.DrawFn) -> Step:
    choices: list[What] = ["releases", "restores", "restarts", "fills", "empties"]
    what: What = draw(st.sampled_from(choices) | st.just("wants"))
    owner = draw(st.sampled_from(sorted(OWNERS)))
    files = st.tuples(st.sampled_from(OWNERS[owner]), st.sampled_from([TOP, POD, BOX]))
    wanted = tuple((knob, group, value) for (knob, value), group in draw(st.lists(files, max_size=3)))
    kill = draw(st.none() | st.integers(0, 8)) if what in ("wants", "releases", "restores") else None
    return Step(what, owner, wanted if what == "wants" else (), kill)


ON = Step("wants", "identity", (("cpu.idle", POD, "1"),))
OFF = Step("wants", "identity")
OFF_WITH_SHARES = Step("wants", "identity", (("cpu.idle", POD, "0"), ("cpu.shares", POD, "2")))


def take(world: ExecutorFixture, step: Step) -> None:
    """Let one thing happen. A process may die before any write of a cgroup file or of the journal."""
    left = -1 if step.kill is None else step.kill

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise Killed

    world.kernel.trouble, world.kernel.before_state_write = count, count
    with suppress(Killed):
        match step.what:
            case "wants":
                world.executor.reconcile(
                    (step.owner,), [write(knob, group, value, step.owner) for knob, group, value in step.wanted]
                )
            case "releases":
                world.executor.release(step.owner)
            case "restores":
                world.executor.restore()
            case "fills" | "empties":
                world.kernel.disk_full = step.what == "fills"
            case "restarts":
                pass
    world.clock.advance(1)
    if step.what == "restarts" or step.kill is not None:
        world.start()


# The version, what shares read as while a group is idle, and the shares of the pod. Since 6.12 those of a pod without
# requests read the same before it is idle and while it is.
KERNELS = [(1, "3", "77"), (1, "3", "3"), (2, "0", "77"), (2, "0", "1"), (2, "1", "77"), (2, "1", "1")]
V1, NEWER = KERNELS[0], KERNELS[-2]


@given(kernel=st.sampled_from(KERNELS), story=st.lists(steps(), max_size=8))
@example(kernel=V1, story=[ON, OFF_WITH_SHARES, ON])
@example(kernel=V1, story=[ON, OFF, ON])
@example(kernel=KERNELS[1], story=[ON])
@example(kernel=NEWER, story=[ON])
@example(kernel=NEWER, story=[ON, Step("wants", "batch", (("cpu.shares", POD, "512"),)), Step("restarts"), OFF, ON])
@example(kernel=KERNELS[-1], story=[ON])
@example(kernel=KERNELS[-1], story=[ON, OFF_WITH_SHARES])
@example(kernel=V1, story=[ON, Step("fills"), OFF, Step("restarts"), ON])
@settings(max_examples=150, deadline=None)
def test_a_restore_gives_every_original_back(kernel: tuple[int, str, str], story: list[Step]) -> None:
    version, idle_weight, pod_shares = kernel
    with tempfile.TemporaryDirectory() as folder:
        world = ExecutorFixture(Path(folder), version, journal=True, only=FEW)
        world.kernel.idle_weight = idle_weight
        world.machine.pod("BestEffort", "x", "containerd://one")
        for group, shares in ((TOP, "2"), (POD, pod_shares), (BOX, "88")):
            Path(world.tree.group_path("cpu", group), "cpu.shares" if version == 1 else "cpu.weight").write_text(shares)
        original = world.machine.snapshot()
        for step in story:
            take(world, step)
        world.kernel.trouble = world.kernel.before_state_write = None
        results = world.executor.restore()  # the disk may still be full: that must not be in the way
        assert {result.status for result in results} <= {WriteOutcome.WRITTEN, WriteOutcome.SAME}
        assert _stripped(world) == {path: text.strip() for path, text in original.items()}
        world.kernel.disk_full = False
        world.start()
        written = len(world.kernel.writes)
        assert {result.status for result in world.executor.restore()} <= {WriteOutcome.SAME}
        assert len(world.kernel.writes) == written, "a second restore writes nothing"
        assert len(world.journal) == 0


def _stripped(world: ExecutorFixture) -> dict[str, str]:
    return {path: text.strip() for path, text in world.machine.snapshot().items()}


@pytest.mark.parametrize("version", [1, 2])
def test_nothing_is_written_that_could_not_be_undone(version: int, tmp_path: Path) -> None:
    world = ExecutorFixture(tmp_path, version, journal=True, only=FEW)
    world.machine.pod("BestEffort", "x", "containerd://one")
    world.do(write("cpu.cfs_quota_us", BOX, "50000"))
    before = world.machine.snapshot()
    world.kernel.disk_full = True
    files = [("cpu.idle", POD, "1"), ("cpu.shares", BOX, "512"), ("memory.limit_in_bytes", BOX, "33554432")]
    results = world.executor.execute([write(knob, group, value) for knob, group, value in files])
    assert [result.status for result in results] == [WriteOutcome.FAILED] * 3
    assert all("is not in the journal" in result.detail for result in results)
    assert world.machine.snapshot() == before
    assert "No space left on device" in world.executor.journal_problem
    assert world.do(write("cpu.cfs_quota_us", BOX, "-1")) == [WriteOutcome.WRITTEN], "originals can be written"
    world.kernel.disk_full = False
    assert world.do(*(write(knob, group, value) for knob, group, value in files)) == [WriteOutcome.WRITTEN] * 3
    assert world.executor.journal_problem == ""


def test_a_full_disk_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = ExecutorFixture(tmp_path, 1, journal=True, only=FEW)
    world.machine.pod("BestEffort", "x", "containerd://one")
    world.kernel.disk_full = True
    for _ in range(3):
        world.do(write("cpu.shares", BOX, "512"), write("cpu.shares", POD, "512"))
        world.clock.advance(60)
    world.kernel.disk_full = False
    world.do(write("cpu.shares", BOX, "512"))
    assert [record.levelname for record in caplog.records if "journal" in record.message] == ["WARNING"]


def test_a_torn_line_costs_no_other(tmp_path: Path) -> None:
    world = ExecutorFixture(tmp_path, 1, journal=True, only=FEW)
    world.machine.pod("BestEffort", "x", "containerd://one")
    original = world.machine.snapshot()
    world.do(write("cpu.shares", BOX, "512"))
    path = Path(world.journal_path or "")
    path.write_text(path.read_text() + '{"knob":"cpu.sha')
    world.start()
    world.do(write("cpu.shares", POD, "512"))
    world.start()
    world.executor.restore()
    assert world.machine.snapshot() == original


def test_a_damaged_journal_is_kept_aside_and_one_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    world = ExecutorFixture(tmp_path, 1, journal=True, only=FEW)
    world.machine.pod("BestEffort", "x", "containerd://one")
    path = Path(world.journal_path or "")
    path.parent.mkdir()
    path.write_text("no journal at all\n")
    world.start()
    assert "no journal" in str(world.journal.io_error)
    assert world.do(write("cpu.shares", BOX, "512")) == [WriteOutcome.WRITTEN]
    assert path.with_name(f"{path.name}.damaged").read_text() == "no journal at all\n"
    path.unlink()
    path.mkdir()
    world.start()
    assert world.do(write("cpu.shares", POD, "512")) == [WriteOutcome.FAILED]
    assert path.is_dir()
