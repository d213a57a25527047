"""Select GPUs for a pod: by template, by partition, by closeness in the GPU tree, and otherwise by score.

GPU partitions are the sets of cards that a machine's links allow to work together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from koord.api.annotations.device_codecs import (
    GPU_PARTITION_HONOR,
    NVLINK,
    GPUPartition,
    GPUPartitionTable,
    node_gpu_partition_policy,
)
from koord.api.koordinator.protocol import L_GPU_ISOLATION_PROVIDER, L_GPU_MODEL, L_GPU_VENDOR
from koord.scheduler.plugins.device_share import refusal
from koord.scheduler.plugins.device_share.device_amounts import Amounts, DeviceScorer
from koord.scheduler.plugins.device_share.inventory import (
    NODE,
    NUMA_NODE,
    PCIE,
    DeviceInventory,
    GpuSearchQuery,
    GpuTreeNode,
    largest_fitting_group,
    search_gpu_tree,
)
from koord.scheduler.plugins.device_share.node_devices import UsableDevices
from koord.scheduler.plugins.device_share.request import DeviceDemand, GpuPartitionRequest, model_key
from koord.scheduler.plugins.device_share.selection import (
    DeviceTypeRequest,
    SelectedDevice,
    fitting_devices,
    select_by_score,
    select_minors,
)
from koord.values.go_format import quoted
from koord.values.quantity import Quantity

_BUILT_IN_MODELS = frozenset({"H100", "H800", "H20"})
_BUILT_IN_VENDORS = frozenset({"", "nvidia"})

# The weight of one larger partition that stays possible: eight cards before all fours, a four before all pairs.
_PARTITION_WEIGHTS = {8: 10_000, 4: 100, 2: 1}


def builtin_partition_table(vendor: str, model: str) -> GPUPartitionTable | None:
    """Return the partition table of machine models whose eight cards are linked in a known way."""
    return _eight_gpu_table() if vendor in _BUILT_IN_VENDORS and model in _BUILT_IN_MODELS else None


@lru_cache(maxsize=1)
def _eight_gpu_table() -> GPUPartitionTable:
    return {
        size: tuple(
            GPUPartition(minors=tuple(range(first, first + size)), gpu_link_type=NVLINK, allocation_score=1)
            for first in range(0, 8, size)
        )
        for size in (1, 2, 4, 8)
    }


def select_partition(
    table: GPUPartitionTable,
    count: int,
    used: int,
    healthy: int,
    partition_request: GpuPartitionRequest | None,
    *,
    included: int = 0,
    highest_first: bool = False,
) -> tuple[int, ...] | None:
    """Select the partition that leaves the most larger partitions possible; ties go by the order of the table.

    Allocation scores are tried from the lowest up, as Koordinator does; `highest_first` reverses this.
    """
    for group in _partitions_by_score(table.get(count, ()), highest_first):
        possible = [
            p
            for p in group
            if not included & ~minor_mask(p.minors) and _is_allocatable(p, used, healthy, partition_request)
        ]
        if possible:
            best = max(
                possible,
                key=lambda p: _larger_partitions_left(table, count, used | minor_mask(p.minors), highest_first),
            )
            return best.minors
        if partition_request is not None and partition_request.restricted:
            return None
    return None


def minor_mask(minors: Iterable[int]) -> int:
    mask = 0
    for minor in minors:
        mask |= 1 << minor
    return mask


def _partitions_by_score(partitions: Sequence[GPUPartition], highest_first: bool) -> list[list[GPUPartition]]:
    by_score: dict[int, list[GPUPartition]] = {}
    for partition in partitions:
        by_score.setdefault(partition.allocation_score, []).append(partition)
    return [by_score[score] for score in sorted(by_score, reverse=highest_first)]


def _is_allocatable(
    partition: GPUPartition, used: int, healthy: int, partition_request: GpuPartitionRequest | None
) -> bool:
    mask = minor_mask(partition.minors)
    if mask & used or mask & ~healthy:
        return False
    if partition_request is None or partition_request.bandwidth is None:
        return True
    offered = partition.ring_bus_bandwidth
    return offered is not None and Quantity.parse(offered) >= partition_request.bandwidth


def _larger_partitions_left(
    table: Mapping[int, Sequence[GPUPartition]], count: int, used: int, highest_first: bool
) -> int:
    worth = 0
    for size, weight in _PARTITION_WEIGHTS.items():
        if size < count:
            continue
        groups = _partitions_by_score(table.get(size, ()), highest_first)
        for partition in groups[0] if groups else ():
            if not minor_mask(partition.minors) & used:
                worth += weight * partition.allocation_score
    return worth


_LEVEL_NAMES = {PCIE: "PCIe switch", NUMA_NODE: "NUMA node", NODE: "node"}


class GpuNodeLabels(msgspec.Struct, frozen=True, kw_only=True):
    """GpuNodeLabels holds what the labels of the Node say about its GPUs."""

    vendor: str = ""
    model: str = ""
    honors_partitions: bool = False
    isolation_provider: str = ""


def parse_gpu_labels(labels: Mapping[str, str]) -> GpuNodeLabels:
    return GpuNodeLabels(
        vendor=labels.get(L_GPU_VENDOR, ""),
        model=labels.get(L_GPU_MODEL, ""),
        honors_partitions=node_gpu_partition_policy(labels) == GPU_PARTITION_HONOR,
        isolation_provider=labels.get(L_GPU_ISOLATION_PROVIDER, ""),
    )


class GpuSelectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the GPU selection; `highest_partition_score_first` says how partition scores are read."""

    scorer: DeviceScorer | None = None
    preferred: frozenset[int] = frozenset()
    included: frozenset[int] = frozenset()
    switches: frozenset[str] = frozenset()
    highest_partition_score_first: bool = False


