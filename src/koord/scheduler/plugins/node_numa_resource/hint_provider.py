"""The hint provider for cpu, memory and the other amounts of NUMA nodes: which sets of them could take the pod."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from koord.api.annotations.numa_codecs import NUMA_POLICY_RESTRICTED
from koord.scheduler.framework.numa_hint import NumaTopologyHint, NumaTopologyHints
from koord.scheduler.plugins.node_numa_resource.allocator import can_allocate
from koord.scheduler.plugins.node_numa_resource.available import AvailableResources, available_resources
from koord.scheduler.plugins.node_numa_resource.cpu_binding import NumaRequest
from koord.scheduler.plugins.node_numa_resource.ledger import Amounts, NumaLedger, ZoneAmounts
from koord.scheduler.plugins.node_numa_resource.numa_score import NumaScorer
from koord.scheduler.plugins.node_numa_resource.refusal import INSUFFICIENT_NUMA_NODE, NumaRefusal
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from koord.values.bitmask import BitMask

Feasible = Callable[[BitMask], bool]


def provide_numa_hints(
    node: TopologyOptions,
    ledger: NumaLedger,
    request: NumaRequest,
    policy: str,
    scorer: NumaScorer,
    *,
    widest: int | None = None,
    feasible: Feasible | None = None,
) -> NumaTopologyHints | NumaRefusal:
    """Compute hints for sets of at most `widest` NUMA nodes. `feasible` replaces the trial allocation on a set."""
    if not node.zones:
        return NumaRefusal.unschedulable(INSUFFICIENT_NUMA_NODE)
    available = available_resources(node, ledger, request)
    takes = feasible or (lambda mask: can_allocate(node, available, request, mask))
    known = {name for zone in node.zones for name in zone.amounts}
    resources = sorted(name for name, amount in request.amounts.items() if amount > 0 and name in known)
    found: dict[str, list[NumaTopologyHint]] = {name: [] for name in resources}
    # A set with a NUMA node that has none left is not offered, though the others might do.
    some = {name: sum(1 << n for n, left in available.zones.items() if left.get(name, 0) > 0) for name in resources}
    numbers = node.zone_numbers
    sizes, charged = {zone.number: zone.amounts for zone in node.zones}, request.amplified_amounts(node)
    for size in range(1, (len(numbers) if widest is None else min(widest, len(numbers))) + 1):
        for chosen in combinations(numbers, size):
            mask = BitMask(sum(1 << number for number in chosen))
            offered = [name for name in resources if not mask.value & ~some[name]]
            if not offered or not takes(mask):
                continue
            score = _zone_set_score(available, sizes, charged, scorer, chosen)
            for name in offered:
                hints = found[name]
                # Sets come smallest first, so the size of the first one found is the smallest that can do it.
                smallest = not hints or size == len(hints[0].mask or ())
                hints.append(
                    NumaTopologyHint(mask, preferred=smallest or policy == NUMA_POLICY_RESTRICTED, score=score)
                )
    return found


def _zone_set_score(
    available: AvailableResources, sizes: ZoneAmounts, charged: Amounts, scorer: NumaScorer, chosen: tuple[int, ...]
) -> int:
    total: dict[str, int] = {}
    taken: dict[str, int] = {}
    for name, _ in scorer.weights:
        there = sum(sizes[number].get(name, 0) for number in chosen)
        total[name] = there
        taken[name] = there - sum(available.zones.get(number, {}).get(name, 0) for number in chosen)
    return scorer.score(taken, total, charged)
