"""Immutable masks over the NUMA nodes of one machine, with the ordering by which topology hints are merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

import msgspec

WIDTH = 64


class BitMask(msgspec.Struct, frozen=True):
    """A set of small numbers as the bits of one integer. Iterates in ascending order."""

    value: int = 0

    @staticmethod
    def of(*bits: int) -> BitMask:
        return EMPTY.set(*bits)

    def set(self, *bits: int) -> BitMask:
        return BitMask(self.value | _join(bits))

    def clear(self, *bits: int) -> BitMask:
        return BitMask(self.value & ~_join(bits))

    def __and__(self, other: BitMask) -> BitMask:
        return BitMask(self.value & other.value)

    def __or__(self, other: BitMask) -> BitMask:
        return BitMask(self.value | other.value)

    def __contains__(self, bit: object) -> bool:
        return isinstance(bit, int) and 0 <= bit < WIDTH and self.value >> bit & 1 == 1

    def __iter__(self) -> Iterator[int]:
        rest = self.value
        while rest:
            low = rest & -rest
            yield low.bit_length() - 1
            rest ^= low

    def __len__(self) -> int:
        return self.value.bit_count()

    def is_narrower_than(self, other: BitMask) -> bool:
        """Return whether fewer bits are set; of equally many the lower number is narrower: node 0 before node 1."""
        mine, theirs = self.value.bit_count(), other.value.bit_count()
        return self.value < other.value if mine == theirs else mine < theirs

    def __str__(self) -> str:
        """Return binary digits as the kubelet's messages carry them.

        They are padded to an even width, save for one bit alone at the foot of a pair ("11", "0101", but "100").
        """
        for shift in range(WIDTH - 2, 0, -2):
            if self.value > 1 << shift:
                return f"{self.value:0{shift + 2}b}"
        return f"{self.value:02b}"


EMPTY = BitMask()
FULL = BitMask((1 << WIDTH) - 1)


def masks_over(bits: Iterable[int]) -> Iterator[BitMask]:
    """Yield every non-empty subset of the bits, fewest first, each size in the order of the bits given."""
    pool = tuple(bits)
    for size in range(1, len(pool) + 1):
        for chosen in combinations(pool, size):
            yield BitMask.of(*chosen)


def _join(bits: Iterable[int]) -> int:
    value = 0
    for bit in bits:
        if not 0 <= bit < WIDTH:
            raise ValueError(f"bit number must be in range 0-{WIDTH - 1}, got {bit}")
        value |= 1 << bit
    return value
