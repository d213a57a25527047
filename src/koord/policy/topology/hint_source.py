"""The hint provider for cpu, memory and the other amounts of NUMA nodes: which sets of them could take the pod."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from koord.api.annotations.numa_topology_spec import RESTRICTED
from koord.policy.topology.allocation import fits
from koord.policy.topology.hint import Hint, Hints
from koord.policy.topology.ledger import Amounts, Ledger, ZoneAmounts
from koord.policy.topology.node import NodeTopology
from koord.policy.topology.refusal import INSUFFICIENT_NUMA_NODE, Short
from koord.policy.topology.request import Request
from koord.policy.topology.score import Scorer
from koord.policy.topology.stock import Stock, take_stock
from koord.values.bitmask import BitMask

Feasible = Callable[[BitMask], bool]


def numa_hints(
    node: NodeTopology,
    ledger: Ledger,
    request: Request,
    policy: str,
    scorer: Scorer,
    *,
    widest: int | None = None,
    feasible: Feasible | None = None,
) -> Hints | Short:
    """Compute hints for sets of at most `widest` NUMA nodes. `feasible` replaces the trial allocation on a set."""
    if not node.zones:
        return Short.of(INSUFFICIENT_NUMA_NODE)
    stock = take_stock(node, ledger, request)
    takes = feasible or (lambda mask: fits(node, stock, request, mask))
    known = {name for zone in node.zones for name in zone.amounts}
    resources = sorted(name for name, amount in request.amounts.items() if amount > 0 and name in known)
    found: dict[str, list[Hint]] = {name: [] for name in resources}
    # A set with a NUMA node that has none left is not offered, though the others might do.
    some = {name: sum(1 << n for n, left in stock.zones.items() if left.get(name, 0) > 0) for name in resources}
    numbers = node.zone_numbers
    sizes, charged = {zone.number: zone.amounts for zone in node.zones}, request.charged(node)
    for size in range(1, (len(numbers) if widest is None else min(widest, len(numbers))) + 1):
        for chosen in combinations(numbers, size):
            mask = BitMask(sum(1 << number for number in chosen))
            offered = [name for name in resources if not mask.value & ~some[name]]
            if not offered or not takes(mask):
                continue
            score = _score(stock, sizes, charged, scorer, chosen)
            for name in offered:
                hints = found[name]
                # Sets come smallest first, so the size of the first one found is the smallest that can do it.
                smallest = not hints or size == len(hints[0].mask or ())
                hints.append(Hint(mask, preferred=smallest or policy == RESTRICTED, score=score))
    return found


def _score(stock: Stock, sizes: ZoneAmounts, charged: Amounts, scorer: Scorer, chosen: tuple[int, ...]) -> int:
    total: dict[str, int] = {}
    taken: dict[str, int] = {}
    for name, _ in scorer.weights:
        there = sum(sizes[number].get(name, 0) for number in chosen)
        total[name] = there
        taken[name] = there - sum(stock.zones.get(number, {}).get(name, 0) for number in chosen)
    return scorer.score(taken, total, charged)
