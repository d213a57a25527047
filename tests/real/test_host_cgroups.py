"""The host layer and the executor on this machine's own cgroups, in a subtree of their own that is removed again."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.host import hardware_topology, perf, procfs
from koord.host.capability import probe_capabilities
from koord.host.cgroup import usage
from koord.host.cgroup.detection import cgroup_version
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host
from koord.host.hardware import CapabilityState
from koord.host.hardware_topology import online_cpus
from koord.host.inotify import DirectoryChange, InotifyWatcher
from koord.host.io_error import IoError
from koord.koordlet.cgroup_writer.effects import FileEffect, WriteCgroup, WriteOutcome
from koord.koordlet.cgroup_writer.executor import CgroupExecutor
from koord.koordlet.cgroup_writer.journal import WriteJournal
from koord.telemetry.clock import ManualClock

pytestmark = [pytest.mark.real, pytest.mark.machine]

PREFIX = f"koord-test-{os.getpid()}"
LAYOUT = CgroupLayout("cgroupfs", (PREFIX,))
TOP = LAYOUT.qos_dir(BEST_EFFORT)
POD = LAYOUT.pod_dir(BEST_EFFORT, "x")
BOX = f"{POD}/one"
QUOTA, BURST, SHARES, IDLE, CPUS = "cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.shares", "cpu.idle", "cpuset.cpus"
LIMIT, SWAP = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio")
SETTABLE = (QUOTA, BURST, SHARES, IDLE, CPUS, LIMIT)


class Node:
    def __init__(self, tree: CgroupTree, journal: Path) -> None:
        self.tree = tree
        self.clock = ManualClock()
        self._journal = journal
        self.start()

    def start(self) -> None:
        journal = WriteJournal(self.tree.host, str(self._journal))
        self.executor = CgroupExecutor(self.tree, self.clock, journal=journal)

    def do(self, *effects: FileEffect) -> list[WriteOutcome]:
        return [result.status for result in self.executor.execute(effects)]

    def value(self, knob: str, group: str) -> str:
        value = self.tree.value(knob, group)
        assert isinstance(value, str), value
        return value

    def values(self) -> dict[tuple[str, str], str]:
        return {(knob, group): self.value(knob, group) for knob in SETTABLE for group in (TOP, POD, BOX)}


def write(knob: str, group: str, value: str, owner: str = "tester") -> WriteCgroup:
    return WriteCgroup(group=group, file=knob, value=value, owner=owner, cause="Test", why="")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    host = Host.local()
    version = cgroup_version(host)
    tree = CgroupTree(host, version, LAYOUT)
    roots = [tree.group_path(name, "") for name in CONTROLLERS] if version == 1 else [tree.group_path("", "")]
    closed = [root for root in roots if not os.access(root, os.W_OK)]
    if closed:
        pytest.skip(f"cgroup v{version} is not writable here: {', '.join(closed)}")
    if version == 2 and not _delegated(tree):
        pytest.skip("the root of cgroup v2 does not hand down cpu, cpuset and memory")
    made = [f"{root}/{group}" for root in roots for group in (PREFIX, LAYOUT.kubepods, TOP, POD, BOX)]
    try:
        for folder in made:
            Path(folder).mkdir()
            _hand_down(Path(folder), version)
        yield Node(tree, tmp_path / "journal")
    finally:
        for folder in reversed(made):
            with contextlib.suppress(FileNotFoundError):
                Path(folder).rmdir()


def _delegated(tree: CgroupTree) -> bool:
    text = tree.host.read(f"{tree.group_path('', '')}/cgroup.subtree_control")
    return isinstance(text, str) and {"cpu", "cpuset", "memory"} <= set(text.split())


def _hand_down(folder: Path, version: int) -> None:
    if version == 2 and not folder.name.startswith("one"):
        (folder / "cgroup.subtree_control").write_text("+cpu +cpuset +memory")
    for name in ("cpuset.cpus", "cpuset.mems"):
        if version == 1 and (folder / name).exists():
            (folder / name).write_text((folder.parent / name).read_text())


def test_limits_go_up_and_down_the_tree_in_one_batch_each(node: Node) -> None:
    for quota in ("40000", "20000", "90000", "-1"):
        statuses = node.do(*(write(QUOTA, group, quota) for group in (BOX, TOP, POD)))
        assert set(statuses) == {WriteOutcome.WRITTEN}
        assert {node.value(QUOTA, group) for group in (TOP, POD, BOX)} == {quota}


def test_quota_and_burst_change_together(node: Node) -> None:
    if not node.tree.is_supported(BURST, BOX):
        pytest.skip("this kernel has no CPU burst")
    for quota, burst in (("40000", "40000"), ("20000", "10000"), ("60000", "60000"), ("10000", "0")):
        statuses = node.do(write(BURST, BOX, burst), write(QUOTA, BOX, quota))
        assert set(statuses) <= {WriteOutcome.WRITTEN, WriteOutcome.SAME}
        assert (node.value(QUOTA, BOX), node.value(BURST, BOX)) == (quota, burst)


def test_a_burst_above_the_quota_is_clear_about_this_kernel(node: Node) -> None:
    if not node.tree.is_supported(BURST, BOX):
        pytest.skip("this kernel has no CPU burst")
    node.do(write(QUOTA, BOX, "10000"))
    assert node.do(write(BURST, BOX, "20000"))[0] in (WriteOutcome.REJECTED, WriteOutcome.WRITTEN)
    assert BURST not in node.executor.disabled_knobs


def test_cpusets_cross_over(node: Node) -> None:
    online = online_cpus(node.tree.host)
    assert not isinstance(online, IoError)
    cpus = sorted(one.cpu for one in online)
    if len(cpus) < 2:
        pytest.skip("one CPU cannot be crossed over")
    for wanted in (str(cpus[0]), str(cpus[1]), f"{cpus[0]},{cpus[1]}"):
        statuses = node.do(*(write(CPUS, group, wanted) for group in (BOX, POD, TOP)))
        assert set(statuses) == {WriteOutcome.WRITTEN}
    assert node.do(write(CPUS, BOX, "60000")) == [WriteOutcome.REJECTED]


def test_memory_limits_rise_though_swap_is_accounted(node: Node) -> None:
    for limit in ("67108864", "134217728", "1000000000", "33554432", "-1"):
        assert node.do(write(LIMIT, BOX, limit)) == [WriteOutcome.WRITTEN]
    node.do(write(LIMIT, BOX, "67108864"))
    if node.tree.version == 1 and node.tree.is_supported(SWAP, BOX):
        assert node.do(write(SWAP, BOX, "67108864")) == [WriteOutcome.WRITTEN]
        node.executor.restore()
        assert (node.value(LIMIT, BOX), node.value(SWAP, BOX)) == ("-1", "-1")
        for knob in (LIMIT, SWAP):
            path = Path(node.tree.group_path("memory", BOX), knob)
            path.write_text("67108864")
        assert node.do(write(LIMIT, BOX, "134217728")) == [WriteOutcome.WRITTEN]
        assert node.value(SWAP, BOX) == "134217728"


def test_shares_come_back_after_idle(node: Node) -> None:
    if not node.tree.is_supported(IDLE):
        pytest.skip("this kernel has no idle groups")
    node.do(write(SHARES, POD, "512", owner="batch"))
    held = node.value(SHARES, POD)
    assert node.do(write(IDLE, POD, "1")) == [WriteOutcome.WRITTEN]
    node.executor.release("tester")
    assert (node.value(IDLE, POD), node.value(SHARES, POD)) == ("0", held)


def test_a_later_process_restores_the_tree(node: Node) -> None:
    before = node.values()
    node.do(*(write(QUOTA, group, "50000") for group in (TOP, POD, BOX)), write(SHARES, BOX, "77"))
    node.do(write(LIMIT, BOX, "67108864"), write(CPUS, BOX, "0"))
    assert node.values() != before
    node.start()
    assert {result.status for result in node.executor.restore()} == {WriteOutcome.WRITTEN}
    assert node.values() == before


def test_a_group_that_is_removed_vanishes(node: Node) -> None:
    node.do(write(QUOTA, BOX, "50000"))
    Path(node.tree.group_path("cpu", BOX)).rmdir()
    assert node.do(write(QUOTA, BOX, "60000")) == [WriteOutcome.VANISHED]
    found = usage.cpu_quota_us(node.tree, BOX)
    assert isinstance(found, IoError)
    assert found.vanished


def test_readings_of_a_group_that_works(node: Node) -> None:
    process = subprocess.Popen(
        ["sh", "-c", "read go; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"], stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    try:
        for name in CONTROLLERS if node.tree.version == 1 else ("",):
            Path(node.tree.group_path(name, BOX), "cgroup.procs").write_text(str(process.pid))
        before = usage.cpu_usage_ns(node.tree, BOX)
        assert usage.processes(node.tree, BOX) == [process.pid]
        assert usage.threads(node.tree, BOX) == [process.pid]
        process.stdin.write(b"go\n")
        process.stdin.flush()
        process.wait(60)
        after = usage.cpu_usage_ns(node.tree, BOX)
        assert isinstance(before, int)
        assert isinstance(after, int)
        assert after > before
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
    for read in (usage.memory_stat, usage.throttling, usage.cpuset):
        assert not isinstance(read(node.tree, BOX), IoError), read


def test_the_page_of_capabilities_changes_nothing(node: Node) -> None:
    before = node.values()
    rows = {row.knob: row for row in probe_capabilities(node.tree)}
    assert all(rows[knob].state is CapabilityState.SUPPORTED for knob in (QUOTA, SHARES, CPUS, LIMIT)), rows
    assert node.values() == before
    assert not Path(node.tree.group_path("cpu", f"{LAYOUT.kubepods}/koord-probe")).exists()


def test_pods_are_noticed_in_the_real_tree(node: Node) -> None:
    watcher = InotifyWatcher.open()
    assert isinstance(watcher, InotifyWatcher), watcher
    top = node.tree.group_path("cpu", TOP)
    try:
        assert watcher.watch(top) is None
        Path(f"{top}/podnew").mkdir()
        Path(f"{top}/podnew").rmdir()
        assert watcher.read() == [DirectoryChange(top, "podnew", True), DirectoryChange(top, "podnew", False)]
    finally:
        watcher.close()


def test_this_machine_reads_well() -> None:
    host = Host.local()
    for read in (procfs.cpu_times, procfs.meminfo, procfs.boot_id):
        assert not isinstance(read(host), IoError), read
    found = online_cpus(host)
    assert not isinstance(found, IoError)
    assert {one.cpu for one in found} == os.sched_getaffinity(0) | {one.cpu for one in found}
    ids = hardware_topology.numa_ids(host)
    assert isinstance(ids, IoError) or {one.node for one in found} <= set(ids)
    assert perf.available() is None or isinstance(perf.available(), IoError)


def test_processors_are_those_of_lscpu() -> None:
    if shutil.which("lscpu") is None:
        pytest.skip("no lscpu to compare with")
    shown = subprocess.run(
        ["lscpu", "-e=CPU,NODE,SOCKET,CORE", "-b"], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}
    ).stdout
    rows = [list(map(int, line.replace("-", "0").split())) for line in shown.splitlines()[1:]]
    found = online_cpus(Host.local())
    assert not isinstance(found, IoError)
    assert sorted([one.cpu, one.node, one.socket, one.core] for one in found) == sorted(rows)
