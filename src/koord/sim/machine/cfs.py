"""The CFS model: groups with weights, quotas, cpusets and ranks, and how they divide the CPUs.

Every group's share rises in proportion to its weight until its demand is met, its quota is used or its CPUs are full;
what one leaves, the others of its group share. Higher ranks are served before lower ones. A burst buffer saves unused
quota for later periods; its content lives from step to step with the caller.

How much more load fits on CPUs is computed where each kind of load may run on some of them only. Each kind of load has
a set of CPUs, as bits. Load moves freely inside its set, so this is a maximum-flow problem: no kinds together may need
more than the CPUs that any of them can reach.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import msgspec

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


DEFAULT_WEIGHT = 1024.0
UNBOUNDED = float("inf")


class CfsGroup:
    """One cgroup in the CFS tree. Weight is cpu.shares; a bound is a quota in milli-cores.

    `mask` holds CPUs as bits; None is the parent's. A rank that is None is the parent's.
    """

    __slots__ = ("bound_milli", "children", "mask", "name", "parent", "rank", "weight")

    def __init__(
        self,
        name: str,
        parent: CfsGroup | None = None,
        *,
        weight: float = DEFAULT_WEIGHT,
        bound_milli: float = UNBOUNDED,
        mask: int | None = None,
        rank: int | None = None,
    ) -> None:
        self.name = name
        self.parent = parent
        self.children: dict[str, CfsGroup] = {}
        self.weight = weight
        self.bound_milli = bound_milli
        self.mask = mask
        self.rank = rank
        if parent is not None:
            parent.children[name] = self

    def cut(self) -> None:
        """Remove the group and all below it from the tree."""
        if self.parent is not None:
            del self.parent.children[self.name]
            self.parent = None

    def walk(self) -> Iterator[CfsGroup]:
        """Yield the group and all below it, parents before children, in the order in which they were added."""
        yield self
        for child in self.children.values():
            yield from child.walk()


PERIOD_S = 0.1


class CfsQuota(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A CFS quota and its burst buffer: `milli` is infinite without a quota; `burst_milli_s` is in milli-CPU s."""

    milli: float = UNBOUNDED
    burst_milli_s: float = 0.0


def max_milli_in_step(quota: CfsQuota, saved_milli_s: float, step_s: float) -> float:
    """Return the most that may run on average over a step: the quota, and what was saved before."""
    return quota.milli + min(saved_milli_s, quota.burst_milli_s) / step_s


def saved_after(quota: CfsQuota, saved_milli_s: float, used_milli: float, step_s: float) -> float:
    """Return how much unused quota the burst buffer holds after a step."""
    if quota.milli == UNBOUNDED:
        return 0.0
    left = min(saved_milli_s, quota.burst_milli_s) + (quota.milli - used_milli) * step_s
    return min(max(left, 0.0), quota.burst_milli_s)


def throttled_share(quota: CfsQuota, wanted_milli: float, gust: float = 1.0) -> float:
    """Return the share of periods in which work waits for its quota.

    Work wants `gust` times its mean in one of `gust` periods and nothing in the others; 1 is an even flow. In a busy
    period the quota runs out unless the buffer, filled in the quiet periods, holds the rest.
    """
    if wanted_milli <= 0 or quota.milli == UNBOUNDED:
        return 0.0
    if wanted_milli > quota.milli:
        # More than the quota for good: a period is left unthrottled only as far as the quota goes.
        return 1.0 if gust <= 1 else max(1.0 / gust, (wanted_milli - quota.milli) / wanted_milli)
    missing = wanted_milli * gust - quota.milli
    if missing <= 0:
        return 0.0
    buffer_milli = min(quota.burst_milli_s / PERIOD_S, quota.milli * (gust - 1))
    return max(0.0, 1.0 - buffer_milli / missing) / gust


NORMAL_RANK = 0


class _Node:
    """A group on the path to a leaf with demand."""

    __slots__ = ("bound", "growing", "parent", "rate", "used", "weight")

    def __init__(self, parent: _Node | None, weight: float, bound: float) -> None:
        self.parent = parent
        self.weight = weight
        self.bound = bound
        self.used = 0.0
        self.growing = 0.0  # weight of what still grows below
        self.rate = 0.0


class _Leaf:
    __slots__ = ("got", "held", "kind", "knot", "name", "wanted")

    def __init__(self, name: str, knot: _Node, kind: int, wanted: float) -> None:
        self.name = name
        self.knot = knot
        self.kind = kind  # place of its CPU set among all
        self.wanted = wanted
        self.got = 0.0
        self.held = False


