"""Who gets how much CPU: every group's share rises in proportion to its weight until something holds it back.

What holds back is a wish that is met, a quota, or CPUs that are full. Whatever one leaves, the others of its group go
on to share; nothing stays idle that somebody who may use it wants. Higher ranks are served before lower ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.koordlet.contention.group import UNBOUNDED, Group
from koord.koordlet.contention.routing import TINY, largest_step

NORMAL_RANK = 0


class _Knot:
    """A group on the path to a leaf with demand."""

    __slots__ = ("bound", "growing", "parent", "rate", "used", "weight")

    def __init__(self, parent: _Knot | None, weight: float, bound: float) -> None:
        self.parent = parent
        self.weight = weight
        self.bound = bound
        self.used = 0.0
        self.growing = 0.0  # weight of what still grows below
        self.rate = 0.0


class _Leaf:
    __slots__ = ("got", "held", "kind", "knot", "name", "wanted")

    def __init__(self, name: str, knot: _Knot, kind: int, wanted: float) -> None:
        self.name = name
        self.knot = knot
        self.kind = kind  # place of its CPU set among all
        self.wanted = wanted
        self.got = 0.0
        self.held = False


def divide(root: Group, wanted_milli: Mapping[str, float]) -> dict[str, float]:
    """Return what each leaf of the tree gets of what it demands. The root's mask holds the CPUs of the machine."""
    assert root.mask is not None, "the root has the machine's CPUs"
    masks: dict[int, int] = {}
    knots: list[_Knot] = []
    by_rank: dict[int, list[_Leaf]] = {}
    granted = dict.fromkeys(wanted_milli, 0.0)

    def visit(group: Group, parent: _Knot | None, mask: int, rank: int) -> None:
        if group.mask is not None:
            mask &= group.mask
        if group.rank is not None:
            rank = group.rank
        if group.children:
            knot = _Knot(parent, group.weight, group.bound_milli)
            before = len(knots)
            knots.append(knot)
            for child in group.children.values():
                visit(child, knot, mask, rank)
            if len(knots) == before + 1:
                knots.pop()  # no leaf below has any demand
            return
        wanted = min(wanted_milli.get(group.name, 0.0), group.bound_milli)
        if wanted > 0 and mask:
            knot = _Knot(parent, group.weight, UNBOUNDED)
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
    added: dict[_Knot, float] = {}
    for leaf in leaves:
        rates[leaf.kind] += leaf.wanted
        knot: _Knot | None = leaf.knot.parent
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


def _fill(leaves: list[_Leaf], knots: list[_Knot], masks: list[int], loads: list[float]) -> None:
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
        crowded = room <= step + TINY
        step = max(0.0, min(step, room))
        for knot in active:
            knot.used += step * knot.rate
        for leaf in growing:
            leaf.got = min(leaf.got + step * leaf.knot.rate, leaf.wanted)
        for kind, rate in enumerate(rates):
            loads[kind] += step * rate
        for leaf in growing:
            leaf.held = (
                leaf.wanted - leaf.got <= TINY
                or (crowded and masks[leaf.kind] & ~full == 0)
                or _is_bounded(leaf.knot.parent)
            )
        still = [leaf for leaf in growing if not leaf.held]
        if len(still) == len(growing):  # no progress within floating-point precision
            break
        growing = still


def _set_rates(growing: list[_Leaf], knots: list[_Knot]) -> list[_Knot]:
    """Distribute the growth rate down the tree by weight to the leaves that still grow; return the nodes it passes."""
    for knot in knots:
        knot.growing = knot.rate = 0.0
    for leaf in growing:
        at: _Knot | None = leaf.knot
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


def _is_bounded(knot: _Knot | None) -> bool:
    while knot is not None:
        if knot.bound - knot.used <= TINY:
            return True
        knot = knot.parent
    return False
