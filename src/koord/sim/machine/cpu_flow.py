"""Compute how much more load fits on CPUs when each kind of load may run on some of them only.

Each kind of load has a set of CPUs, as bits. Load moves freely inside its set, so this is a maximum-flow problem: no
kinds together may need more than the CPUs that any of them can reach.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

CPU_MILLI = 1000.0
EPSILON_MILLI = 1e-6  # a millionth of a milli-core is nothing
_FEW = 4  # up to here all combinations are tried, which is faster than a search


def largest_step(masks: Sequence[int], loads: Sequence[float], rates: Sequence[float]) -> tuple[float, int]:
    """Return for how long all loads can grow at their rates, and the CPUs that are full then; infinite when none grows.

    The loads fit as they are.
    """
    if len(masks) <= _FEW:
        return _by_all_sets(tuple(masks), loads, rates)
    return _by_cuts(masks, loads, rates)


def _by_all_sets(masks: tuple[int, ...], loads: Sequence[float], rates: Sequence[float]) -> tuple[float, int]:
    best, full = float("inf"), 0
    for members, union, room in _sets(masks):
        rate = sum(rates[member] for member in members)
        if rate > 0:
            step = (room - sum(loads[member] for member in members)) / rate
            if step < best - EPSILON_MILLI:
                best, full = step, union
            elif step <= best + EPSILON_MILLI:
                full |= union
    return max(best, 0.0), full


@functools.lru_cache(maxsize=1024)
def _sets(masks: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], int, float], ...]:
    """Return each combination of loads with the CPUs that they reach together and the capacity of those."""
    found = []
    for chosen in range(1, 1 << len(masks)):
        members = tuple(index for index in range(len(masks)) if chosen >> index & 1)
        union = 0
        for member in members:
            union |= masks[member]
        found.append((members, union, union.bit_count() * CPU_MILLI))
    return tuple(found)


def _by_cuts(masks: Sequence[int], loads: Sequence[float], rates: Sequence[float]) -> tuple[float, int]:
    """Find the step by cuts: from one too long, find the loads that do not fit, shorten it for them, repeat."""
    growing = sum(rates)
    if growing <= 0:
        return float("inf"), 0
    everywhere = 0
    for mask in masks:
        everywhere |= mask
    regions = _regions(tuple(masks))
    step = (everywhere.bit_count() * CPU_MILLI - sum(loads)) / growing
    full = (
        everywhere if step <= EPSILON_MILLI or sum(loads) + step * growing >= everywhere.bit_count() * CPU_MILLI else 0
    )
    while True:
        step = max(step, 0.0)
        stuck = _unplaceable_loads(regions, [load + step * rate for load, rate in zip(loads, rates, strict=True)])
        if not stuck:
            return step, full
        union = 0
        for index in stuck:
            union |= masks[index]
        rate = sum(rates[index] for index in stuck)
        room = union.bit_count() * CPU_MILLI - sum(loads[index] for index in stuck)
        if rate <= 0 or step <= 0:
            return 0.0, union
        shorter = room / rate
        if shorter >= step - EPSILON_MILLI:  # within floating-point precision
            return max(min(step, shorter), 0.0), full | union
        step, full = shorter, union


@functools.lru_cache(maxsize=1024)
def _regions(masks: tuple[int, ...]) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """Group CPUs that the same loads can reach; return the capacity of each region, and those loads."""
    sizes: dict[tuple[int, ...], int] = {}
    everywhere = 0
    for mask in masks:
        everywhere |= mask
    for cpu in range(everywhere.bit_length()):
        users = tuple(index for index, mask in enumerate(masks) if mask >> cpu & 1)
        if users:
            sizes[users] = sizes.get(users, 0) + 1
    return tuple((size * CPU_MILLI, users) for users, size in sizes.items())


def _unplaceable_loads(regions: Sequence[tuple[float, tuple[int, ...]]], wanted: Sequence[float]) -> set[int]:
    """Return the loads that cannot all be placed, with every load that competes with them; none when all fit."""
    left = list(wanted)
    room = [size for size, _ in regions]
    placed = [dict.fromkeys(users, 0.0) for _, users in regions]
    reach: list[list[int]] = [[] for _ in wanted]
    for place, (_, users) in enumerate(regions):
        for user in users:
            reach[user].append(place)
    stuck: set[int] = set()
    for index in range(len(wanted)):
        while left[index] > EPSILON_MILLI:
            path = _augmenting_path(index, reach, room, placed)
            if isinstance(path, set):
                stuck |= path
                break
            _augment(path, index, left, room, placed)
    return stuck


def _augmenting_path(
    start: int, reach: Sequence[Sequence[int]], room: Sequence[float], placed: Sequence[dict[int, float]]
) -> list[tuple[int, int]] | set[int]:
    """Return the steps (load, region) from `start` to a region with room, each displacing a load; else all met."""
    came: dict[int, tuple[int, int] | None] = {start: None}  # load -> (load before it, place that it was met at)
    queue = [start]
    for load in queue:
        for place in reach[load]:
            if room[place] > EPSILON_MILLI:
                path = [(load, place)]
                while (before := came[path[-1][0]]) is not None:
                    path.append(before)
                return path[::-1]
            for other, amount in placed[place].items():
                if amount > EPSILON_MILLI and other not in came:
                    came[other] = (load, place)
                    queue.append(other)
    return set(came)


def _augment(
    path: list[tuple[int, int]], start: int, left: list[float], room: list[float], placed: Sequence[dict[int, float]]
) -> None:
    amount = min(left[start], room[path[-1][1]])
    for (_, place), (pushed, _) in itertools.pairwise(path):
        amount = min(amount, placed[place][pushed])
    for position, (load, place) in enumerate(path):
        placed[place][load] += amount
        if position + 1 < len(path):
            placed[place][path[position + 1][0]] -= amount
    room[path[-1][1]] -= amount
    left[start] -= amount
