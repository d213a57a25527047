"""Whether a pod could run on another node: selectors, taints, requests and cordons. Usage is left to others."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.node import Node
from koord.api.pod_resources import amounts
from koord.api.protocol import A_RAW_ALLOCATABLE
from koord.values.quantity import QuantityError


def raw_allocatable(node: Node) -> Mapping[str, int]:
    """Return the allocatable before amplification where the node's annotation states it readably, else its status.

    Amounts are milli-units for cpu and units for all else.
    """
    text = node.metadata.annotations.get(A_RAW_ALLOCATABLE)
    if text is not None:
        try:
            return amounts(msgspec.json.decode(text, type=dict[str, str | int]))
        except (msgspec.MsgspecError, QuantityError):
            pass  # not readable is the same as not said: status.allocatable stands
    return allocatable(node)


def allocatable(node: Node) -> Mapping[str, int]:
    return amounts(node.status.allocatable)
