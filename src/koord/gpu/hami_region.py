"""The region that HAMi-core shares between the processes of a container: their limits, and what each uses of a card.

The region is a file of fixed layout (version 1.2) that the library maps and writes under a sequence lock for each
process. Here it is only read. A process's counters can fall below zero, which an unsigned number shows as nearly 2^64,
and slots of killed processes stay until another allocates: both are told, and neither is counted.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import msgspec

from koord.host.io_error import OPEN, READ, IoError, malformed

MAGIC, VERSION = 19_920_718, (1, 2)
REGION_BYTES = 2_008_952
DEVICES, SLOTS, SLOT_BYTES = 16, 1024, 1960
_SLOTS_AT, _TAIL_AT = 1856, 2_008_896
_UUID_AT, _UUID_BYTES = 64, 96
_LIMIT_AT, _SM_LIMIT_AT = 1600, 1728
_USED_AT, _USED_STRIDE, _USED_TOTAL = 8, 64, 32
_MONITOR_AT = 1032
_UTIL_AT, _UTIL_STRIDE, _UTIL_SM = 1160, 48, 16
_STATUS_AT, _SEQUENCE_AT = 1928, 1936
_ATTEMPTS = 8  # of a slot that a process writes
_NEGATIVE = 1 << 63


class HamiCard(msgspec.Struct, frozen=True, kw_only=True):
    """One card of a container, by its index there. A limit of 0 is none."""

    uuid: str
    memory_limit_bytes: int
    core_limit_percent: int
    used_bytes: int
    core_percent: int


class HamiProcess(msgspec.Struct, frozen=True, kw_only=True):
    pid: int  # in the container
    host_pid: int  # 0 where the library has not found it: it limits no cores then
    used_bytes: tuple[int, ...]
    core_percent: tuple[int, ...]


class HamiRegion(msgspec.Struct, frozen=True, kw_only=True):
    """`stale` processes are gone and not counted; `underflows` are counters below zero, counted as 0; `torn` slots were
    being written all the time, and are counted as they were read.
    """

    cards: tuple[HamiCard, ...]
    processes: tuple[HamiProcess, ...]
    limits_cores: bool
    blocked: bool  # launches wait, for a container of higher priority
    last_kernel_s: int
    stale: int = 0
    underflows: int = 0
    torn: int = 0


Reader = Callable[[int, int], bytes]  # offset and size


def read_region(path: str, alive: Callable[[int], bool]) -> HamiRegion | IoError:
    """Read the region of a container. `alive` tells whether a process of the host exists."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return IoError(path, OPEN, error.errno or 0)
    try:
        size = os.fstat(descriptor).st_size
        if size < REGION_BYTES:
            return malformed(path, f"{size} bytes are no region of version 1.2, which has {REGION_BYTES}")
        found = parse_region(lambda offset, count: os.pread(descriptor, count, offset), alive)
    except OSError as error:
        return IoError(path, READ, error.errno or 0)
    finally:
        os.close(descriptor)
    return malformed(path, found) if isinstance(found, str) else found


def parse_region(read: Reader, alive: Callable[[int], bool]) -> HamiRegion | str:
    """Return the region; text says why it is none."""
    head = read(0, _SLOTS_AT)
    magic, major, minor = struct.unpack_from("<iII", head)
    if magic != MAGIC:
        return "it is not initialized yet" if magic == 0 else f"it begins with {magic}, which is no region"
    if (major, minor) != VERSION:
        return f"version {major}.{minor} of the region is not known, {VERSION[0]}.{VERSION[1]} is"
    (count,) = struct.unpack_from("<Q", head, 56)
    slots, switch, recent = struct.unpack("<iii", read(_TAIL_AT, 12))
    if not 0 <= count <= DEVICES or not 0 <= slots <= SLOTS:
        return f"{count} cards and {slots} processes are more than it holds"
    (last_kernel_s,) = struct.unpack("<Q", read(_TAIL_AT + 16, 8))
    processes: list[HamiProcess] = []
    stale = underflows = torn = 0
    for index in range(slots):
        slot, whole = _read_slot(read, index)
        torn += not whole
        process, wrapped = _process(slot, count)
        if process.pid == 0:
            continue
        if process.host_pid and not alive(process.host_pid):
            stale += 1
            continue
        underflows += wrapped
        processes.append(process)
    limits = struct.unpack_from(f"<{DEVICES}Q", head, _LIMIT_AT)
    sm_limits = struct.unpack_from(f"<{DEVICES}Q", head, _SM_LIMIT_AT)
    cards = tuple(
        HamiCard(
            uuid=_text(head[_UUID_AT + n * _UUID_BYTES : _UUID_AT + (n + 1) * _UUID_BYTES]),
            memory_limit_bytes=limits[n],
            core_limit_percent=sm_limits[n],
            used_bytes=sum(one.used_bytes[n] for one in processes),
            core_percent=min(sum(one.core_percent[n] for one in processes), 100),
        )
        for n in range(count)
    )
    return HamiRegion(
        cards=cards,
        processes=tuple(processes),
        limits_cores=switch != 0,
        blocked=recent < 0,
        last_kernel_s=last_kernel_s,
        stale=stale,
        underflows=underflows,
        torn=torn,
    )


def _read_slot(read: Reader, index: int) -> tuple[bytes, bool]:
    """Return a slot that nobody wrote meanwhile, and whether that could be had."""
    at, slot = _SLOTS_AT + index * SLOT_BYTES, b""
    for _ in range(_ATTEMPTS):
        slot = read(at, SLOT_BYTES)
        (sequence,) = struct.unpack_from("<Q", slot, _SEQUENCE_AT)
        (after,) = struct.unpack("<Q", read(at + _SEQUENCE_AT, 8))
        if sequence == after and sequence % 2 == 0:
            return slot, True
    return slot, False


def _process(slot: bytes, cards: int) -> tuple[HamiProcess, int]:
    pid, host_pid = struct.unpack_from("<ii", slot)
    used: list[int] = []
    cores: list[int] = []
    wrapped = 0
    for n in range(cards):
        (total,) = struct.unpack_from("<Q", slot, _USED_AT + n * _USED_STRIDE + _USED_TOTAL)
        (sm,) = struct.unpack_from("<Q", slot, _UTIL_AT + n * _UTIL_STRIDE + _UTIL_SM)
        wrapped += total >= _NEGATIVE
        used.append(0 if total >= _NEGATIVE else total)
        cores.append(min(sm, 100))
    return HamiProcess(pid=pid, host_pid=host_pid, used_bytes=tuple(used), core_percent=tuple(cores)), wrapped


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")
