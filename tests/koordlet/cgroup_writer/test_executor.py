"""The executor on fake machines: what is written, what is not, by whom, and what happens when the kernel refuses."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

import pytest

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.host.cgroup.knob import CgroupFile
from koord.host.io_error import OPEN, IoError
from koord.koordlet.cgroup_writer.effects import AddTasks, OwnerConflict, WriteOutcome, WriteSchemata, WriteSystem
from tests.koordlet.cgroup_writer.executor_fixture import TOP, ExecutorFixture, write

QUOTA, BURST, SHARES, IDLE = "cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.shares", "cpu.idle"
LIMIT, SWAP = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
POD, BOX = f"{TOP}/podx", f"{TOP}/podx/one"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> ExecutorFixture:
    return _world(tmp_path, request.param)


def _world(path: Path, version: int = 1, *, vendor: bool = False, journal: bool = False) -> ExecutorFixture:
    world = ExecutorFixture(path, version, vendor=vendor, journal=journal)
    world.machine.pod(BEST_EFFORT, "x", "containerd://one")
    return world


def test_a_value_is_written_once_and_then_known(world: ExecutorFixture) -> None:
    assert world.do(write(QUOTA, BOX, "50000")) == [WriteOutcome.WRITTEN]
    assert world.do(write(QUOTA, BOX, "50000")) == [WriteOutcome.FRESH]
    world.clock.advance(61)
    assert world.do(write(QUOTA, BOX, "50000")) == [WriteOutcome.SAME]
    assert len(world.kernel.writes) == 1
    assert world.value(QUOTA, BOX) == "50000"


def test_an_unlimited_quota_reads_back_as_unlimited(world: ExecutorFixture) -> None:
    world.do(write(QUOTA, BOX, "50000"))
    assert world.do(write(QUOTA, BOX, "-1")) == [WriteOutcome.WRITTEN]
    assert world.value(QUOTA, BOX) == "-1"


def test_the_period_is_written_beside_the_quota(world: ExecutorFixture) -> None:
    world.do(write(QUOTA, BOX, "50000"), write("cpu.cfs_period_us", BOX, "200000"))
    assert (world.value(QUOTA, BOX), world.value("cpu.cfs_period_us", BOX)) == ("50000", "200000")


def test_drift_of_a_young_file_is_repaired_within_seconds_and_of_an_old_one_within_the_refresh(
    world: ExecutorFixture,
) -> None:
    wanted = write(SHARES, BOX, "512")
    world.do(wanted)
    _overwrite(world)  # a kubelet that is still setting the pod up
    world.clock.advance(1)
    assert world.do(wanted) == [WriteOutcome.WRITTEN]
    for _ in range(130):
        world.clock.advance(1)
        world.do(wanted)
    _overwrite(world)
    repaired = 0
    while world.do(wanted) != [WriteOutcome.WRITTEN]:
        world.clock.advance(1)
        repaired += 1
    assert repaired <= 60


def _overwrite(world: ExecutorFixture) -> None:
    path = world.tree.path(CgroupFile(SHARES, BOX))
    assert path is not None
    Path(path).write_text("2\n")


def test_widening_goes_down_and_narrowing_comes_up(tmp_path: Path) -> None:
    world = _world(tmp_path)
    batch = [write(QUOTA, BOX, "20000"), write(QUOTA, POD, "30000"), write(QUOTA, TOP, "40000")]
    assert set(world.do(*batch)) == {WriteOutcome.WRITTEN}
    assert [path for path, _ in world.written] == [f"/podx/one/{QUOTA}", f"/podx/{QUOTA}", f"/{QUOTA}"]
    world.kernel.writes.clear()
    assert set(world.do(*(write(QUOTA, group, "60000") for group in (BOX, POD, TOP)))) == {WriteOutcome.WRITTEN}
    assert [path for path, _ in world.written] == [f"/{QUOTA}", f"/podx/{QUOTA}", f"/podx/one/{QUOTA}"]


def test_crossing_cpusets_pass_through_their_union(tmp_path: Path) -> None:
    world = _world(tmp_path)
    groups = (TOP, POD, BOX)
    world.do(*(write("cpuset.cpus", group, "0-1") for group in groups))
    world.kernel.writes.clear()
    assert set(world.do(*(write("cpuset.cpus", group, "1-2") for group in groups))) == {WriteOutcome.WRITTEN}
    assert [text for _, text in world.written] == ["0-2"] * 3 + ["1-2"] * 3
    assert {world.value("cpuset.cpus", group) for group in groups} == {"1-2"}


def test_a_way_station_of_the_same_owner_is_left_to_the_executor(world: ExecutorFixture) -> None:
    station, end = write("cpuset.cpus", BOX, "0-2"), write("cpuset.cpus", BOX, "1-2")
    assert world.do(station, end) == [WriteOutcome.REPLACED, WriteOutcome.WRITTEN]


def test_burst_is_lowered_before_and_raised_after_the_quota(world: ExecutorFixture) -> None:
    assert set(world.do(write(BURST, BOX, "40000"), write(QUOTA, BOX, "40000"))) == {WriteOutcome.WRITTEN}
    assert set(world.do(write(QUOTA, BOX, "20000"), write(BURST, BOX, "10000"))) == {WriteOutcome.WRITTEN}
    assert set(world.do(write(BURST, BOX, "50000"), write(QUOTA, BOX, "50000"))) == {WriteOutcome.WRITTEN}
    assert (world.value(QUOTA, BOX), world.value(BURST, BOX)) == ("50000", "50000")


def test_a_burst_above_the_quota_is_rejected_and_left_alone_for_a_while(
    world: ExecutorFixture, caplog: pytest.LogCaptureFixture
) -> None:
    world.do(write(QUOTA, BOX, "20000"))
    with caplog.at_level(logging.WARNING):
        statuses = [world.do(write(BURST, BOX, "200000"))[0] for _ in range(5)]
        world.clock.advance(11)
        statuses += world.do(write(BURST, BOX, "200000"))
    assert statuses == [WriteOutcome.REJECTED, *[WriteOutcome.WAITING] * 4, WriteOutcome.REJECTED]
    assert len(caplog.records) == 1
    assert BURST not in world.executor.disabled_knobs
    assert world.do(write(QUOTA, BOX, "300000")) == [WriteOutcome.WRITTEN]
    assert world.do(write(BURST, BOX, "200000")) == [WriteOutcome.WRITTEN], (
        "the quota was in the way and is not any more"
    )


def test_a_knob_that_refuses_its_own_value_is_switched_off_for_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = _world(tmp_path, vendor=True)
    world.kernel.trouble = lambda path, _: errno.EINVAL if path.endswith("memory.high") else None
    with caplog.at_level(logging.WARNING):
        first = world.do(write("memory.high", BOX, "4096"))
        later = [world.do(write("memory.high", group, "4096"))[0] for group in (POD, BOX) for _ in range(3)]
    assert first + later == [WriteOutcome.OFF] * 7
    assert len(caplog.records) == 1
    assert world.executor.disabled_knobs["memory.high"].errno == errno.EINVAL
    assert world.do(write(QUOTA, BOX, "50000")) == [WriteOutcome.WRITTEN]


def test_a_file_that_the_kernel_lacks_is_switched_off_without_reading_it_again(tmp_path: Path) -> None:
    world = _world(tmp_path)
    assert world.do(write("cpu.bvt_warp_ns", BOX, "-1")) == [WriteOutcome.OFF]
    assert "cpu.bvt_warp_ns" in world.executor.disabled_knobs
    assert world.do(write("memory.pagecache_limit.size", BOX, "1")) == [WriteOutcome.OFF]


def test_a_controller_that_is_not_mounted_is_off_not_vanished(tmp_path: Path) -> None:
    world = _world(tmp_path)
    shutil.rmtree(tmp_path / "sys/fs/cgroup/net_cls")
    assert world.do(write("net_cls.classid", BOX, "1")) == [WriteOutcome.OFF]
    assert "net_cls.classid" in world.executor.disabled_knobs


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS])
def test_errnos_that_switch_a_knob_off(tmp_path: Path, code: int) -> None:
    world = _world(tmp_path)
    world.kernel.trouble = lambda path, _: code
    assert world.do(write(BURST, BOX, "1000")) == [WriteOutcome.OFF]


def test_a_busy_file_is_tried_again_with_growing_patience(world: ExecutorFixture) -> None:
    world.kernel.trouble = lambda path, _: errno.EBUSY
    tried = []
    for second in range(64):
        if world.do(write(QUOTA, BOX, "50000")) == [WriteOutcome.FAILED]:
            tried.append(second)
        world.clock.advance(1)
    assert tried == [0, 1, 3, 7, 15, 31, 63]
    world.kernel.trouble = None
    world.clock.advance(60)
    assert world.do(write(QUOTA, BOX, "50000")) == [WriteOutcome.WRITTEN]


def test_a_file_that_refuses_every_value_is_tried_seldom_though_the_value_changes(world: ExecutorFixture) -> None:
    world.kernel.trouble = lambda path, _: errno.EBUSY
    tried = []
    for second in range(64):
        if world.do(write(QUOTA, BOX, str(50_000 + second))) == [WriteOutcome.FAILED]:
            tried.append(second)
        world.clock.advance(1)
    assert tried == [0, 1, 3, 7, 15, 31, 47, 63]
    world.kernel.trouble = None
    world.clock.advance(16)
    assert world.do(write(QUOTA, BOX, "60000")) == [WriteOutcome.WRITTEN]


def test_a_group_that_is_gone_is_forgotten(world: ExecutorFixture) -> None:
    world.do(write(QUOTA, BOX, "50000"))
    world.machine.remove(POD)
    world.clock.advance(61)
    assert world.do(write(QUOTA, BOX, "60000")) == [WriteOutcome.VANISHED]
    assert (len(world.journal), world.executor.owners) == (0, {})


def test_memory_follows_the_groups_that_are_there(world: ExecutorFixture) -> None:
    for number in range(20):
        group = world.machine.pod(BEST_EFFORT, str(number))
        world.do(write(QUOTA, group, "50000"))
        world.machine.remove(group)
    assert world.executor.sweep() == 20
    assert (len(world.journal), world.executor.owners) == (0, {})


def test_two_owners_of_one_file_are_a_fault_of_the_program(world: ExecutorFixture) -> None:
    world.do(write(QUOTA, BOX, "50000", owner="burst"))
    with pytest.raises(OwnerConflict, match="burst owns"):
        world.do(write(SHARES, BOX, "512", owner="batch"), write(QUOTA, BOX, "60000", owner="batch"))
    assert world.value(QUOTA, BOX) == "50000"
    world.executor.release("burst")
    assert world.do(write(QUOTA, BOX, "60000", owner="batch")) == [WriteOutcome.WRITTEN]


def test_values_that_no_kernel_takes_are_not_tried(world: ExecutorFixture) -> None:
    assert world.do(write(SHARES, BOX, "1"), write("cpuset.cpus", BOX, "a-b")) == [
        WriteOutcome.INVALID,
        WriteOutcome.INVALID,
    ]
    assert world.do(write("memory.stat", BOX, "1")) == [WriteOutcome.INVALID], "a file that is only read"
    assert world.kernel.writes == []


def test_releasing_puts_originals_back_unless_somebody_else_wrote_since(world: ExecutorFixture) -> None:
    before = world.machine.snapshot()
    world.do(write(QUOTA, TOP, "90000"), write(QUOTA, BOX, "50000"), write(SHARES, BOX, "512"))
    results = world.executor.release("tester")
    assert {result.status for result in results} == {WriteOutcome.WRITTEN}
    assert world.machine.snapshot().keys() == before.keys()
    assert (world.value(QUOTA, TOP), world.value(QUOTA, BOX)) == ("-1", "-1")
    world.do(write(SHARES, BOX, "512"))
    _overwrite(world)
    assert [result.status for result in world.executor.release("tester")] == [WriteOutcome.OVERWRITTEN]
    assert world.executor.release("tester") == []
    assert world.machine.text(SHARES, BOX) == "2"


def test_reconciling_gives_back_what_is_no_longer_asked_for(world: ExecutorFixture) -> None:
    world.executor.reconcile(("tester",), [write(QUOTA, POD, "90000"), write(SHARES, POD, "512")])
    results = world.executor.reconcile(("tester",), [write(QUOTA, POD, "90000")])
    assert [result.status for result in results] == [WriteOutcome.FRESH, WriteOutcome.WRITTEN]
    assert world.machine.text(SHARES, POD) == ("1024" if world.machine.version == 1 else "100")
    assert set(world.executor.owners) == {(QUOTA, POD, "")}


def test_what_an_owner_of_another_version_wrote_is_restored(tmp_path: Path) -> None:
    world = _world(tmp_path, journal=True)
    before = world.machine.snapshot()
    world.do(write(QUOTA, TOP, "90000", owner="of old"), write(SHARES, BOX, "512", owner="of today"))
    world.start()
    assert world.executor.has_earlier_writes
    assert [one.status for one in world.executor.release_others({"of today"}, "unknown")] == [WriteOutcome.WRITTEN]
    assert world.value(QUOTA, TOP) == "-1"
    assert world.value(SHARES, BOX) == "512"
    world.executor.restore()
    assert world.machine.snapshot() == before


def test_shares_of_a_group_that_an_earlier_process_made_idle_are_held(world: ExecutorFixture) -> None:
    world.do(write(IDLE, POD, "1", owner="identity"))
    world.start()  # which knows nothing of it but what the file says
    (result,) = world.executor.execute([write(SHARES, POD, "512", owner="batch")])
    assert (result.status, "idle" in result.detail) == (WriteOutcome.HELD, True)


def test_another_process_undoes_it_all_from_the_journal(tmp_path: Path) -> None:
    world = _world(tmp_path, journal=True)
    before = world.machine.snapshot()
    world.do(write(QUOTA, TOP, "90000"), write(QUOTA, BOX, "50000"), write("cpuset.cpus", BOX, "1"))
    world.do(write(QUOTA, BOX, "40000"))
    world.start()
    assert len(world.journal) == 3
    world.executor.restore()
    assert world.machine.snapshot() == before
    world.start()
    assert len(world.journal) == 0


def test_a_version_two_group_with_processes_gets_all_cpus_back(tmp_path: Path) -> None:
    world = _world(tmp_path, journal=True, version=2)
    (Path(world.machine.tree.group_path("", BOX)) / "cgroup.procs").write_text("77\n")
    groups = (TOP, POD, BOX)
    world.do(*(write("cpuset.cpus", group, "1") for group in groups))
    world.start()
    assert {result.status for result in world.executor.restore()} == {WriteOutcome.WRITTEN}
    assert [world.machine.text("cpuset.cpus", group) for group in groups] == ["0-3"] * 3
    assert len(world.journal) == 0
    (Path(world.machine.tree.group_path("", BOX)) / "cgroup.procs").write_text("")
    world.do(write("cpuset.cpus", BOX, "1"))
    world.executor.restore()
    assert world.machine.text("cpuset.cpus", BOX) == "0-3", "which is what it had before"


def test_a_journal_of_an_earlier_boot_or_of_a_group_made_anew_is_not_used(tmp_path: Path) -> None:
    world = _world(tmp_path, journal=True)
    world.do(write(QUOTA, BOX, "50000"), write(QUOTA, TOP, "90000"))
    for number, folder in enumerate((tmp_path / "sys/fs/cgroup").glob(f"*/{POD}")):
        folder.rename(tmp_path / f"removed-{number}")  # a file system may give an inode out again, cgroups never do
    world.machine.pod(BEST_EFFORT, "x", "containerd://one")
    (tmp_path / "sys/fs/cgroup/cpu" / BOX / QUOTA).write_text("50000\n")
    world.start()
    world.executor.restore()
    assert (world.value(QUOTA, TOP), world.value(QUOTA, BOX)) == ("-1", "50000")
    world.do(write(QUOTA, TOP, "90000"))
    world.machine.put("proc/sys/kernel/random/boot_id", "boot-two\n")
    world.start()
    assert len(world.journal) == 0


def test_a_torn_journal_loses_only_its_torn_line(tmp_path: Path) -> None:
    world = _world(tmp_path, journal=True)
    world.do(write(QUOTA, BOX, "50000"), write(QUOTA, TOP, "90000"))
    path = Path(str(world.journal_path))
    path.write_text(path.read_text()[:-20])
    world.start()
    assert len(world.journal) == 1
    path.write_text("not a journal\n")
    world.start()
    assert len(world.journal) == 0


def test_the_journal_stays_short(tmp_path: Path) -> None:
    world = _world(tmp_path, journal=True)
    for number in range(2000):
        world.do(write(QUOTA, BOX, str(50_000 + number)))
    assert len(Path(str(world.journal_path)).read_text().splitlines()) < 600
    world.start()
    world.executor.restore()
    assert world.value(QUOTA, BOX) == "-1"


def test_a_memory_limit_takes_its_swap_limit_along(tmp_path: Path) -> None:
    world = _world(tmp_path)
    folder = tmp_path / "sys/fs/cgroup/memory" / BOX
    for knob in (LIMIT, SWAP):
        (folder / knob).write_text("67108864\n")
    before = world.machine.snapshot()
    for value in ("134217728", "33554432", "-1"):
        assert world.do(write(LIMIT, BOX, value)) == [WriteOutcome.WRITTEN]
        assert world.machine.text(LIMIT, BOX) == world.machine.text(SWAP, BOX)
    world.executor.release("tester")
    assert world.machine.snapshot() == before


def test_a_limit_between_pages_is_not_written_for_ever(world: ExecutorFixture) -> None:
    world.do(write(LIMIT, BOX, "1000000"))
    world.clock.advance(61)
    assert world.do(write(LIMIT, BOX, "1000000")) == [WriteOutcome.SAME]


def test_shares_survive_being_idle(world: ExecutorFixture) -> None:
    path = world.tree.path(CgroupFile(SHARES, BOX))
    assert path is not None
    Path(path).write_text("77\n")
    before = world.machine.snapshot()
    assert world.do(write(IDLE, BOX, "1")) == [WriteOutcome.WRITTEN]
    assert world.do(write(SHARES, BOX, "512", owner="batch")) == [WriteOutcome.HELD]
    assert world.do(write(IDLE, BOX, "0")) == [WriteOutcome.WRITTEN]
    assert Path(path).read_text().strip() == "77"
    world.do(write(IDLE, BOX, "1"))
    world.executor.release("tester")
    assert world.machine.snapshot() == before


def test_shares_of_another_owner_survive_being_idle(world: ExecutorFixture) -> None:
    before = world.machine.snapshot()
    world.do(write(SHARES, POD, "512", owner="batch"))
    held = world.machine.text(SHARES, POD)
    world.do(write(IDLE, POD, "1", owner="identity"))
    world.executor.release("identity")
    assert world.machine.text(SHARES, POD) == held
    world.executor.release("batch")
    assert world.machine.snapshot() == before


def test_leaving_idle_and_new_shares_in_one_batch(tmp_path: Path) -> None:
    world = _world(tmp_path)
    world.do(write(IDLE, TOP, "1"))
    assert set(world.do(write(SHARES, TOP, "2"), write(IDLE, TOP, "0"))) == {WriteOutcome.WRITTEN}
    assert world.machine.text(SHARES, TOP) == "2"


def test_devices_have_lines_of_their_own(world: ExecutorFixture) -> None:
    read, wrote = "blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"
    batch = [write(read, TOP, "8:0 1048576"), write(read, TOP, "8:16 2097152"), write(wrote, TOP, "8:0 4096")]
    assert set(world.do(*batch)) == {WriteOutcome.WRITTEN}
    assert (world.value(read, TOP, "8:16"), world.value(wrote, TOP, "8:0")) == ("2097152", "4096")
    assert world.do(write(read, TOP, "8:32 0")) == [WriteOutcome.SAME], "a device without a line has no limit"
    world.executor.restore()
    assert world.value(read, TOP, "8:0") == "0"


def test_a_device_that_does_not_exist_is_rejected_and_the_knob_stays(tmp_path: Path) -> None:
    world = _world(tmp_path)
    assert world.do(write("blkio.throttle.read_bps_device", TOP, "8:99 1")) == [WriteOutcome.REJECTED]
    assert world.do(write("blkio.throttle.read_bps_device", TOP, "8:0 1")) == [WriteOutcome.WRITTEN]


def test_files_of_the_machine(world: ExecutorFixture) -> None:
    system = WriteSystem(file="vm/min_free_kbytes", value="20480", owner="s", cause="systemConfig reconcile", why="")
    assert world.do(system) == [WriteOutcome.OFF]
    world.machine.put("proc/sys/vm/watermark_scale_factor", "10\n")
    world.machine.put("sys/kernel/debug/sched_features", "A NO_WAKEUP B\n")
    factor = WriteSystem(file="vm/watermark_scale_factor", value="150", owner="s", cause="c", why="")
    assert world.do(factor) == [WriteOutcome.WRITTEN]
    feature = WriteSystem(file="sched_features", value="NO_WAKEUP", owner="s", cause="c", why="")
    assert world.do(feature) == [WriteOutcome.SAME]


def test_cache_shares_and_their_threads(world: ExecutorFixture) -> None:
    base = "sys/fs/resctrl"
    world.machine.put(f"{base}/BE/schemata", "MB:0=100;1=100\nL3:0=fff;1=fff\n")
    world.machine.put(f"{base}/BE/tasks", "")
    l3 = WriteSchemata(group="BE", resource="L3", by_cache=((0, "f"), (1, "f")), owner="r", cause="c", why="")
    same = WriteSchemata(group="BE", resource="MB", by_cache=((0, "100"), (1, "100")), owner="r", cause="c", why="")
    tasks = AddTasks(group="BE", tasks=(3, 1), owner="r", cause="c", why="")
    assert world.do(l3, same, tasks) == [WriteOutcome.WRITTEN, WriteOutcome.SAME, WriteOutcome.WRITTEN]
    assert world.kernel.writes[-1][1] == "L3:0=f;1=f;\n"
    assert (world.machine.root / base / "BE/tasks").read_text() == "1\n3\n"
    lost = AddTasks(group="none/at/all", tasks=(3,), owner="r", cause="c", why="")
    assert world.do(lost) == [WriteOutcome.FAILED]


def test_every_write_leaves_a_record(tmp_path: Path) -> None:
    world = _world(tmp_path)
    world.do(write(QUOTA, BOX, "50000"))
    world.kernel.trouble = lambda path, _: errno.EBUSY
    for _ in range(3):
        world.do(write(QUOTA, BOX, "60000"))
        world.clock.advance(100)
    done, refused = world.records
    assert (done.owner, done.before, done.after, done.reason, done.why) == ("tester", "-1", "50000", "Test", "1 + 1")
    assert done.message == f"update {done.path} to 50000"
    assert (refused.refused, refused.before) == ("EBUSY", "50000")


def test_a_child_is_held_back_when_its_parent_could_not_widen(tmp_path: Path) -> None:
    world = _world(tmp_path, 2)
    world.do(*(write(QUOTA, group, "20000") for group in (TOP, POD, BOX)))
    world.kernel.trouble = lambda path, _: errno.EBUSY if path.endswith("podx/cpu.max") else None
    statuses = world.do(*(write(QUOTA, group, "60000") for group in (TOP, POD, BOX)))
    assert statuses == [WriteOutcome.WRITTEN, WriteOutcome.FAILED, WriteOutcome.HELD]
    assert world.value(QUOTA, BOX) == "20000"


def test_a_refusal_tells_what_was_in_the_way(tmp_path: Path) -> None:
    world = _world(tmp_path)
    world.do(write(QUOTA, POD, "20000"))
    (low,) = world.executor.execute([write(QUOTA, BOX, "50000")])
    assert low.detail.endswith(f"{POD} has 20000")
    world.clock.advance(1)  # a refused file is left alone for a second, whatever the value
    world.do(write(QUOTA, BOX, "15000"))
    (high,) = world.executor.execute([write(QUOTA, POD, "10000")])
    assert high.detail.endswith(f"{BOX} has 15000")
    (busy,) = world.executor.execute([write("cpuset.cpus", TOP, "0")])
    assert busy.detail.endswith(f"{POD} has 0-3")
    (burst,) = world.executor.execute([write(BURST, BOX, "90000")])
    assert burst.detail.endswith("cpu.cfs_quota_us is 15000")


def test_a_group_that_we_may_not_open_does_not_switch_the_node_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world(tmp_path)
    read = world.kernel.read

    def closed(path: str) -> str | IoError:
        return IoError(path, OPEN, errno.EACCES) if BOX in path else read(path)

    monkeypatch.setattr(world.kernel, "read", closed)
    assert world.do(write(QUOTA, BOX, "50000"), write(QUOTA, POD, "50000")) == [
        WriteOutcome.REJECTED,
        WriteOutcome.WRITTEN,
    ]
    monkeypatch.setattr(world.kernel, "writable", lambda path: False)
    world.clock.advance(700)
    assert world.do(write(QUOTA, BOX, "50000")) == [WriteOutcome.OFF]
    assert world.do(write(QUOTA, POD, "40000")) == [WriteOutcome.OFF]
