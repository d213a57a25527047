"""Select GPUs for a pod: by template, by partition, by closeness in the GPU tree, and otherwise by score.

GPU partitions are the sets of cards that a machine's links allow to work together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from koord.api.annotations.gpu_partition import NVLINK, GPUPartition, GPUPartitionTable
from koord.policy.device.demand import PartitionWish
from koord.values.quantity import Quantity

_BUILT_IN_MODELS = frozenset({"H100", "H800", "H20"})
_BUILT_IN_VENDORS = frozenset({"", "nvidia"})

# The weight of one larger partition that stays possible: eight cards before all fours, a four before all pairs.
_WORTH = {8: 10_000, 4: 100, 2: 1}


def built_in_table(vendor: str, model: str) -> GPUPartitionTable | None:
    """Return the partition table of machine models whose eight cards are linked in a known way."""
    return _eight_cards() if vendor in _BUILT_IN_VENDORS and model in _BUILT_IN_MODELS else None


@lru_cache(maxsize=1)
def _eight_cards() -> GPUPartitionTable:
    return {
        size: tuple(
            GPUPartition(minors=tuple(range(first, first + size)), gpu_link_type=NVLINK, allocation_score=1)
            for first in range(0, 8, size)
        )
        for size in (1, 2, 4, 8)
    }


def choose_partition(
    table: GPUPartitionTable,
    count: int,
    used: int,
    healthy: int,
    wish: PartitionWish | None,
    *,
    included: int = 0,
    highest_first: bool = False,
) -> tuple[int, ...] | None:
    """Select the partition that leaves the most larger partitions possible; ties go by the order of the table.

    Allocation scores are tried from the lowest up, as Koordinator does; `highest_first` reverses this.
    """
    for group in _groups(table.get(count, ()), highest_first):
        possible = [p for p in group if not included & ~mask_of(p.minors) and _possible(p, used, healthy, wish)]
        if possible:
            best = max(possible, key=lambda p: _room_left(table, count, used | mask_of(p.minors), highest_first))
            return best.minors
        if wish is not None and wish.restricted:
            return None
    return None


def mask_of(minors: Iterable[int]) -> int:
    mask = 0
    for minor in minors:
        mask |= 1 << minor
    return mask


def _groups(partitions: Sequence[GPUPartition], highest_first: bool) -> list[list[GPUPartition]]:
    by_score: dict[int, list[GPUPartition]] = {}
    for partition in partitions:
        by_score.setdefault(partition.allocation_score, []).append(partition)
    return [by_score[score] for score in sorted(by_score, reverse=highest_first)]


def _possible(partition: GPUPartition, used: int, healthy: int, wish: PartitionWish | None) -> bool:
    mask = mask_of(partition.minors)
    if mask & used or mask & ~healthy:
        return False
    if wish is None or wish.bandwidth is None:
        return True
    offered = partition.ring_bus_bandwidth
    return offered is not None and Quantity.parse(offered) >= wish.bandwidth


def _room_left(table: Mapping[int, Sequence[GPUPartition]], count: int, used: int, highest_first: bool) -> int:
    worth = 0
    for size, weight in _WORTH.items():
        if size < count:
            continue
        groups = _groups(table.get(size, ()), highest_first)
        for partition in groups[0] if groups else ():
            if not mask_of(partition.minors) & used:
                worth += weight * partition.allocation_score
    return worth
