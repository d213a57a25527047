"""The cgroup files of a simulated machine, in memory, with the kernel's answers to writes. Values are cgroup v1's.

What a value means for CPU and memory is modelled elsewhere; this module knows what can be written and restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from koord.host.cgroup import knob
from koord.koordlet.cgroup_writer.effects import (
    FileEffect,
    FileWriteResult,
    TaskEffect,
    WriteCgroup,
    WriteOutcome,
    WriteSchemata,
    WriteSystem,
)
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.go_format import parse_decimal_int

_NOTHING = {knob.IO_WEIGHT: "100", knob.IO_QOS: "enable=0", knob.IO_MODEL: "ctrl=auto"}

MAINLINE_FILES = frozenset(
    {
        knob.CPU_SHARES,
        knob.CPU_QUOTA,
        knob.CPU_BURST,
        knob.CPU_IDLE,
        knob.CPUSET,
        knob.MEMORY_LIMIT,
        knob.MEMORY_MIN,
        knob.MEMORY_LOW,
        knob.MEMORY_HIGH,
        knob.MEMORY_OOM_GROUP,
        *knob.IO_THROTTLES,
        knob.MIN_FREE_KBYTES,
        knob.WATERMARK_SCALE_FACTOR,
    }
)
# A kernel that was made for co-location.
ANOLIS_FILES = frozenset(knob.KNOBS) - {knob.CPU_IDLE}

FileValues = dict[str, str]
RESTORE = "restore"  # the cause of an effect that gives a file back


class _WrittenFile(NamedTuple):
    owner: str
    original: str


def _may_take(effect: WriteCgroup | WriteSystem, owner: str) -> bool:
    return isinstance(effect, WriteCgroup) and owner in effect.takes_over


class SimulatedCgroupFiles:
    """All files of the machine; `changed` is called with every group whose files change."""

    def __init__(self, known: frozenset[str], cpus: CPUSet, changed: Callable[[str], None]) -> None:
        self.known = known
        self._cpus = cpus
        self._changed = changed
        self._values: dict[str, FileValues] = {}
        self._below: dict[str, dict[str, None]] = {}
        self._first: dict[tuple[str, str], _WrittenFile] = {}  # by group and file

    def make_group(self, group: str, values: Mapping[str, str]) -> None:
        """Make a group with these values; other values that it has stay."""
        if group and group not in self._values:
            self._below.setdefault(group.rpartition("/")[0], {})[group] = None
        self._values.setdefault(group, {}).update({name: value for name, value in values.items() if name in self.known})
        self._changed(group)

    def remove_group(self, group: str) -> None:
        """Remove a group and all below it."""
        self._below.get(group.rpartition("/")[0], {}).pop(group, None)
        gone = [group]
        for name in gone:
            gone += self._below.pop(name, {})
            self._values.pop(name, None)
        self._first = {key: value for key, value in self._first.items() if key[0] in self._values}

    def child_groups(self, group: str) -> tuple[str, ...]:
        return tuple(self._below.get(group, ()))

    def __contains__(self, group: str) -> bool:
        return group in self._values

    def read(self, group: str, name: str) -> str | None:
        """Return the value of a file; one that was never written has the kernel's default."""
        values = self._values.get(group)
        if values is None or name not in self.known:
            return None
        return values.get(name, _FRESH.get(name, ""))

    def number(self, group: str, name: str, default: int) -> int:
        found = parse_decimal_int(self.read(group, name) or "")
        return default if found is None else found

    def disks(self, group: str) -> frozenset[str]:
        found: set[str] = set()
        for name in self.known.intersection(knob.PER_DISK_FILES):
            for line in (self.read(group, name) or "").splitlines():
                found.add(line.split(" ", 1)[0])
        return frozenset(found)

    def write(self, effect: FileEffect) -> FileWriteResult:
        if isinstance(effect, TaskEffect | WriteSchemata):
            return FileWriteResult(effect, WriteOutcome.OFF, detail="this machine has neither resctrl nor time slices")
        group = effect.group if isinstance(effect, WriteCgroup) else ""
        before = self.read(group, effect.file)
        if effect.file not in self.known:
            return FileWriteResult(effect, WriteOutcome.OFF, detail="this kernel does not have the file")
        if before is None:
            return FileWriteResult(effect, WriteOutcome.VANISHED)
        after = self._merged(before, effect) if effect.file in knob.PER_DISK_FILES else effect.value
        if after == before:
            self._claim(effect, group, before)
            return FileWriteResult(effect, WriteOutcome.SAME, before=before)
        wrong = self._refusal(effect, group)
        if wrong:
            return FileWriteResult(effect, WriteOutcome.REJECTED, before=before, detail=wrong)
        self._claim(effect, group, before)
        self._values[group][effect.file] = after
        self._changed(group)
        return FileWriteResult(effect, WriteOutcome.WRITTEN, before=before)

    def restore(self, owners: Sequence[str], keep: Iterable[tuple[str, str]], why: str) -> list[FileWriteResult]:
        """Restore what some owners wrote, except the files in `keep`."""
        kept = set(keep)
        results: list[FileWriteResult] = []
        for (group, name), written in list(self._first.items()):
            if written.owner not in owners or (group, name) in kept:
                continue
            del self._first[group, name]
            original = written.original
            if group not in self._values:
                continue
            before = self._values[group].get(name, "")
            self._values[group][name] = original
            self._changed(group)
            effect = WriteCgroup(group=group, file=name, value=original, owner=written.owner, cause=RESTORE, why=why)
            results.append(
                FileWriteResult(
                    effect, WriteOutcome.SAME if before == original else WriteOutcome.WRITTEN, before=before
                )
            )
        return results

    def _claim(self, effect: WriteCgroup | WriteSystem, group: str, before: str) -> None:
        """Note who owns the file and what it holds without him. The first owner to write keeps it until it lets go."""
        known = self._first.get((group, effect.file))
        given = effect.original if isinstance(effect, WriteCgroup) else None
        if known is not None and (known.owner == effect.owner or not _may_take(effect, known.owner)):
            return
        if known is None and effect.value == (before if given is None else given):
            return
        original = given if given is not None else before if known is None else known.original
        self._first[group, effect.file] = _WrittenFile(effect.owner, original)

    def _refusal(self, effect: WriteCgroup | WriteSystem, group: str) -> str:
        """Return why the kernel refuses the value; "" when it accepts it."""
        if effect.file == knob.CPUSET:
            try:
                cpus = CPUSet.parse(effect.value)
            except CPUSetError as error:
                return str(error)
            return "" if not cpus - self._cpus else "there are no such CPUs"
        if effect.file in knob.PER_DISK_FILES:
            return ""
        number = parse_decimal_int(effect.value)
        if effect.file == knob.CPU_BURST and number is not None:
            quota = self.number(group, knob.CPU_QUOTA, -1)
            return "a burst above the quota" if 0 < quota < number else ""
        if effect.file == knob.CPU_QUOTA and number is not None and number > 0:
            return "a quota below the burst" if self.number(group, knob.CPU_BURST, 0) > number else ""
        return ""

    def _merged(self, before: str, effect: WriteCgroup | WriteSystem) -> str:
        """Return the file's text with one line per disk; a default value leaves no line."""
        disk, _, value = effect.value.partition(" ")
        lines = dict(line.split(" ", 1) for line in before.splitlines())
        if value == _NOTHING.get(effect.file, "0"):
            lines.pop(disk, None)
        else:
            lines[disk] = value
        return "".join(f"{name} {value}\n" for name, value in sorted(lines.items()))


