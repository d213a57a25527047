"""One pod's request on one node: amounts, CPUs to bind, and what it may use beyond what is free."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.policy.topology.amplification import amplify_cpu
from koord.policy.topology.binding import Binding
from koord.policy.topology.ledger import Amounts, ZoneAmounts
from koord.policy.topology.node import NodeTopology


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's request on one node. `amounts` are as the pod states them: milli-cores of cpu, whole units of
    all else.

    `preferred` CPUs are held by reservations for the pod: one reference of them is released for it, and they
    are taken first. Designated CPUs are taken first too, but only if they are free. `reusable` are amounts by
    NUMA node that the pod may use although they are held; a confined request may use nothing else.
    """

    amounts: Amounts
    binding: Binding | None = None
    preferred: int = 0
    promised: int = 0
    reusable: ZoneAmounts = {}
    confined: ZoneAmounts = {}

    @property
    def must(self) -> str:
        return "" if self.binding is None else self.binding.must

    def charged(self, node: NodeTopology) -> Mapping[str, int]:
        """Return what the pod takes off an amplified node: bound CPUs are physical ones."""
        return self.amounts if self.binding is None else amplify_cpu(self.amounts, node.ratio)
