"""Select GPUs: by template, by partition, by closeness in the tree, and otherwise by score alone."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations.gpu_partition import HONOR, partition_policy
from koord.api.protocol import L_GPU_ISOLATION_PROVIDER, L_GPU_MODEL, L_GPU_VENDOR
from koord.policy.device.choice import Chosen, Wanted, choose_in_order, chosen, fitting
from koord.policy.device.demand import Demand
from koord.policy.device.holding import Amounts
from koord.policy.device.inventory import DeviceInventory
from koord.policy.device.partition import built_in_table, choose_partition, mask_of
from koord.policy.device.refusal import (
    MULTI_SHARED,
    NO_GPU,
    NO_GPU_IN_SCOPE,
    NO_PARTITION,
    NO_PARTITION_TABLE,
    NO_TEMPLATE,
    NO_TREE,
    UNSUPPORTED_COUNT,
    Nearest,
    Refusal,
    unresolvable,
    unschedulable,
)
from koord.policy.device.score import Scorer
from koord.policy.device.template import model_key
from koord.policy.device.tree import NODE, NUMA_NODE, PCIE, Scope, Sought, most_together, search
from koord.policy.device.view import View

_GROUPS = {PCIE: "PCIe switch", NUMA_NODE: "NUMA node", NODE: "node"}


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the labels of the Node say about its GPUs."""

    vendor: str = ""
    model: str = ""
    honours_partitions: bool = False
    isolation_provider: str = ""


def node_facts(labels: Mapping[str, str]) -> NodeFacts:
    return NodeFacts(
        vendor=labels.get(L_GPU_VENDOR, ""),
        model=labels.get(L_GPU_MODEL, ""),
        honours_partitions=partition_policy(labels) == HONOR,
        isolation_provider=labels.get(L_GPU_ISOLATION_PROVIDER, ""),
    )


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the GPU selection; `highest_partition_score_first` says how partition scores are read."""

    scorer: Scorer | None = None
    preferred: frozenset[int] = frozenset()
    included: frozenset[int] = frozenset()
    switches: frozenset[str] = frozenset()
    highest_first: bool = False


def choose_gpus(
    view: View, wanted: Wanted, demand: Demand, inventory: DeviceInventory, facts: NodeFacts, order: Order
) -> list[Chosen] | Refusal:
    if demand.templates is not None:
        names = demand.templates.get(model_key(facts.vendor, facts.model), ())
        if not names:
            return unresolvable(NO_TEMPLATE)
        if len(names) == 1:  # which of several was meant is unknown, so none is written
            found = _by_closeness(view, wanted, demand, inventory, order)
            if isinstance(found, Refusal):
                return found
            return [msgspec.structs.replace(one, template=names[0]) for one in found]
    # Where another type leads, its PCIe switches go before what is only preferred.
    if not order.switches or honours(demand, inventory, facts):
        parted = _by_partition(view, wanted, demand, inventory, facts, order)
        if parted is not None:
            return parted
    return _by_closeness(view, wanted, demand, inventory, order)


def honours(demand: Demand, inventory: DeviceInventory, facts: NodeFacts) -> bool:
    """Return whether the pod may only get a whole partition."""
    labelled = inventory.partitions is None and facts.honours_partitions
    return demand.partition is not None or inventory.honours_partitions or labelled


def _by_partition(
    view: View, wanted: Wanted, demand: Demand, inventory: DeviceInventory, facts: NodeFacts, order: Order
) -> list[Chosen] | Refusal | None:
    """Select by partition; None continues with the tree: partitions are only preferred here, or the card is shared."""
    if demand.gpu is None or demand.gpu.shared:
        return None
    table = inventory.partitions if inventory.partitions is not None else built_in_table(facts.vendor, facts.model)
    binding = honours(demand, inventory, facts)
    if table is None:
        return unresolvable(NO_PARTITION_TABLE) if binding else None
    if wanted.count not in table:
        sizes = ", ".join(map(str, sorted(table)))
        nearest = Nearest(
            device_type=wanted.type,
            wanted=wanted.count,
            fitting=len(fitting(view, wanted)),
            detail=f"partitions exist of {sizes} GPUs",
        )
        return unresolvable(UNSUPPORTED_COUNT, nearest) if binding else None
    minors = choose_partition(
        table,
        wanted.count,
        view.used_mask,
        view.healthy_mask,
        demand.partition,
        included=mask_of(order.included),
        highest_first=order.highest_first,
    )
    shares = fitting(view, wanted)
    if minors is not None and all(minor in shares for minor in minors):
        return chosen(view, minors, shares)
    if not binding:
        return None
    best = max((sum(m in shares for m in p.minors) for p in table[wanted.count]), default=0)
    asked = demand.partition.bandwidth if demand.partition is not None else None
    nearest = Nearest(
        device_type=wanted.type,
        wanted=wanted.count,
        fitting=len(shares),
        group="partition",
        best=best,
        detail="" if asked is None else f"a ring bandwidth of {asked} is asked for",
    )
    return unschedulable(NO_PARTITION, nearest)


def _by_closeness(
    view: View, wanted: Wanted, demand: Demand, inventory: DeviceInventory, order: Order
) -> list[Chosen] | Refusal:
    hint, tree = wanted.hint, inventory.tree
    shared = demand.gpu is not None and demand.gpu.shared
    if tree is None or (shared and wanted.count > 1):
        if hint.scope:
            return unresolvable(NO_TREE if tree is None else MULTI_SHARED)
        tree = None
    if tree is None or (order.switches and not hint.scope):
        return choose_in_order(
            view,
            wanted,
            order.scorer,
            preferred=order.preferred,
            included=order.included,
            switches=order.switches,
        )
    shares = fitting(view, wanted)
    scores = _scores(view, wanted, shares, order.scorer if shared else None)
    found = search(
        tree,
        Sought(
            count=wanted.count,
            fitting=scores,
            used=view.used_mask,
            required=hint.scope_level,
            included=mask_of(order.included),
        ),
    )
    if found is not None:
        return chosen(view, found.minors, shares)
    return unschedulable(NO_GPU_IN_SCOPE if hint.scope else NO_GPU, _nearest(view, wanted, tree, scores))


def _scores(view: View, wanted: Wanted, shares: Mapping[int, Amounts], scorer: Scorer | None) -> dict[int, int]:
    """Score the fitting cards.

    In the tree, capacity and free are swapped as in Koordinator: a card in use counts as full under
    MostAllocated and as the worst under LeastAllocated, whatever is left on it.
    """
    if scorer is None:
        return dict.fromkeys(shares, 0)
    return {m: scorer.score(wanted.each, total=view.free[m], free=view.cards[m].total) for m in shares}


def _nearest(view: View, wanted: Wanted, tree: Scope, scores: dict[int, int]) -> Nearest:
    hint = wanted.hint
    level = min(max(hint.scope_level, NODE), PCIE)
    return Nearest(
        device_type=wanted.type,
        wanted=wanted.count,
        fitting=len(scores),
        unhealthy=sum(not card.healthy for card in view.cards.values()),
        group=_GROUPS[level] if hint.scope else "",
        best=most_together(tree, scores, level),
        detail="no group of cards counts as the scope Device" if hint.scope_level > PCIE else "",
    )