_FRESH = {
    knob.CPU_SHARES: "1024",
    knob.CPU_QUOTA: "-1",
    knob.CPU_BURST: "0",
    knob.CPU_BVT: "0",
    knob.CPU_IDLE: "0",
    knob.MEMORY_LIMIT: "-1",
    knob.MEMORY_MIN: "0",
    knob.MEMORY_LOW: "0",
    knob.MEMORY_HIGH: str(2**63 - 1),
    knob.MEMORY_WMARK_RATIO: "0",
    knob.MEMORY_WMARK_SCALE: "50",
    knob.MEMORY_WMARK_MIN_ADJ: "0",
    knob.MEMORY_PRIORITY: "0",
    knob.MEMORY_USE_PRIORITY_OOM: "0",
    knob.MEMORY_OOM_GROUP: "0",
    knob.PAGE_CACHE_ENABLE: "0",
    knob.PAGE_CACHE_SIZE: "0",
    knob.PAGE_CACHE_SYNC: "0",
    knob.MIN_FREE_KBYTES: "67584",
    knob.WATERMARK_SCALE_FACTOR: "10",
    knob.MEMCG_REAP_BACKGROUND: "0",
    knob.PAGE_CACHE_LIMIT_ENABLED: "0",
    knob.GROUP_IDENTITY_ENABLED: "1",
    knob.SCHED_CORE: "0",
    knob.IDLE_SAVER_WMARK: "0",
}
