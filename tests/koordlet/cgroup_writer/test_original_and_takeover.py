"""Files whose original is known from elsewhere, files that change their owner, and files that are always read."""

from __future__ import annotations

import msgspec
import pytest

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.host.cgroup.knob import CgroupFile
from koord.koordlet.cgroup_writer.effects import OwnerConflict, WriteCgroup, WriteOutcome
from tests.koordlet.cgroup_writer.executor_fixture import TOP, ExecutorFixture, write

QUOTA, SHARES, CPUS = "cpu.cfs_quota_us", "cpu.shares", "cpuset.cpus"
LIMIT, SWAP = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
POD, BOX = f"{TOP}/podx", f"{TOP}/podx/one"
MI = 2**20


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ExecutorFixture:
    made = ExecutorFixture(tmp_path_factory.mktemp("world"), request.param, journal=True)
    made.machine.pod(BEST_EFFORT, "x", "containerd://one")
    return made


def hooked(knob: str, group: str, value: str, original: str | None, owner: str = "hook") -> WriteCgroup:
    others = tuple(one for one in ("hook", "pinning", "burst") if one != owner)
    return msgspec.structs.replace(write(knob, group, value, owner), original=original, takes_over=others)


def start_with(world: ExecutorFixture, knob: str, group: str, value: str) -> None:
    """Let the runtime make the group with a value, as it does when a hook asked for it."""
    path, knob_file = world.tree.path(CgroupFile(knob, group)), world.tree.knob_file(knob)
    assert path is not None
    assert knob_file is not None
    field = knob_file.codec.encode(value)
    assert field is not None
    assert world.kernel.write(path, knob_file.codec.render("", "", field)) is None
    world.kernel.writes.clear()


def test_the_original_of_a_container_that_started_with_its_value_comes_back(world: ExecutorFixture) -> None:
    start_with(world, QUOTA, BOX, "50000")
    wanted = hooked(QUOTA, BOX, "50000", "-1")
    assert world.do(wanted) == [WriteOutcome.SAME]
    assert world.kernel.writes == []
    world.executor.reconcile(("hook",), [])
    assert world.value(QUOTA, BOX) == "-1"
    assert len(world.journal) == 0


def test_a_process_that_is_killed_leaves_the_original_to_the_next(world: ExecutorFixture) -> None:
    start_with(world, SHARES, BOX, "512")
    world.do(hooked(SHARES, BOX, "512", "2"))
    world.start()
    assert [one.status for one in world.executor.restore()] == [WriteOutcome.WRITTEN]
    assert world.value(SHARES, BOX) == "2"


def test_a_spec_that_changes_changes_what_comes_back(world: ExecutorFixture) -> None:
    start_with(world, QUOTA, BOX, "20000")
    world.do(hooked(QUOTA, BOX, "-1", "20000"))
    world.clock.advance(61)
    world.do(hooked(QUOTA, BOX, "-1", "40000"))
    world.executor.reconcile(("hook",), [])
    assert world.value(QUOTA, BOX) == "40000"


def test_a_value_that_the_spec_gives_anyway_needs_no_entry(world: ExecutorFixture) -> None:
    start_with(world, QUOTA, BOX, "20000")
    assert world.do(hooked(QUOTA, BOX, "20000", "20000")) == [WriteOutcome.SAME]
    assert len(world.journal) == 0


def test_a_file_that_stays_right_adds_no_line_to_the_journal(world: ExecutorFixture) -> None:
    start_with(world, LIMIT, BOX, str(64 * MI))
    wanted = hooked(LIMIT, BOX, str(64 * MI), "-1")
    world.do(wanted)
    assert world.journal_path is not None
    text = world.kernel.read(world.journal_path)
    for _ in range(3):
        assert [one.status for one in world.executor.execute([wanted], verify=True)] == [WriteOutcome.SAME]
    assert world.kernel.read(world.journal_path) == text


def test_without_room_for_the_original_the_file_is_not_settled(world: ExecutorFixture) -> None:
    start_with(world, SHARES, BOX, "512")
    world.kernel.disk_full = True
    wanted = hooked(SHARES, BOX, "512", "2")
    assert world.do(wanted) == [WriteOutcome.FAILED]
    world.kernel.disk_full = False
    assert world.do(wanted) == [WriteOutcome.SAME]
    world.executor.restore()
    assert world.value(SHARES, BOX) == "2"


@pytest.mark.parametrize("grown", [32, 128])
def test_a_memory_limit_from_the_start_comes_off_with_its_swap_limit(world: ExecutorFixture, grown: int) -> None:
    start_with(world, LIMIT, BOX, str(64 * MI))
    if world.machine.version == 1:
        start_with(world, SWAP, BOX, str(64 * MI))
    world.do(hooked(LIMIT, BOX, str(64 * MI), "-1"))
    world.do(hooked(LIMIT, BOX, str(grown * MI), "-1"))
    assert world.value(LIMIT, BOX) == str(grown * MI)
    world.executor.reconcile(("hook",), [])
    assert world.value(LIMIT, BOX) == "-1"
    if world.machine.version == 1:
        assert world.value(SWAP, BOX) == "-1"
    assert len(world.journal) == 0


