"""Allocate devices of every requested type on one node, jointly where the pod demands it, or say why not.

Nothing is recorded here: the result goes into the ledger, and `allocated_annotation` writes it for others.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api import device as wire
from koord.policy.device.choice import Chosen, Wanted, choose_in_order
from koord.policy.device.demand import Demand
from koord.policy.device.gpu import NodeFacts, Order, choose_gpus
from koord.policy.device.holding import Holdings, function_key
from koord.policy.device.ledger import DeviceLedger
from koord.policy.device.refusal import (
    JOINT_VIOLATED,
    NO_PRIMARY,
    Code,
    Nearest,
    Refusal,
    insufficient,
    unschedulable,
)
from koord.policy.device.score import Scorer
from koord.policy.device.view import FREE_TERMS, Terms, View, view_of
from koord.policy.device.want import wants


class Allocation(msgspec.Struct, frozen=True):
    devices: Mapping[str, tuple[Chosen, ...]]  # by device type, in the order in which they were chosen

    @property
    def holdings(self) -> Holdings:
        return {kind: {one.card.minor: _taken(one) for one in chosen} for kind, chosen in self.devices.items()}

    @property
    def sums(self) -> dict[str, int]:
        """Return all allocated amounts by resource: what a reservation that names no amounts is resized to."""
        total: dict[str, int] = {}
        for chosen in self.devices.values():
            for one in chosen:
                for name, amount in one.amounts.items():
                    total[name] = total.get(name, 0) + amount
        return total

    def minors(self, device_type: str) -> tuple[int, ...]:
        return tuple(one.card.minor for one in self.devices.get(device_type, ()))


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one allocation. `final`: the pod is being placed for good. The last two differ from Koordinator's
    defaults.
    """

    scorer: Scorer | None = None  # None: by minor alone
    final: bool = False
    keep_switches_apart: bool = False  # give effect to the PCIeLevel exclusive policy
    best_partitions_first: bool = False  # the highest allocationScore first


DEFAULT_OPTIONS = Options()
NO_FACTS = NodeFacts()


def allocate(
    ledger: DeviceLedger,
    demand: Demand,
    facts: NodeFacts = NO_FACTS,
    terms: Terms = FREE_TERMS,
    options: Options = DEFAULT_OPTIONS,
) -> Allocation | Refusal:
    wanted = wants(demand, ledger.inventory, final=options.final)
    if isinstance(wanted, Refusal):
        return wanted
    attempt = _Attempt(ledger, demand, facts, terms, options, wanted)
    found = _joint(attempt) if len(wanted) > 1 and demand.joint else {}
    if isinstance(found, Refusal):
        return found
    for device_type in wanted:
        if device_type not in found:
            chosen = attempt.choose(device_type)
            if isinstance(chosen, Refusal):
                return chosen
            found[device_type] = chosen
    if not any(found.values()):
        return Refusal(Code.UNSCHEDULABLE, tuple(insufficient(device_type) for device_type in wanted))
    return Allocation({kind: tuple(found[kind]) for kind in sorted(found)})


class _Attempt(msgspec.Struct, frozen=True):
    """One allocation attempt on one node: what stays the same from type to type."""

    ledger: DeviceLedger
    demand: Demand
    facts: NodeFacts
    terms: Terms
    options: Options
    wanted: Mapping[str, Wanted]

    def view(self, device_type: str) -> View:
        return view_of(
            self.ledger,
            device_type,
            self.wanted[device_type].hint,
            self.terms,
            keep_switches_apart=self.options.keep_switches_apart,
        )

    def choose(
        self,
        device_type: str,
        *,
        switches: frozenset[str] = frozenset(),
        desired: int | None = None,
        most: int | None = None,
    ) -> list[Chosen] | Refusal:
        wanted = self.wanted[device_type]
        preferred = self.terms.preferred.get(device_type, frozenset())
        included = self.terms.included.get(device_type, frozenset())
        if device_type == wire.GPU:
            order = Order(
                scorer=self.options.scorer,
                preferred=preferred,
                included=included,
                switches=switches,
                highest_first=self.options.best_partitions_first,
            )
            return choose_gpus(self.view(device_type), wanted, self.demand, self.ledger.inventory, self.facts, order)
        return choose_in_order(
            self.view(device_type),
            wanted,
            self.options.scorer,
            desired=desired,
            most=most,
            preferred=preferred,
            included=included,
            switches=switches,
        )


def _joint(attempt: _Attempt) -> dict[str, list[Chosen]] | Refusal:
    """Allocate the leading type first; the others follow it to its PCIe switches.

    Each of the others tries to get one device per switch and settles for its own count. SamePCIe requires one
    per switch, with no device elsewhere. GPUs are the exception: no pod gets more of them than it requested.
    """
    demand = attempt.demand
    leading, *following = (kind for kind in demand.joint if kind in attempt.wanted)
    first = attempt.choose(leading)
    if isinstance(first, Refusal):
        return first
    if not first:
        return unschedulable(NO_PRIMARY)
    found = {leading: first}
    switches = frozenset(one.card.pcie for one in first if one.card.pcie is not None)
    for device_type in following:
        count = attempt.wanted[device_type].count
        desired = max(count, len(switches)) if demand.same_pcie else count
        chosen = attempt.choose(device_type, switches=switches, desired=desired, most=max(desired, len(switches)))
        if isinstance(chosen, Refusal):
            return chosen
        found[device_type] = chosen
        if demand.same_pcie and len(demand.joint) > 1:
            theirs = {one.card.pcie for one in chosen}
            if theirs != switches:  # a device without topology shares no switch
                return unschedulable(JOINT_VIOLATED, _apart(leading, device_type, switches, theirs))
    return found


def _apart(leading: str, device_type: str, switches: frozenset[str], theirs: set[str | None]) -> Nearest:
    missing = ", ".join(sorted(switches - theirs)) or "none"
    return Nearest(
        device_type=device_type,
        wanted=max(len(switches), 1),
        fitting=len(switches & theirs),
        group="PCIe switch",
        best=len(switches & theirs),
        detail=f"{leading} sits on PCIe {', '.join(sorted(switches)) or 'unknown'}; no {device_type} on {missing}",
    )


def _taken(one: Chosen) -> dict[str, int]:
    amounts = {name: amount for name, amount in one.amounts.items() if amount}
    if one.function is not None:
        amounts[function_key(one.function.bus_id)] = 1
    return amounts
