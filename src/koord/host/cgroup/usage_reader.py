"""Read the usage of one group every second: prepared paths, open descriptors, and only the numbers that are needed.

`koord.host.cgroup.usage` has the readers for everything that is read now and then.
"""

from __future__ import annotations

from koord.host.cgroup.knob import CPU_STAT, CPUACCT_USAGE, MEMORY_NUMA_STAT, MEMORY_STAT, CgroupFile
from koord.host.cgroup.stat import parse_numa_bytes
from koord.host.cgroup.tree import CgroupTree
from koord.host.fd_cache import FdBudget, KeepOpenFile
from koord.host.io_error import IoError, malformed

# Memory that cannot be dropped, then the page cache.
_V1_MEMORY = (
    b"\ntotal_inactive_anon ",
    b"\ntotal_active_anon ",
    b"\ntotal_unevictable ",
    b"\ntotal_inactive_file ",
    b"\ntotal_active_file ",
)
_V2_MEMORY = (b"\ninactive_anon ", b"\nactive_anon ", b"\nunevictable ", b"\ninactive_file ", b"\nactive_file ")
_THROTTLING = (b"\nnr_periods ", b"\nnr_throttled ")
_USAGE = (b"\nusage_usec ",)


class CgroupUsageReader:
    __slots__ = ("_cpu", "_memory", "_numa", "_page_bytes", "_stat", "_text", "_version", "group")

    def __init__(self, tree: CgroupTree, group: str, budget: FdBudget) -> None:
        self.group = group
        self._version = tree.version
        self._page_bytes = tree.host.page_bytes
        self._stat = KeepOpenFile(tree.path(CgroupFile(CPU_STAT, group)) or "", budget)
        # One file holds both on cgroup v2.
        same = tree.version == 2
        self._cpu = self._stat if same else KeepOpenFile(tree.path(CgroupFile(CPUACCT_USAGE, group)) or "", budget)
        self._memory = KeepOpenFile(tree.path(CgroupFile(MEMORY_STAT, group)) or "", budget)
        self._numa = KeepOpenFile(tree.path(CgroupFile(MEMORY_NUMA_STAT, group)) or "", budget)
        self._text: bytes | IoError = b""

    def cpu_ns(self) -> int | IoError:
        self._text = text = self._cpu.read()
        if isinstance(text, IoError):
            return text
        if self._version == 2:
            found = _find_numbers(text, _USAGE)
            return self._bad(self._cpu, text) if found is None else found[0] * 1000
        try:
            return int(text)
        except ValueError:
            return self._bad(self._cpu, text)

    def throttling(self) -> tuple[int, int] | IoError:
        """Return the periods, and how many of them were throttled; on cgroup v2 of the text that `cpu_ns` read last."""
        text = self._text if self._version == 2 else self._stat.read()
        if isinstance(text, IoError):
            return text
        found = _find_numbers(text, _THROTTLING)
        return self._bad(self._stat, text) if found is None else (found[0], found[1])

    def memory(self) -> tuple[int, int] | IoError:
        """Return the bytes in use without page cache, and with it."""
        text = self._memory.read()
        if isinstance(text, IoError):
            return text
        found = _find_numbers(text, _V1_MEMORY if self._version == 1 else _V2_MEMORY)
        if found is None:
            return self._bad(self._memory, text)
        used = found[0] + found[1] + found[2]
        return used, used + found[3] + found[4]

    def numa_bytes(self) -> dict[int, int] | IoError:
        """Return the bytes in use without page cache by NUMA node, of the group and all below it."""
        text = self._numa.read()
        if isinstance(text, IoError):
            return text
        found = parse_numa_bytes(text.decode("utf-8", "replace"), self._version, self._page_bytes)
        return self._bad(self._numa, text) if found is None else found

    def close(self) -> None:
        for file in (self._cpu, self._stat, self._memory, self._numa):
            file.close()

    def _bad(self, file: KeepOpenFile, text: bytes) -> IoError:
        return malformed(file.path, f"unexpected text {text[:80]!r}")


def _find_numbers(text: bytes, keys: tuple[bytes, ...]) -> list[int] | None:
    """Return the numbers of these keys, None when one is missing. Files have up to sixty lines, and few are needed."""
    text = b"\n" + text
    found: list[int] = []
    for key in keys:
        place = text.find(key)
        if place < 0:
            return None
        start = place + len(key)
        end = text.find(b"\n", start)
        try:
            found.append(int(text[start : end if end >= 0 else len(text)]))
        except ValueError:
            return None
    return found
