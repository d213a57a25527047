"""DeviceTrial tries to allocate devices for one pod on one node, with the reservations that it may use."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.api import device as wire
from koord.policy.device.allocator import Allocation, Options, allocate
from koord.policy.device.gpu import NodeFacts
from koord.policy.device.holding import NOTHING, Holdings
from koord.policy.device.refusal import Nearest, Refusal
from koord.policy.device.reservation import Placed, Reserved, Reusable, allocate_with
from koord.policy.device.view import FREE_TERMS, Terms
from koord.scheduler.framework import reserved as framework
from koord.scheduler.plugins.device_share.asking import Asking
from koord.scheduler.plugins.device_share.site import Site
from koord.values.bitmask import BitMask

RESTRICTED = "Restricted"
LOOKING = Options()


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial allocation. `reserved`: usable reservations on the node. `options`: how to choose among cards that
    fit.
    """

    site: Site
    asking: Asking
    facts: NodeFacts
    reserved: Sequence[framework.Reserved] = ()
    required: bool = False  # only a reservation will do
    taken_over: Holdings = NOTHING  # of running pods that will live in what it gets: all of it must be in there
    options: Options = LOOKING

    def placed(self, zones: BitMask | None = None, card: int | None = None) -> Placed | Refusal:
        """Allocate within the NUMA nodes `zones`. `card`: the only GPU that may be taken."""
        terms = FREE_TERMS if zones is None else Terms(zones=zones)
        if card is not None:
            only = {wire.GPU: {card: self.site.inventory.of(wire.GPU)[card].total}}
            terms = msgspec.structs.replace(terms, required=only)
        if self.asking.promised is not None:
            terms = msgspec.structs.replace(terms, required=self.asking.promised)
        if self.taken_over:
            asked = {kind: held for kind, held in self.taken_over.items() if kind in self.asking.demand.requests}
            matched = (Reserved(uid="", devices=asked, taken_over=True),) if asked else ()
            twice = self.site.counted_twice()
            return allocate_with(
                Reusable(counted_twice=twice, matched=matched, required=bool(matched)), self._attempt, terms
            )
        if self.reserved:
            return allocate_with(self._reusable(), self._attempt, terms)
        twice = self.site.counted_twice()
        if twice:
            terms = msgspec.structs.replace(terms, reusable=twice)
        found = self._attempt(terms)
        return found if isinstance(found, Refusal) else Placed(found)

    def allocation(self, zones: BitMask | None = None, card: int | None = None) -> Allocation | Refusal:
        found = self.placed(zones, card)
        return found if isinstance(found, Refusal) else found.allocation

    def nearest(self) -> Nearest | None:
        """Return how far the node is from serving the pod; None when it serves it."""
        found = self.allocation()
        return found.nearest if isinstance(found, Refusal) else None

    def reusable(self) -> Holdings:
        """Return what others hold and the pod may use all the same, if it allocates from the node."""
        return self._reusable().on_node() if self.reserved else self.site.counted_twice()

    def _attempt(self, terms: Terms) -> Allocation | Refusal:
        return allocate(self.site.ledger, self.asking.demand, self.facts, terms, self.options)

    def _reusable(self) -> Reusable:
        site, inside = self.site, self.site.inside()
        return Reusable(
            counted_twice=site.counted_twice(frozenset(one.uid for one in self.reserved)),
            matched=tuple(
                Reserved(
                    uid=one.uid,
                    devices=held,
                    allocated=inside.get(one.uid, NOTHING),
                    restricted=one.policy == RESTRICTED,
                )
                for one in self.reserved
                if (held := site.held(one.holder.uid)) is not None
            ),
            required=self.required,
            ignores_reservations=self.asking.ignores,
        )