def divide_cpu(root: CfsGroup, wanted_milli: Mapping[str, float]) -> dict[str, float]:
    """Return what each leaf of the tree gets of what it demands. The root's mask holds the CPUs of the machine."""
    assert root.mask is not None, "the root has the machine's CPUs"
    masks: dict[int, int] = {}
    knots: list[_Node] = []
    by_rank: dict[int, list[_Leaf]] = {}
    granted = dict.fromkeys(wanted_milli, 0.0)

    def visit(group: CfsGroup, parent: _Node | None, mask: int, rank: int) -> None:
        if group.mask is not None:
            mask &= group.mask
        if group.rank is not None:
            rank = group.rank
        if group.children:
            knot = _Node(parent, group.weight, group.bound_milli)
            before = len(knots)
            knots.append(knot)
            for child in group.children.values():
                visit(child, knot, mask, rank)
            if len(knots) == before + 1:
                knots.pop()  # no leaf below has any demand
            return
        wanted = min(wanted_milli.get(group.name, 0.0), group.bound_milli)
        if wanted > 0 and mask:
            knot = _Node(parent, group.weight, UNBOUNDED)
            knots.append(knot)
            kind = masks.setdefault(mask, len(masks))
            by_rank.setdefault(rank, []).append(_Leaf(group.name, knot, kind, wanted))

    visit(root, None, root.mask, NORMAL_RANK)
    loads = [0.0] * len(masks)
    for rank in sorted(by_rank, reverse=True):
        leaves = by_rank[rank]
        if not _all_at_once(leaves, list(masks), loads):
            _fill(leaves, knots, list(masks), loads)
        for leaf in leaves:
            granted[leaf.name] = leaf.got
    return granted


def _all_at_once(leaves: list[_Leaf], masks: list[int], loads: list[float]) -> bool:
    """Grant all demands when there is enough for everybody, as there is most of the time; return whether there was."""
    rates = [0.0] * len(masks)
    added: dict[_Node, float] = {}
    for leaf in leaves:
        rates[leaf.kind] += leaf.wanted
        knot: _Node | None = leaf.knot.parent
        while knot is not None:
            added[knot] = added.get(knot, 0.0) + leaf.wanted
            knot = knot.parent
    if any(knot.used + more > knot.bound for knot, more in added.items()):
        return False
    if largest_step(masks, loads, rates)[0] < 1:
        return False
    for knot, more in added.items():
        knot.used += more
    for leaf in leaves:
        leaf.got = leaf.wanted
        loads[leaf.kind] += leaf.wanted
    return True


def _fill(leaves: list[_Leaf], knots: list[_Node], masks: list[int], loads: list[float]) -> None:
    """Grow all leaves by weight, stop those that are held back, and continue with the rest."""
    growing = list(leaves)
    while growing:
        active = _set_rates(growing, knots)
        rates = [0.0] * len(masks)
        step = UNBOUNDED
        for leaf in growing:
            rates[leaf.kind] += leaf.knot.rate
            step = min(step, (leaf.wanted - leaf.got) / leaf.knot.rate)
        for knot in active:
            if knot.bound != UNBOUNDED:
                step = min(step, (knot.bound - knot.used) / knot.rate)
        room, full = largest_step(masks, loads, rates)
        crowded = room <= step + EPSILON_MILLI
        step = max(0.0, min(step, room))
        for knot in active:
            knot.used += step * knot.rate
        for leaf in growing:
            leaf.got = min(leaf.got + step * leaf.knot.rate, leaf.wanted)
        for kind, rate in enumerate(rates):
            loads[kind] += step * rate
        for leaf in growing:
            leaf.held = (
                leaf.wanted - leaf.got <= EPSILON_MILLI
                or (crowded and masks[leaf.kind] & ~full == 0)
                or _is_bounded(leaf.knot.parent)
            )
        still = [leaf for leaf in growing if not leaf.held]
        if len(still) == len(growing):  # no progress within floating-point precision
            break
        growing = still


def _set_rates(growing: list[_Leaf], knots: list[_Node]) -> list[_Node]:
    """Distribute the growth rate down the tree by weight to the leaves that still grow; return the nodes it passes."""
    for knot in knots:
        knot.growing = knot.rate = 0.0
    for leaf in growing:
        at: _Node | None = leaf.knot
        fresh = True
        while at is not None and fresh:
            above = at.parent
            if above is None:
                at.rate = 1.0
            else:
                fresh = above.growing == 0.0
                above.growing += at.weight
            at = above
    active = []
    for knot in knots:  # parents before children
        above = knot.parent
        if above is None:
            active.append(knot)
        elif above.rate > 0 and knot.growing > 0:
            knot.rate = above.rate * knot.weight / above.growing
            active.append(knot)
    for leaf in growing:
        above = leaf.knot.parent
        leaf.knot.rate = 1.0 if above is None else above.rate * leaf.knot.weight / above.growing
    return active


def _is_bounded(knot: _Node | None) -> bool:
    while knot is not None:
        if knot.bound - knot.used <= EPSILON_MILLI:
            return True
        knot = knot.parent
    return False
