"""Compute who holds how much memory after a step, who was throttled, and whom the OOM killer kills.

Page cache is reclaimed first, from the least protected groups; memory that programs allocated cannot be reclaimed, so
when it does not fit, a victim is chosen here by the kernel's badness score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koord.sim.machine.cpu_contention import DEFAULT_PARAMETERS, ContentionParameters

_SCORE = 1000


class MemoryGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The memory settings of one group; None is no `limit` or `high`."""

    name: str
    parent: str | None = None
    limit: int | None = None
    high: int | None = None
    low: int = 0
    least: int = 0  # memory.min
    kill_together: bool = False  # memory.oom.group
    oom_by_priority: bool = False  # memory.use_priority_oom, of whoever decides: the group that is full, or the root


class MemoryDemand(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """MemoryDemand is what a container wants to hold. `score_adj` and `priority` decide about OOM victims."""

    group: str
    allocated: int
    cache: int = 0
    score_adj: int = 0
    priority: int = 0


class OomKill(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One OOM kill: the victim, the group whose limit was hit, and why."""

    group: str
    at: str  # the group whose limit was hit; empty when the machine was full
    held: int
    why: str


class MemoryStepResult(msgspec.Struct, frozen=True, kw_only=True):
    """MemoryStepResult holds what each group holds after a step, by group."""

    allocated: Mapping[str, int]  # by group of the holder
    cache: Mapping[str, int]
    stalled: Mapping[str, float]  # share of what it wanted to hold and was kept from: PSI's "some" of memory
    kills: tuple[OomKill, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.allocated.values()) + sum(self.cache.values())


def settle_memory(
    capacity: int,
    system: int,
    spaces: Sequence[MemoryGroup],
    holders: Iterable[MemoryDemand],
    reserve: int = 0,
    parameters: ContentionParameters = DEFAULT_PARAMETERS,
) -> MemoryStepResult:
    """Compute all groups' memory after a step; `spaces`: parents first; `reserve`: min_free_kbytes, for nobody."""
    by_name = {space.name: space for space in spaces}
    live = {holder.group: holder for holder in holders}
    paths = {group: _path(by_name, group) for group in live}
    if _fits(capacity, system, by_name, live, paths, reserve, parameters):
        return MemoryStepResult(
            allocated={group: holder.allocated for group, holder in live.items()},
            cache={group: holder.cache for group, holder in live.items()},
            stalled={},
        )
    kills: list[OomKill] = []
    for space in reversed(spaces):
        if space.limit is not None:
            _enforce_limit(space, space.limit, live, paths, capacity, kills)
    allocated = {group: holder.allocated for group, holder in live.items()}
    cache = {group: holder.cache for group, holder in live.items()}
    for space in reversed(spaces):
        if space.limit is not None:
            _trim_cache(cache, _inside(space.name, live, paths), space.limit, allocated)
        if space.high is not None:
            _throttle_above_high(space.high, _inside(space.name, live, paths), allocated, cache, parameters)
    while live and system + sum(allocated.values()) > capacity - reserve:
        victim = _oom_victim(live.values(), allocated, capacity, any(space.oom_by_priority for space in spaces[:1]))
        for gone in _killed_together(victim, by_name, live, paths):
            kills.append(
                OomKill(group=gone, at="", held=allocated[gone], why=f"{capacity} bytes of the machine are full")
            )
            del live[gone], allocated[gone], cache[gone]
    low = max(reserve, round(capacity * parameters.low_watermark))
    excess = system + sum(allocated.values()) + sum(cache.values()) - (capacity - low)
    if excess > 0:
        _reclaim(excess, spaces, live, paths, allocated, cache)
    stalled = {
        group: 1 - (allocated[group] + cache[group]) / wanted
        for group, holder in live.items()
        if (wanted := holder.allocated + holder.cache) > 0
    }
    return MemoryStepResult(allocated=allocated, cache=cache, stalled=stalled, kills=tuple(kills))


def _fits(
    capacity: int,
    system: int,
    spaces: Mapping[str, MemoryGroup],
    live: Mapping[str, MemoryDemand],
    paths: Mapping[str, tuple[str, ...]],
    reserve: int,
    parameters: ContentionParameters,
) -> bool:
    """Return whether all demands fit, as they do most of the time."""
    sums: dict[str, int] = {}
    for group, holder in live.items():
        for above in paths[group]:
            sums[above] = sums.get(above, 0) + holder.allocated + holder.cache
    total = system + sum(holder.allocated + holder.cache for holder in live.values())
    if total > capacity - max(reserve, round(capacity * parameters.low_watermark)):
        return False
    for name, held in sums.items():
        space = spaces.get(name)
        if space is not None and (
            (space.limit is not None and held > space.limit) or (space.high is not None and held > space.high)
        ):
            return False
    return True


def _path(spaces: Mapping[str, MemoryGroup], group: str) -> tuple[str, ...]:
    """Return the group and all groups above it."""
    found: list[str] = []
    at: str | None = group
    while at is not None:
        found.append(at)
        at = spaces[at].parent if at in spaces else None
    return tuple(found)


def _inside(name: str, live: Iterable[str], paths: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [group for group in live if name in paths[group]]


def _enforce_limit(
    space: MemoryGroup,
    limit: int,
    live: dict[str, MemoryDemand],
    paths: Mapping[str, tuple[str, ...]],
    capacity: int,
    kills: list[OomKill],
) -> None:
    """Kill inside a group until its allocated memory fits its limit."""
    while True:
        inside = [live[group] for group in _inside(space.name, live, paths)]
        if sum(holder.allocated for holder in inside) <= limit:
            return
        held = {holder.group: holder.allocated for holder in inside}
        victim = _oom_victim(inside, held, capacity, space.oom_by_priority)
        gone = [holder.group for holder in inside] if space.kill_together else [victim]
        for group in gone:
            kills.append(OomKill(group=group, at=space.name, held=held[group], why=f"its limit is {limit} bytes"))
            del live[group]


def _oom_victim(holders: Iterable[MemoryDemand], held: Mapping[str, int], capacity: int, by_priority: bool) -> str:
    """Return the kernel's victim: one point per thousandth of the machine, plus oom_score_adj."""

    def points(holder: MemoryDemand) -> tuple[int, float, str]:
        first = -holder.priority if by_priority else 0
        return first, held[holder.group] * _SCORE / capacity + holder.score_adj, holder.group

    return max(holders, key=points).group


def _killed_together(
    victim: str, spaces: Mapping[str, MemoryGroup], live: Iterable[str], paths: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """Return all groups that die with the victim, by memory.oom.group."""
    together = [name for name in paths[victim] if name in spaces and spaces[name].kill_together]
    return _inside(together[-1], live, paths) if together else [victim]


def _trim_cache(cache: dict[str, int], inside: list[str], limit: int, allocated: Mapping[str, int]) -> None:
    """Reclaim page cache down to the limit, from all in proportion."""
    held = sum(cache[group] for group in inside)
    excess = held + sum(allocated[group] for group in inside) - limit
    if excess > 0 and held > 0:
        for group in inside:
            cache[group] -= min(cache[group], -(-cache[group] * excess // held))


def _throttle_above_high(
    high: int, inside: list[str], allocated: dict[str, int], cache: dict[str, int], parameters: ContentionParameters
) -> None:
    _trim_cache(cache, inside, high, allocated)
    wanted = sum(allocated[group] for group in inside)
    excess = wanted - high
    if excess > 0:
        taken = excess * (1 - parameters.growth_above_high)
        for group in inside:
            allocated[group] -= int(allocated[group] * taken / wanted)


def _reclaim(
    excess: int,
    spaces: Sequence[MemoryGroup],
    live: Mapping[str, MemoryDemand],
    paths: Mapping[str, tuple[str, ...]],
    allocated: Mapping[str, int],
    cache: dict[str, int],
) -> None:
    """Reclaim page cache: first what is unprotected, then what memory.low protects; what memory.min protects stays."""
    for name in ("low", "least"):
        kept = _protected(name, spaces, live, paths, allocated, cache)
        free = {group: min(cache[group], max(0, allocated[group] + cache[group] - kept[group])) for group in live}
        total = sum(free.values())
        if total <= 0:
            continue
        taken = min(excess, total)
        for group, amount in free.items():
            part = min(amount, -(-amount * taken // total))
            cache[group] -= part
            excess -= part
        if excess <= 0:
            return


def _protected(
    name: str,
    spaces: Sequence[MemoryGroup],
    live: Mapping[str, MemoryDemand],
    paths: Mapping[str, tuple[str, ...]],
    allocated: Mapping[str, int],
    cache: Mapping[str, int],
) -> dict[str, int]:
    """Return the effective protection of each group: its own as far as all groups above have it; a parent's protection
    is split by what its children claim.

    memory.min counts towards memory.low: the harder protection includes the softer one.
    """
    held: dict[str, int] = {}
    for group in live:
        for above in paths[group]:
            held[above] = held.get(above, 0) + allocated[group] + cache[group]
    claims: dict[str, int] = {}
    siblings: dict[str | None, int] = {}
    for space in spaces:
        asked = max(space.least, space.low) if name == "low" else space.least
        claims[space.name] = min(asked, held.get(space.name, 0))
        siblings[space.parent] = siblings.get(space.parent, 0) + claims[space.name]
    kept: dict[str, float] = {}
    for space in spaces:
        claim = float(claims[space.name])
        if space.parent is not None and siblings[space.parent] > 0:
            claim *= min(1.0, kept[space.parent] / siblings[space.parent])
        kept[space.name] = claim if space.parent is not None else float("inf")
    return {group: int(min(kept.get(group, 0.0), 2**62)) for group in live}
