"""Score all devices of one node for a pod."""

from __future__ import annotations

from koord.policy.device.demand import Demand
from koord.policy.device.ledger import DeviceLedger
from koord.policy.device.refusal import Refusal
from koord.policy.device.score import Scorer, pooled_score
from koord.policy.device.view import FREE_TERMS, Terms, view_of
from koord.policy.device.want import wants


def node_score(ledger: DeviceLedger, demand: Demand, scorer: Scorer, terms: Terms = FREE_TERMS) -> int:
    """Return the sum of the scores of the requested types, not yet scaled to 100."""
    wanted = wants(demand, ledger.inventory)
    if isinstance(wanted, Refusal):
        return 0
    total = 0
    for device_type, want in wanted.items():
        view = view_of(ledger, device_type, want.hint, terms)
        total += pooled_score(scorer, want.each, ((c.total, view.free[m]) for m, c in view.cards.items()))
    return total
