"""A fake machine with a fake kernel, an executor on it, and everything that it audited."""

from __future__ import annotations

from pathlib import Path

from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.core_sched import TimeSliceSystem
from koord.koordlet.cgroup_writer.effects import FileEffect, WriteCgroup, WriteOutcome, WriteRecord
from koord.koordlet.cgroup_writer.executor import CgroupExecutor
from koord.koordlet.cgroup_writer.journal import WriteJournal
from koord.telemetry.clock import ManualClock
from tests.host.fake_kernel import FakeKernel
from tests.host.fake_machine import FakeMachine

TOP = "kubepods/besteffort"
FEW = frozenset(
    {
        *("cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.shares", "cpu.idle", "cpuset.cpus"),
        *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        *("cpu.max", "cpu.max.burst", "cpu.weight", "memory.max"),
    }
)


class ExecutorFixture:
    def __init__(
        self,
        root: Path,
        version: int = 1,
        *,
        vendor: bool = False,
        journal: bool = False,
        only: frozenset[str] = frozenset(),
    ) -> None:
        self.machine = FakeMachine(root, version, CgroupLayout("cgroupfs"), vendor=vendor, only=only)
        self.machine.put("proc/sys/kernel/random/boot_id", "boot-one\n")
        self.kernel = FakeKernel(self.machine.paths, version)
        self.clock = ManualClock()
        self.records: list[WriteRecord] = []
        self.journal_path = str(root / "state/journal.jsonl") if journal else None
        self.start()

    def start(self, slices: TimeSliceSystem | None = None) -> None:
        """Start a new process on the same machine."""
        self.tree = CgroupTree(self.kernel, self.machine.version, self.machine.layout)
        self.journal = WriteJournal(self.kernel, self.journal_path)
        self.executor = CgroupExecutor(
            self.tree, self.clock, journal=self.journal, audit=self.records.append, time_slices=slices
        )

    def do(self, *effects: FileEffect) -> list[WriteOutcome]:
        return [result.status for result in self.executor.execute(effects)]

    def value(self, knob: str, group: str, key: str = "") -> str:
        value = self.tree.value(knob, group, key)
        assert isinstance(value, str), value
        return value

    @property
    def written(self) -> list[tuple[str, str]]:
        """Return (group/file, text) of every successful write, without the roots."""
        root = self.machine.paths.cgroup
        return [
            (path.removeprefix(root).strip("/").partition(TOP)[2] or path, text) for path, text in self.kernel.writes
        ]


def write(knob: str, group: str, value: str, owner: str = "tester") -> WriteCgroup:
    return WriteCgroup(group=group, file=knob, value=value, owner=owner, cause="Test", why="1 + 1")
