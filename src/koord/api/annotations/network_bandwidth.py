"""node.koordinator.sh/network-bandwidth: the node's bandwidth in bits per second, over the cluster's setting."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed
from koord.api.protocol import A_NETWORK_BANDWIDTH
from koord.values.quantity import Quantity, QuantityError


def parse(annotations: Mapping[str, str]) -> str | Malformed | None:
    """Parse the node's bandwidth in bits per second: the quantity as text, known to be one."""
    text = annotations.get(A_NETWORK_BANDWIDTH)
    if text is None:
        return None
    try:
        Quantity.parse(text)
    except QuantityError as error:
        return Malformed(A_NETWORK_BANDWIDTH, str(error))
    return text


def dump(value: str) -> str:
    return value
