"""HAMi-core's region, read from files of its layout."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.gpu.hami_region import REGION_BYTES, SLOT_BYTES, HamiRegion, parse_region, read_region
from koord.host.io_error import IoError

UUID = "GPU-11111111"
SLOTS_AT, TAIL_AT = 1856, 2_008_896


class RegionFile:
    """A region as the library lays it out."""

    def __init__(self, limit: int = 1 << 30, cores: int = 30) -> None:
        self.data = bytearray(REGION_BYTES + 1)
        struct.pack_into("<iII", self.data, 0, 19_920_718, 1, 2)
        struct.pack_into("<Q", self.data, 56, 1)
        self.data[64 : 64 + len(UUID)] = UUID.encode()
        struct.pack_into("<Q", self.data, 1600, limit)
        struct.pack_into("<Q", self.data, 1728, cores)
        struct.pack_into("<iiii", self.data, TAIL_AT, 0, 1, 2, 1)
        struct.pack_into("<Q", self.data, TAIL_AT + 16, 1_700_000_000)
        self.slots = 0

    def process(self, pid: int, used: int, sm: int = 0, *, host_pid: int = 0, sequence: int = 2) -> None:
        at = SLOTS_AT + self.slots * SLOT_BYTES
        struct.pack_into("<ii", self.data, at, pid, host_pid)
        struct.pack_into("<Q", self.data, at + 8 + 32, used)
        struct.pack_into("<Q", self.data, at + 1160 + 16, sm)
        struct.pack_into("<Q", self.data, at + 1936, sequence)
        self.slots += 1
        struct.pack_into("<i", self.data, TAIL_AT, self.slots)

    def parse(self, *alive: int) -> HamiRegion | str:
        return parse_region(lambda offset, size: bytes(self.data[offset : offset + size]), lambda pid: pid in alive)


def parsed(region: RegionFile, *alive: int) -> HamiRegion:
    found = region.parse(*alive)
    assert isinstance(found, HamiRegion), found
    return found


def test_limits_and_what_processes_use(tmp_path: Path) -> None:
    region = RegionFile()
    region.process(7, 100, 20, host_pid=70)
    region.process(8, 50, 30, host_pid=80)
    path = tmp_path / "c.cache"
    path.write_bytes(region.data)
    found = read_region(str(path), lambda _: True)
    assert isinstance(found, HamiRegion)
    (card,) = found.cards
    assert (card.uuid, card.memory_limit_bytes, card.core_limit_percent) == (UUID, 1 << 30, 30)
    assert (card.used_bytes, card.core_percent) == (150, 50)
    assert (found.limits_cores, found.blocked, found.last_kernel_s) == (True, False, 1_700_000_000)


def test_a_counter_below_zero_counts_as_nothing() -> None:
    region = RegionFile()
    region.process(7, 2**64 - 4096, host_pid=70)
    region.process(8, 50, host_pid=80)
    found = parsed(region, 70, 80)
    assert (found.cards[0].used_bytes, found.underflows) == (50, 1)


def test_processes_that_are_gone_are_not_counted() -> None:
    region = RegionFile()
    region.process(7, 100, host_pid=70)
    region.process(8, 50, host_pid=80)
    region.process(9, 25)  # the library has not found it on the host: nobody knows whether it is gone
    found = parsed(region, 80)
    assert (found.cards[0].used_bytes, found.stale) == (75, 1)
    assert [one.pid for one in found.processes] == [8, 9]


def test_a_slot_that_is_always_written_is_told() -> None:
    region = RegionFile()
    region.process(7, 100, host_pid=70, sequence=3)
    found = parsed(region, 70)
    assert (found.cards[0].used_bytes, found.torn) == (100, 1)


def test_a_slot_is_read_again_until_its_writer_is_done() -> None:
    region = RegionFile()
    region.process(7, 100, host_pid=70, sequence=3)
    reads = 0

    def read(offset: int, size: int) -> bytes:
        nonlocal reads
        if offset == SLOTS_AT:
            reads += 1
            if reads == 3:
                struct.pack_into("<Q", region.data, SLOTS_AT + 8 + 32, 200)
                struct.pack_into("<Q", region.data, SLOTS_AT + 1936, 4)
        return bytes(region.data[offset : offset + size])

    found = parse_region(read, lambda _: True)
    assert isinstance(found, HamiRegion)
    assert (found.cards[0].used_bytes, found.torn) == (200, 0)


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        pytest.param(0, 0, "not initialized yet", id="empty"),
        pytest.param(0, 5, "begins with 5", id="no-region"),
        pytest.param(8, 1, "version 1.1", id="older"),
        pytest.param(56, 17, "17 cards", id="too-many-cards"),
        pytest.param(TAIL_AT, 1025, "1025 processes", id="too-many-processes"),
        pytest.param(TAIL_AT, -1, "-1 processes", id="negative"),
    ],
)
def test_what_is_no_region_is_refused(at: int, value: int, said: str) -> None:
    region = RegionFile()
    struct.pack_into("<i", region.data, at, value)
    assert said in str(region.parse())


def test_files_that_are_too_small_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "c.cache"
    path.write_bytes(b"\0" * 100)
    found = read_region(str(path), lambda _: True)
    assert isinstance(found, IoError)
    assert "100 bytes" in str(found)
    gone = read_region(str(tmp_path / "none"), lambda _: True)
    assert isinstance(gone, IoError)
    assert gone.vanished


@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 3), st.integers(0, 9)),
        max_size=5,
    )
)
def test_sums_stay_within_what_can_be(slots: list[tuple[int, int, int, int]]) -> None:
    region = RegionFile()
    for number, (used, sm, host_pid, sequence) in enumerate(slots):
        region.process(number + 1, used, sm, host_pid=host_pid, sequence=sequence)
    found = parsed(region, 1, 2)
    (card,) = found.cards
    assert 0 <= card.used_bytes < 5 * 2**63
    assert 0 <= card.core_percent <= 100
    assert len(found.processes) + found.stale == len(slots)