def select_gpus(
    view: UsableDevices,
    wanted: DeviceTypeRequest,
    demand: DeviceDemand,
    inventory: DeviceInventory,
    facts: GpuNodeLabels,
    order: GpuSelectionOptions,
) -> list[SelectedDevice] | refusal.DeviceRefusal:
    if demand.templates is not None:
        names = demand.templates.get(model_key(facts.vendor, facts.model), ())
        if not names:
            return refusal.unresolvable(refusal.NO_TEMPLATE)
        if len(names) == 1:  # which of several was meant is unknown, so none is written
            found = _select_by_topology(view, wanted, demand, inventory, order)
            if isinstance(found, refusal.DeviceRefusal):
                return found
            return [msgspec.structs.replace(one, template=names[0]) for one in found]
    # Where another type leads, its PCIe switches go before what is only preferred.
    if not order.switches or must_honor_partitions(demand, inventory, facts):
        parted = _select_by_partition(view, wanted, demand, inventory, facts, order)
        if parted is not None:
            return parted
    return _select_by_topology(view, wanted, demand, inventory, order)


def must_honor_partitions(demand: DeviceDemand, inventory: DeviceInventory, facts: GpuNodeLabels) -> bool:
    """Return whether the pod may only get a whole partition."""
    labelled = inventory.partitions is None and facts.honors_partitions
    return demand.partition is not None or inventory.honors_partitions or labelled


def _select_by_partition(
    view: UsableDevices,
    wanted: DeviceTypeRequest,
    demand: DeviceDemand,
    inventory: DeviceInventory,
    facts: GpuNodeLabels,
    order: GpuSelectionOptions,
) -> list[SelectedDevice] | refusal.DeviceRefusal | None:
    """Select by partition; None continues with the tree: partitions are only preferred here, or the card is shared."""
    if demand.gpu is None or demand.gpu.shared:
        return None
    table = (
        inventory.partitions if inventory.partitions is not None else builtin_partition_table(facts.vendor, facts.model)
    )
    binding = must_honor_partitions(demand, inventory, facts)
    if table is None:
        return refusal.unresolvable(refusal.NO_PARTITION_TABLE) if binding else None
    if wanted.count not in table:
        sizes = ", ".join(map(str, sorted(table)))
        nearest = refusal.DeviceNearMiss(
            device_type=wanted.type,
            wanted=wanted.count,
            fitting=len(fitting_devices(view, wanted)),
            detail=f"partitions exist of {sizes} GPUs",
        )
        return refusal.unresolvable(refusal.UNSUPPORTED_COUNT, nearest) if binding else None
    minors = select_partition(
        table,
        wanted.count,
        view.used_mask,
        view.healthy_mask,
        demand.partition,
        included=minor_mask(order.included),
        highest_first=order.highest_partition_score_first,
    )
    shares = fitting_devices(view, wanted)
    if minors is not None and all(minor in shares for minor in minors):
        return select_minors(view, minors, shares)
    if not binding:
        return None
    best = max((sum(m in shares for m in p.minors) for p in table[wanted.count]), default=0)
    asked = demand.partition.bandwidth if demand.partition is not None else None
    nearest = refusal.DeviceNearMiss(
        device_type=wanted.type,
        wanted=wanted.count,
        fitting=len(shares),
        group="partition",
        best=best,
        detail="" if asked is None else f"a ring bandwidth of {asked} is asked for",
    )
    return refusal.unschedulable(refusal.NO_PARTITION, nearest)


