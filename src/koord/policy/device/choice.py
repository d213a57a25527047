"""Select devices for a pod: what it requests of each type on this node, what fits on a card, and the choice
by score and minor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.resource_name import GPU_MEMORY
from koord.policy.device.demand import Hint
from koord.policy.device.holding import Amounts
from koord.policy.device.inventory import Card, Function
from koord.policy.device.refusal import Nearest, Refusal, insufficient, unschedulable
from koord.policy.device.score import Scorer
from koord.policy.device.view import View


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A request for `count` devices of one type, each with the amounts of `each`."""

    type: str
    each: Amounts
    count: int
    hint: Hint

    @property
    def needs_function(self) -> bool:
        return self.hint.function_selector is not None


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    card: Card
    amounts: Amounts
    function: Function | None = None
    template: str = ""


def fitting(view: View, wanted: Wanted) -> dict[int, Amounts]:
    """Return the devices that could each serve one instance, with the amounts that it would take there."""
    result: dict[int, Amounts] = {}
    shares: dict[int, Amounts] = {}  # cards of a node are mostly alike
    for minor, free in view.free.items():
        card = view.cards[minor]
        if not card.total:
            continue
        memory = card.total.get(GPU_MEMORY, 0)
        share = shares.get(memory)
        if share is None:
            share = shares[memory] = card.filled(wanted.each)
        # A derived amount counts where the card has the resource; a requested one must be there.
        if all(free.get(name, 0) >= amount for name, amount in share.items() if name in free or name in wanted.each):
            result[minor] = share
    return result


def chosen(view: View, minors: Iterable[int], shares: Mapping[int, Amounts]) -> list[Chosen]:
    return [Chosen(card=view.cards[minor], amounts=shares[minor]) for minor in minors]


def choose_in_order(
    view: View,
    wanted: Wanted,
    scorer: Scorer | None,
    *,
    desired: int | None = None,
    most: int | None = None,
    preferred: frozenset[int] = frozenset(),
    included: frozenset[int] = frozenset(),
    switches: frozenset[str] = frozenset(),
) -> list[Chosen] | Refusal:
    """Select at least `desired` devices and up to `most`, by best score and then by minor, with the included
    ones in any case.

    Preferred devices come before all others. Failing these, one device of each preferred PCIe switch, then a
    second of each, and so on, come first.
    """
    desired = wanted.count if desired is None else desired
    most = desired if most is None else most
    shares = fitting(view, wanted)
    functions = _functions(view, wanted, shares)
    usable = list(shares) if functions is None else list(functions)
    if len(usable) < desired or len(included) > most or not included.issubset(usable):
        return unschedulable(insufficient(wanted.type), _nearest(view, wanted, desired, len(usable), len(shares)))
    ordered = _ordered(usable, view, wanted, scorer, preferred, switches)
    if included:
        ordered.sort(key=lambda minor: minor not in included)  # stable
    return [
        Chosen(card=view.cards[m], amounts=shares[m], function=None if functions is None else functions[m])
        for m in ordered[:most]
    ]


def _functions(view: View, wanted: Wanted, minors: Iterable[int]) -> dict[int, Function] | None:
    if not wanted.needs_function:
        return None
    found = ((minor, view.function(minor, wanted.hint)) for minor in minors)
    return {minor: function for minor, function in found if function is not None}


def _ordered(
    minors: list[int],
    view: View,
    wanted: Wanted,
    scorer: Scorer | None,
    preferred: frozenset[int],
    switches: frozenset[str],
) -> list[int]:
    if scorer is not None:
        scores = {m: scorer.score(wanted.each, view.cards[m].total, view.free[m]) for m in minors}
        minors.sort(key=lambda m: (-scores[m], m))
    if preferred:
        return [m for m in minors if m in preferred] + [m for m in minors if m not in preferred]
    if not switches:
        return minors
    turn: dict[int, int] = {}  # minor -> its place among the devices of its switch
    seen: dict[str, int] = {}
    for minor in minors:
        pcie = view.cards[minor].pcie
        if pcie in switches and pcie is not None:
            turn[minor] = seen[pcie] = seen.get(pcie, -1) + 1
    last = len(minors)
    return sorted(minors, key=lambda m: turn.get(m, last))  # a stable sort: each round stays best first


def _nearest(view: View, wanted: Wanted, desired: int, found: int, with_room: int) -> Nearest:
    detail = ""
    if wanted.needs_function and with_room > found:
        detail = f"{with_room - found} more have room but no virtual function left"
    return Nearest(
        device_type=wanted.type,
        wanted=desired,
        fitting=found,
        unhealthy=sum(not card.healthy for card in view.cards.values()),
        detail=detail,
    )
