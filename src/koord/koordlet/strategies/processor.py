"""The CPUSuppress strategy: how much CPU best-effort work may have so that the node stays under its threshold.

It acts by cpuset or by quota; when it is off, both are restored. CPUs are chosen as whole cores first, spread over NUMA
nodes, and the same for the same machine.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from koord.values.cpuset import CPUSet


class Processor(msgspec.Struct, frozen=True, gc=False):
    """One logical CPU and its place in the topology."""
    cpu: int
    core: int = 0
    socket: int = 0
    node: int = 0


def pick(need: int, processors: Iterable[Processor]) -> list[int]:
    """Return `need` CPUs, or all when there are fewer, in the order in which they were taken.

    NUMA nodes take turns, the one with the most CPUs first. Each gives whole cores of two for as long as any has one;
    then each gives single CPUs, from where the turn of cores stopped.
    """
    buckets = _buckets(processors)
    need = min(need, sum(map(len, buckets)))
    taken: list[int] = []
    turn, found = 0, True
    while need - len(taken) > 1:
        if turn == 0 and not found:  # a whole round without one
            break
        pair = _first_pair(buckets[turn], taken)
        taken += pair
        found = bool(pair) or (found and turn > 0)
        turn = (turn + 1) % len(buckets)
    while len(taken) < need:
        taken += next(([one.cpu] for one in buckets[turn] if one.cpu not in taken), [])
        turn = (turn + 1) % len(buckets)
    return taken


def pick_between(need: int, lsr: Sequence[Processor], shared: Sequence[Processor]) -> CPUSet:
    """Select CPUs for BE: of LSR pods' CPUs in proportion to their number, rounded down in their favour."""
    return _picked(need, tuple(lsr), tuple(shared))


@functools.lru_cache(maxsize=128)
def _picked(need: int, lsr: tuple[Processor, ...], shared: tuple[Processor, ...]) -> CPUSet:
    """Select the CPUs; cached, as the same few selections are made every second."""
    total = len(lsr) + len(shared)
    if not total:
        return CPUSet()
    need = min(need, total)
    from_lsr = need * len(lsr) // total
    return CPUSet.of([*pick(from_lsr, lsr), *pick(need - from_lsr, shared)])


def _buckets(processors: Iterable[Processor]) -> list[list[Processor]]:
    grouped: dict[tuple[int, int], list[Processor]] = {}
    for one in processors:
        grouped.setdefault((one.node, one.socket), []).append(one)
    buckets = [sorted(group, key=lambda one: (one.core, one.cpu)) for group in grouped.values()]
    return sorted(buckets, key=lambda bucket: (-len(bucket), bucket[0].cpu))


def _first_pair(bucket: Sequence[Processor], taken: Sequence[int]) -> list[int]:
    for one, other in pairwise(bucket):
        if one.core == other.core and one.cpu not in taken and other.cpu not in taken:
            return [one.cpu, other.cpu]
    return []
