"""A fake kernel over a fake machine: it refuses, rounds and forgets writes as Linux 6.18 was observed to do."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from koord.host.filesystem import Host, HostPaths
from koord.host.io_error import OPEN, WRITE, IoError
from koord.values.cpuset import CPUSet, CPUSetError

_PAGE = 4096
_HUGE = 9_223_372_036_854_771_712
WriteRefusal = Callable[[str, str], int | None]


class FakeKernel(Host):
    """A Host whose writes follow the kernel's rules. `trouble(path, text)` may refuse any write with an errno of its
    own; `writes` lists those that succeeded.
    """

    def __init__(self, paths: HostPaths, version: int, trouble: WriteRefusal | None = None) -> None:
        super().__init__(paths)
        self.version = version
        self.trouble = trouble
        self.writes: list[tuple[str, str]] = []
        self.after_write: Callable[[], None] | None = None
        self.disk_full = False  # the disk of the agent's own files
        self.idle_weight = "1"  # what cpu.weight of an idle group reads as; "0" before 6.12
        self.before_state_write: Callable[[], None] | None = None

    def append_file(self, path: str, text: str) -> IoError | None:
        return self._state_refusal(path) or super().append_file(path, text)

    def replace_file(self, path: str, text: str) -> IoError | None:
        return self._state_refusal(path) or super().replace_file(path, text)

    def _state_refusal(self, path: str) -> IoError | None:
        if self.before_state_write:
            self.before_state_write()
        return IoError(path, WRITE, errno.ENOSPC) if self.disk_full else None

    def write(self, path: str, text: str) -> IoError | None:
        code = self.trouble(path, text) if self.trouble else None
        if code is not None:
            return IoError(path, WRITE, code)
        file = Path(path)
        if not file.exists():
            return IoError(path, OPEN, errno.ENOENT)
        code = self._rules(file, text)
        if code is not None:
            return IoError(path, WRITE, code)
        self.writes.append((path, text))
        if self.after_write:
            self.after_write()
        return None

    def _rules(self, file: Path, text: str) -> int | None:
        rule = {
            "cpu.cfs_quota_us": self._quota,
            "cpu.cfs_burst_us": self._burst,
            "cpu.shares": self._shares,
            "cpu.idle": self._idle,
            "cpuset.cpus": self._cpus if self.version == 1 else self._cpus_v2,
            "cpu.max": self._max,
            "cpu.max.burst": self._burst_v2,
            "memory.limit_in_bytes": self._limit,
            "memory.memsw.limit_in_bytes": self._swap,
            "io.max": self._columns,
        }.get(file.name, self._device if file.name.startswith("blkio.throttle.") else self._plain)
        return rule(file, text.strip())

    def _plain(self, file: Path, text: str) -> int | None:
        file.write_text(text + "\n")
        return None

    def _quota(self, file: Path, text: str) -> int | None:
        quota = int(text)
        if 0 <= quota < 1000 or (quota > 0 and quota < _number(file.with_name("cpu.cfs_burst_us"))):
            return errno.EINVAL
        old = file.read_text()
        file.write_text(f"{quota if quota > 0 else -1}\n")
        if not self._quotas_fit(file):
            file.write_text(old)
            return errno.EINVAL
        return None

    def _quotas_fit(self, file: Path) -> bool:
        """Version 1's rule over the whole tree: what a group may use, its parents must have."""
        top = Path(self.paths.cgroup) / "cpu"

        def check(folder: Path, above: float) -> bool:
            quota = _number(folder / file.name)
            own = above if quota < 0 else quota
            if own > above:
                return False
            return all(check(child, own) for child in folder.iterdir() if child.is_dir())

        return all(check(child, float("inf")) for child in top.iterdir() if child.is_dir())

    def _burst(self, file: Path, text: str) -> int | None:
        quota = _number(file.with_name("cpu.cfs_quota_us"))
        return errno.EINVAL if 0 < quota < int(text) else self._plain(file, text)

    def _burst_v2(self, file: Path, text: str) -> int | None:
        quota = file.with_name("cpu.max").read_text().split()[0]
        return errno.EINVAL if quota != "max" and int(quota) < int(text) else self._plain(file, text)

    def _max(self, file: Path, text: str) -> int | None:
        words = text.split()
        quota, period = words[0], words[1] if len(words) > 1 else file.read_text().split()[1]
        burst = file.with_name("cpu.max.burst")
        if quota != "max" and (not quota.isdecimal() or int(quota) < 1000):
            return errno.EINVAL
        if quota != "max" and burst.exists() and int(quota) < _number(burst):
            return errno.EINVAL
        return self._plain(file, f"{quota} {period}")

    def _shares(self, file: Path, text: str) -> int | None:
        if _number(file.with_name("cpu.idle")) == 1:
            return errno.EINVAL
        return self._plain(file, str(min(max(int(text), 2), 262_144)))

    def _idle(self, file: Path, text: str) -> int | None:
        if text not in ("0", "1"):
            return errno.EINVAL
        shares = file.with_name("cpu.shares" if self.version == 1 else "cpu.weight")
        if text != file.read_text().strip():
            forgotten = "1024" if self.version == 1 else "100"
            shown = ("3" if self.version == 1 else self.idle_weight) if text == "1" else forgotten
            shares.write_text(f"{shown}\n")
        return self._plain(file, text)

    def _cpus(self, file: Path, text: str) -> int | None:
        try:
            wanted = CPUSet.parse(text)
        except CPUSetError:
            return errno.EINVAL
        if not wanted <= CPUSet.parse("0-7"):
            return errno.ERANGE
        above = file.parent.parent / file.name
        if above.exists() and not wanted <= CPUSet.parse(above.read_text()):
            return errno.EACCES
        for child in file.parent.iterdir():
            if child.is_dir() and not CPUSet.parse((child / file.name).read_text()) <= wanted:
                return errno.EBUSY
        return self._plain(file, str(wanted))

    def _cpus_v2(self, file: Path, text: str) -> int | None:
        populated = any(procs.read_text().strip() for procs in file.parent.rglob("cgroup.procs"))
        return errno.ENOSPC if not text and file.read_text().strip() and populated else self._plain(file, text)

    def _limit(self, file: Path, text: str) -> int | None:
        limit = _pages(text)
        if limit > _number(file.with_name("memory.memsw.limit_in_bytes")):
            return errno.EINVAL
        return self._plain(file, str(limit))

    def _swap(self, file: Path, text: str) -> int | None:
        limit = _pages(text)
        if limit < _number(file.with_name("memory.limit_in_bytes")):
            return errno.EINVAL
        return self._plain(file, str(limit))

    def _device(self, file: Path, text: str) -> int | None:
        device, _, amount = text.partition(" ")
        if device == "8:99":
            return errno.ENODEV
        lines = [line for line in file.read_text().splitlines() if not line.startswith(f"{device} ")]
        if amount != "0":
            lines.append(text)
        file.write_text("".join(f"{line}\n" for line in lines))
        return None

    def _columns(self, file: Path, text: str) -> int | None:
        device = text.split()[0]
        lines = {line.split()[0]: dict(_pairs(line)) for line in file.read_text().splitlines()}
        full = dict.fromkeys(("rbps", "wbps", "riops", "wiops"), "max")
        lines[device] = {**lines.get(device, full), **dict(_pairs(text))}
        kept = {name: columns for name, columns in lines.items() if set(columns.values()) != {"max"}}
        shown = (
            f"{name} {' '.join(f'{key}={value}' for key, value in columns.items())}" for name, columns in kept.items()
        )
        file.write_text("".join(f"{line}\n" for line in shown))
        return None


def _number(file: Path) -> int:
    return int(file.read_text()) if file.exists() else _HUGE


def _pages(text: str) -> int:
    number = int(text)
    return _HUGE if number < 0 or number >= _HUGE else number // _PAGE * _PAGE


def _pairs(line: str) -> list[tuple[str, str]]:
    return [(key, value) for key, _, value in (word.partition("=") for word in line.split()[1:])]