def _select_by_topology(
    view: UsableDevices,
    wanted: DeviceTypeRequest,
    demand: DeviceDemand,
    inventory: DeviceInventory,
    order: GpuSelectionOptions,
) -> list[SelectedDevice] | refusal.DeviceRefusal:
    hint, tree = wanted.hint, inventory.tree
    shared = demand.gpu is not None and demand.gpu.shared
    if tree is None or (shared and wanted.count > 1):
        if hint.scope:
            return refusal.unresolvable(refusal.NO_TREE if tree is None else refusal.MULTI_SHARED)
        tree = None
    if tree is None or (order.switches and not hint.scope):
        return select_by_score(
            view, wanted, order.scorer, preferred=order.preferred, included=order.included, switches=order.switches
        )
    shares = fitting_devices(view, wanted)
    scores = _tree_scores(view, wanted, shares, order.scorer if shared else None)
    found = search_gpu_tree(
        tree,
        GpuSearchQuery(
            count=wanted.count,
            fitting=scores,
            used=view.used_mask,
            required=hint.scope_level,
            included=minor_mask(order.included),
        ),
    )
    if found is not None:
        return select_minors(view, found.minors, shares)
    return refusal.unschedulable(
        refusal.NO_GPU_IN_SCOPE if hint.scope else refusal.NO_GPU, _near_miss(view, wanted, tree, scores)
    )


def _tree_scores(
    view: UsableDevices, wanted: DeviceTypeRequest, shares: Mapping[int, Amounts], scorer: DeviceScorer | None
) -> dict[int, int]:
    """Score the fitting cards.

    In the tree, capacity and free are swapped as in Koordinator: a card in use counts as full under
    MostAllocated and as the worst under LeastAllocated, whatever is left on it.
    """
    if scorer is None:
        return dict.fromkeys(shares, 0)
    return {m: scorer.score(wanted.each, total=view.free[m], free=view.cards[m].total) for m in shares}


def _near_miss(
    view: UsableDevices, wanted: DeviceTypeRequest, tree: GpuTreeNode, scores: dict[int, int]
) -> refusal.DeviceNearMiss:
    hint = wanted.hint
    level = min(max(hint.scope_level, NODE), PCIE)
    return refusal.DeviceNearMiss(
        device_type=wanted.type,
        wanted=wanted.count,
        fitting=len(scores),
        unhealthy=sum(not card.healthy for card in view.cards.values()),
        group=_LEVEL_NAMES[level] if hint.scope else "",
        best=largest_fitting_group(tree, scores, level),
        detail="no group of cards counts as the scope Device" if hint.scope_level > PCIE else "",
    )


def check_gpu_sharing(
    demand: DeviceDemand, facts: GpuNodeLabels, unsupported: Collection[tuple[str, str]] = ()
) -> refusal.DeviceRefusal | None:
    """Check GPU sharing on the node. `unsupported` lists vendor and model of the cards that cannot be shared.

    A node without the isolation library that the pod names is refused like any other unfit node. Upstream
    fails the pod's whole cycle there, so that one unprepared node keeps a pod from all the prepared ones.
    """
    if demand.gpu is None or not demand.gpu.shared:
        return None
    if demand.isolation_provider and demand.isolation_provider != facts.isolation_provider:
        return refusal.unschedulable(refusal.NO_ISOLATION)
    if (facts.vendor, facts.model) in unsupported:
        return refusal.unresolvable(
            f"model {quoted(facts.model)} of vendor {quoted(facts.vendor)} does not support GPU Share"
        )
    return None
