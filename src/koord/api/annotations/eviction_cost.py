"""scheduling.koordinator.sh/eviction-cost: who the descheduler moves first, and who never."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed
from koord.api.annotations.number import decimal
from koord.api.protocol import A_EVICTION_COST

NEVER = 2**31 - 1


def parse(annotations: Mapping[str, str]) -> int | Malformed:
    """Parse the eviction cost: lower goes first, missing is 0.

    A plus sign and leading zeros are malformed, so that equal costs have one text.
    """
    text = annotations.get(A_EVICTION_COST)
    if text is None:
        return 0
    if text == "0" or (text and text[0] in "-123456789"):
        value = decimal(text, bits=32)
        if value is not None:
            return value
    return Malformed(A_EVICTION_COST, f"{text!r} is not a 32-bit integer without plus sign and leading zeros")


def dump(value: int) -> str:
    return str(value)


def or_zero(annotations: Mapping[str, str]) -> int:
    """Return the eviction cost for sorting, where a malformed one counts as 0."""
    value = parse(annotations)
    return 0 if isinstance(value, Malformed) else value
