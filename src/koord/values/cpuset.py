"""Immutable sets of logical CPUs and the kernel's list notation for them ("0-3,7").

Only set arithmetic: which CPUs share a core, a cache or a NUMA node is topology and lives with its policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from koord.values.go_format import parse_decimal_int, quoted

# Far above any kernel's NR_CPUS; without a bound "0-99999999999" would cost gigabytes.
MAX_CPU = 65_535


class CPUSetError(ValueError):
    """The text is not a CPU list."""


class CPUSet(msgspec.Struct, frozen=True):
    """A set of CPU numbers, kept as the bits of one integer. Iterates in ascending order."""

    bits: int = 0

    @staticmethod
    def of(cpus: Iterable[int]) -> CPUSet:
        bits = 0
        for cpu in cpus:
            _check(cpu)
            bits |= 1 << cpu
        return CPUSet(bits)

    @staticmethod
    def parse(text: str) -> CPUSet:
        """Read a kernel list; white space around it is ignored, since kernel files end in a newline."""
        text = text.strip()
        if not text:
            return EMPTY
        bits = 0
        for part in text.split(","):
            first, dash, last = part.partition("-")
            low = _number(first, text)
            high = _number(last, text) if dash else low
            if low > high:
                raise CPUSetError(f"invalid range {quoted(part)} ({low} > {high})")
            bits |= ((1 << high - low + 1) - 1) << low
        return CPUSet(bits)

    @staticmethod
    def parse_or_empty(text: str) -> CPUSet:
        """Read a kernel list; text that is none counts as the empty set."""
        try:
            return CPUSet.parse(text)
        except CPUSetError:
            return EMPTY

    def __str__(self) -> str:
        """Return the shortest kernel list."""
        parts = []
        bits, start = self.bits, 0
        while bits:
            gap = (bits & -bits).bit_length() - 1
            bits >>= gap
            start += gap
            run = (~bits & (bits + 1)).bit_length() - 1  # trailing ones
            parts.append(str(start) if run == 1 else f"{start}-{start + run - 1}")
            bits >>= run
            start += run
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"CPUSet.parse({str(self)!r})"

    def __iter__(self) -> Iterator[int]:
        bits = self.bits
        while bits:
            low = bits & -bits
            yield low.bit_length() - 1
            bits ^= low

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __contains__(self, cpu: object) -> bool:
        return isinstance(cpu, int) and cpu >= 0 and self.bits >> cpu & 1 == 1

    def __or__(self, other: CPUSet) -> CPUSet:
        return CPUSet(self.bits | other.bits)

    def __and__(self, other: CPUSet) -> CPUSet:
        return CPUSet(self.bits & other.bits)

    def __sub__(self, other: CPUSet) -> CPUSet:
        return CPUSet(self.bits & ~other.bits)

    def __le__(self, other: CPUSet) -> bool:
        """Return whether every CPU of this set is in the other."""
        return self.bits & ~other.bits == 0

    def isdisjoint(self, other: CPUSet) -> bool:
        return self.bits & other.bits == 0


EMPTY = CPUSet()


def _number(text: str, whole: str) -> int:
    cpu = parse_decimal_int(text)
    if cpu is None or not text[0].isdecimal():
        raise CPUSetError(f"invalid cpu list {quoted(whole)}: {quoted(text)} is not a cpu number")
    _check(cpu)
    return cpu


def _check(cpu: int) -> None:
    if not 0 <= cpu <= MAX_CPU:
        raise CPUSetError(f"cpu number must be in range 0-{MAX_CPU}, got {cpu}")
