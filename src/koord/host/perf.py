"""Count cycles and instructions of one cgroup over all CPUs with perf events; CPI is their quotient.

It needs a kernel and a machine that permit it (many virtual machines have no counters): `available` checks that.
"""

from __future__ import annotations

import os
import struct

import msgspec

from koord.host import libc
from koord.host.filesystem import Host
from koord.host.io_error import OPEN, READ, IoError, malformed

_HARDWARE, _CYCLES, _INSTRUCTIONS = 0, 0, 1
_READ_FORMAT = 0b11  # beside the count: time enabled and time running
_INHERIT = 0b10
_IN_CGROUP = 0b100
_CLOSE_ON_EXEC = 0b1000
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
_COUNT = struct.Struct("=QQQ")


class Cpi(msgspec.Struct, frozen=True):
    """Counts since the counter was opened, scaled up for the time in which others used the hardware's counters."""

    cycles: int
    instructions: int


class CpiCounter:
    def __init__(self, path: str, cycles: list[int], instructions: list[int]) -> None:
        self._path = path
        self._cycles = cycles
        self._instructions = instructions

    def read(self) -> Cpi | IoError:
        cycles = self._sum(self._cycles)
        instructions = self._sum(self._instructions)
        if isinstance(cycles, IoError):
            return cycles
        return instructions if isinstance(instructions, IoError) else Cpi(cycles, instructions)

    def close(self) -> None:
        _close([*self._cycles, *self._instructions])
        self._cycles, self._instructions = [], []

    def _sum(self, descriptors: list[int]) -> int | IoError:
        total = 0.0
        for descriptor in descriptors:
            try:
                data = os.read(descriptor, _COUNT.size)
            except OSError as error:
                return IoError(self._path, READ, error.errno or 0)
            if len(data) != _COUNT.size:
                return malformed(self._path, f"{len(data)} bytes of a counter")
            total += scaled(*_COUNT.unpack(data))
        return int(total)


def scaled(count: int, enabled: int, running: int) -> float:
    return count * enabled / running if enabled and running else float(count)


def available() -> IoError | None:
    """Count this process's own cycles; return None when that works."""
    descriptor = libc.perf_event_open(_attributes(_CYCLES), 0, -1, -1, _CLOSE_ON_EXEC)
    if isinstance(descriptor, IoError):
        return descriptor
    os.close(descriptor)
    return None


def open_cpi(host: Host, folder: str, cpus: list[int]) -> CpiCounter | IoError:
    """Start counting for the cgroup at `folder`: below perf_event on cgroup v1, anywhere on v2."""
    try:
        group = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except OSError as error:
        return IoError(folder, OPEN, error.errno or 0)
    opened: dict[int, list[int]] = {_CYCLES: [], _INSTRUCTIONS: []}
    try:
        for cpu in cpus:
            for event, descriptors in opened.items():
                descriptor = libc.perf_event_open(_attributes(event), group, cpu, -1, _IN_CGROUP | _CLOSE_ON_EXEC)
                if isinstance(descriptor, IoError):
                    _close([*opened[_CYCLES], *opened[_INSTRUCTIONS]])
                    return msgspec.structs.replace(descriptor, path=folder)
                descriptors.append(descriptor)
    finally:
        os.close(group)
    return CpiCounter(folder, opened[_CYCLES], opened[_INSTRUCTIONS])


def _attributes(event: int) -> bytes:
    return _ATTRIBUTES.pack(_HARDWARE, _ATTRIBUTES.size, event, 0, 0, _READ_FORMAT, _INHERIT, 0, 0, 0)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
