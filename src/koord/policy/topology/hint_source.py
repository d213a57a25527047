"""The hints of cpu, memory and the other amounts that NUMA nodes have: which sets of them could take the pod."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from koord.api.annotations.numa_topology_spec import RESTRICTED
from koord.policy.topology.allocation import allocate_from
from koord.policy.topology.hint import Hint, Hints
from koord.policy.topology.ledger import Ledger
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
    """For sets of at most `widest` NUMA nodes. `feasible` says whether a trial on a set succeeds; by default one on the
    node with this request."""
    if not node.zones:
        return Short.of(INSUFFICIENT_NUMA_NODE)
    stock = take_stock(node, ledger, request)
    fits = feasible or (lambda mask: not isinstance(allocate_from(node, stock, request, mask), Short))
    known = {name for zone in node.zones for name in zone.amounts}
    resources = sorted(name for name, amount in request.amounts.items() if amount > 0 and name in known)
    found: dict[str, list[Hint]] = {name: [] for name in resources}
    numbers = node.zone_numbers
    for size in range(1, (len(numbers) if widest is None else min(widest, len(numbers))) + 1):
        for chosen in combinations(numbers, size):
            mask = BitMask.of(*chosen)
            offered = [name for name in resources if all(stock.zones.get(n, {}).get(name, 0) > 0 for n in chosen)]
            if not offered or not fits(mask):
                continue
            score = _score(node, stock, request, scorer, chosen)
            for name in offered:
                hints = found[name]
                # Sets come smallest first, so the size of the first one found is the smallest that can do it.
                smallest = not hints or size == len(hints[0].mask or ())
                hints.append(Hint(mask, preferred=smallest or policy == RESTRICTED, score=score))
    return found


def _score(node: NodeTopology, stock: Stock, request: Request, scorer: Scorer, chosen: tuple[int, ...]) -> int:
    total: dict[str, int] = {}
    taken: dict[str, int] = {}
    for zone in node.zones:
        if zone.number in chosen:
            free = stock.zones.get(zone.number, {})
            for name, there in zone.amounts.items():
                total[name] = total.get(name, 0) + there
                taken[name] = taken.get(name, 0) + there - free.get(name, 0)
    return scorer.score(taken, total, request.charged(node))
