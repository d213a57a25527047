"""Check whether a node may serve a pod's share of a GPU at all, before any card is examined."""

from __future__ import annotations

from collections.abc import Collection

from koord.policy.device.demand import Demand
from koord.policy.device.gpu import NodeFacts
from koord.policy.device.refusal import NO_ISOLATION, Refusal, unresolvable, unschedulable
from koord.values.quotation import quoted


def eligible(demand: Demand, facts: NodeFacts, unsupported: Collection[tuple[str, str]] = ()) -> Refusal | None:
    """Check GPU sharing on the node. `unsupported` lists vendor and model of the cards that cannot be shared.

    A node without the isolation library that the pod names is refused like any other unfit node. Upstream
    fails the pod's whole cycle there, so that one unprepared node keeps a pod from all the prepared ones.
    """
    if demand.gpu is None or not demand.gpu.shared:
        return None
    if demand.isolation_provider and demand.isolation_provider != facts.isolation_provider:
        return unschedulable(NO_ISOLATION)
    if (facts.vendor, facts.model) in unsupported:
        return unresolvable(f"model {quoted(facts.model)} of vendor {quoted(facts.vendor)} does not support GPU Share")
    return None