def test_a_limit_that_only_its_start_set_comes_off_without_a_trace(world: ExecutorFixture) -> None:
    start_with(world, LIMIT, BOX, str(64 * MI))
    if world.machine.version == 1:
        start_with(world, SWAP, BOX, str(64 * MI))
    world.do(hooked(LIMIT, BOX, str(64 * MI), "-1"))
    world.executor.reconcile(("hook",), [])
    assert world.value(LIMIT, BOX) == "-1"
    assert len(world.journal) == 0


class TestTakeover:
    def test_the_new_owner_keeps_the_original(self, world: ExecutorFixture) -> None:
        start_with(world, QUOTA, BOX, "20000")
        world.do(hooked(QUOTA, BOX, "24000", None, "burst"))
        assert world.do(hooked(QUOTA, BOX, "-1", None, "pinning")) == [WriteOutcome.WRITTEN]
        assert world.executor.owners[QUOTA, BOX, ""] == "pinning"
        assert world.executor.reconcile(("burst",), []) == []
        world.executor.reconcile(("pinning",), [])
        assert world.value(QUOTA, BOX) == "20000"

    def test_a_file_that_is_right_already_changes_its_owner_too(self, world: ExecutorFixture) -> None:
        world.do(hooked(QUOTA, BOX, "24000", None, "burst"))
        assert world.do(hooked(QUOTA, BOX, "24000", None, "pinning")) == [WriteOutcome.SAME]
        assert world.executor.reconcile(("burst",), []) == []
        assert world.value(QUOTA, BOX) == "24000"

    def test_it_works_across_processes(self, world: ExecutorFixture) -> None:
        world.do(hooked(QUOTA, BOX, "24000", None, "burst"))
        world.start()
        world.executor.reconcile(("pinning",), [hooked(QUOTA, BOX, "24000", None, "pinning")])
        assert world.executor.reconcile(("burst",), []) == []
        assert world.value(QUOTA, BOX) == "24000"

    def test_one_batch_hands_files_over_in_any_order(self, world: ExecutorFixture) -> None:
        owners = ("hook", "pinning")
        world.executor.reconcile(owners, [hooked(QUOTA, BOX, "24000", "-1", "hook")])
        world.executor.reconcile(owners, [hooked(QUOTA, BOX, "25000", "-1", "pinning")])
        world.executor.reconcile(owners, [hooked(QUOTA, BOX, "24000", "-1", "hook")])
        assert world.value(QUOTA, BOX) == "24000"
        world.executor.reconcile(owners, [])
        assert world.value(QUOTA, BOX) == "-1"

    def test_others_may_not_take_it(self, world: ExecutorFixture) -> None:
        world.do(hooked(QUOTA, BOX, "24000", None, "hook"))
        with pytest.raises(OwnerConflict):
            world.do(write(QUOTA, BOX, "1000", "stranger"))
        with pytest.raises(OwnerConflict):
            world.do(hooked(QUOTA, BOX, "1000", None, "burst"), hooked(QUOTA, BOX, "2000", None, "pinning"))


def test_a_file_that_is_verified_is_read_however_recently_it_was_right(world: ExecutorFixture) -> None:
    wanted = write(SHARES, BOX, "512")
    world.do(wanted)
    right = world.value(SHARES, BOX)
    start_with(world, SHARES, BOX, "2")  # somebody else
    assert world.do(wanted) == [WriteOutcome.FRESH]
    assert [one.status for one in world.executor.execute([wanted], verify=True)] == [WriteOutcome.WRITTEN]
    assert world.value(SHARES, BOX) == right


def test_kept_files_stay_as_they_are_and_can_be_restored_later(world: ExecutorFixture) -> None:
    world.executor.reconcile(("hook",), [hooked(SHARES, BOX, "512", "2")])
    right = world.value(SHARES, BOX)
    assert world.executor.reconcile(("hook",), [], kept=[(BOX, SHARES)]) == []
    assert world.value(SHARES, BOX) == right != "2"
    world.executor.reconcile(("hook",), [])
    assert world.value(SHARES, BOX) == "2"


@pytest.mark.parametrize(
    ("first", "second"), [("50000", "80000"), ("80000", "50000"), ("50000", "-1"), ("-1", "50000")]
)
def test_quota_of_pod_and_container_move_in_one_round(world: ExecutorFixture, first: str, second: str) -> None:
    for value in (first, second):
        effects = [hooked(QUOTA, group, value, "-1") for group in (POD, BOX)]
        results = world.executor.reconcile(("hook",), effects, verify=True)
        assert {one.status for one in results} <= {WriteOutcome.WRITTEN, WriteOutcome.SAME}
        assert {world.value(QUOTA, group) for group in (POD, BOX)} == {value}
