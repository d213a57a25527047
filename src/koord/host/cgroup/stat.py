"""Parse the texts of cgroup files of both versions. Pure; which file to read is the reader's business.

Every parser returns None when a required key is missing: half of a record is worse than none.
"""

from __future__ import annotations

import msgspec

from koord.host.cgroup.codec import MAX_INT64
from koord.values.go_format import parse_decimal_int

_V1_MEMORY = (
    *("total_cache", "total_rss", "total_inactive_file", "total_active_file", "total_inactive_anon"),
    *("total_active_anon", "total_unevictable"),
)
_V2_MEMORY = ("file", "anon", "inactive_file", "active_file", "inactive_anon", "active_anon", "unevictable")
_IDLE_LINES = 31
_COLD_KEYS = frozenset({"cfei", "dfei", "cfui", "dfui"})


class Throttling(msgspec.Struct, frozen=True):
    periods: int
    throttled: int
    throttled_ns: int


class MemoryStat(msgspec.Struct, frozen=True):
    """The bytes of the group and everything below it."""

    cache: int
    rss: int
    inactive_file: int
    active_file: int
    inactive_anon: int
    active_anon: int
    unevictable: int

    @property
    def usage(self) -> int:
        return self.inactive_anon + self.active_anon + self.unevictable

    @property
    def usage_with_page_cache(self) -> int:
        return self.usage + self.active_file + self.inactive_file


class PressureLine(msgspec.Struct, frozen=True):
    """The share of time stalled, in percent over 10, 60 and 300 seconds, and in microseconds since boot."""

    avg10: float = 0.0
    avg60: float = 0.0
    avg300: float = 0.0
    total_us: int = 0


class Pressure(msgspec.Struct, frozen=True):
    some: PressureLine
    full: PressureLine
    full_supported: bool


def numbers_of_keys(text: str, keys: tuple[str, ...]) -> list[int] | None:
    """Return the numbers of `key number` lines; None when one is missing."""
    words = text.split()
    have = dict(zip(words[::2], words[1::2]))
    try:
        return [int(have[key]) for key in keys]
    except (KeyError, ValueError):
        return None


def parse_usage_ns(text: str, version: int) -> int | None:
    if version == 1:
        return parse_decimal_int(text.strip())
    found = numbers_of_keys(text, ("usage_usec",))
    return None if found is None else found[0] * 1000


def parse_throttling(text: str, version: int) -> Throttling | None:
    time_key, scale = ("throttled_time", 1) if version == 1 else ("throttled_usec", 1000)
    found = numbers_of_keys(text, ("nr_periods", "nr_throttled", time_key))
    return None if found is None else Throttling(found[0], found[1], found[2] * scale)


def parse_memory_stat(text: str, version: int) -> MemoryStat | None:
    found = numbers_of_keys(text, _V1_MEMORY if version == 1 else _V2_MEMORY)
    return None if found is None else MemoryStat(*found)


def parse_amount(text: str) -> int | None:
    """Parse a byte count; `max` is the largest integer."""
    text = text.strip()
    return MAX_INT64 if text == "max" else parse_decimal_int(text)


def parse_numa_bytes(text: str, version: int, page_bytes: int) -> dict[int, int] | None:
    """Parse the unreclaimable bytes by NUMA node: anonymous and unevictable memory of the group and all below it.

    Version 1 counts pages, and its lines without `hierarchical_` leave out what is below: for a pod, everything.
    """
    by_name: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        words = line.split(maxsplit=1)
        nodes = _v1_numa(line) if words else None
        if nodes is not None:
            by_name[words[0].partition("=")[0]] = nodes
    names: tuple[str, ...] = ("inactive_anon", "active_anon", "unevictable")
    if version == 1:
        above = "hierarchical_" if "hierarchical_anon" in by_name else ""
        names = (f"{above}anon", f"{above}unevictable")
    if any(name not in by_name for name in names):
        return None
    scale = page_bytes if version == 1 else 1
    return {node: sum(by_name[name].get(node, 0) for name in names) * scale for node in by_name[names[0]]}


def parse_pressure(text: str) -> Pressure | None:
    lines: dict[str, PressureLine] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name not in ("some", "full"):
            return None
        parsed = _pressure_line(rest)
        if parsed is None:
            return None
        lines[name] = parsed
    if "some" not in lines:
        return None
    return Pressure(lines["some"], lines.get("full", PressureLine()), "full" in lines)


def parse_cold_bytes(text: str, boundary: int = 5) -> int | None:
    """Parse the bytes untouched for `boundary` or more scan buckets, from a vendor kernel's memory.idle_page_stats."""
    lines = text.strip("\n").split("\n")
    if len(lines) != _IDLE_LINES:
        return None
    total = 0
    for line in lines[14:]:
        words = line.split()
        if words and words[0] in _COLD_KEYS:
            cold = [parse_decimal_int(word) for word in words[1 + boundary :]]
            if any(number is None for number in cold):
                return None
            total += sum(number for number in cold if number is not None)
    return total


def parse_ids(text: str) -> list[int]:
    """Parse process or thread ids, one per line."""
    return [int(line) for line in text.split() if line.isdecimal()]


def _pressure_line(text: str) -> PressureLine | None:
    have = dict(word.partition("=")[::2] for word in text.split())
    try:
        return PressureLine(float(have["avg10"]), float(have["avg60"]), float(have["avg300"]), int(have["total"]))
    except (KeyError, ValueError):
        return None


def _v1_numa(line: str) -> dict[int, int] | None:
    found: dict[int, int] = {}
    for word in line.split()[1:]:
        node, _, pages = word.partition("=")
        if not node.startswith("N") or not node[1:].isdecimal() or not pages.isdecimal():
            return None
        found[int(node[1:])] = int(pages)
    return found
