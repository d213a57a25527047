"""koordinator.sh/priority: order inside one priority class. On pods, and on reservations."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed
from koord.api.annotations.number import any_base
from koord.api.protocol import L_PRIORITY


def parse(labels: Mapping[str, str]) -> int | Malformed | None:
    """Parse koordinator.sh/priority, the order inside one priority class.

    Missing is None: callers treat it as 0, the webhook compares it as text.
    """
    text = labels.get(L_PRIORITY)
    if text is None:
        return None
    value = any_base(text, bits=32)
    return Malformed(L_PRIORITY, f"{text!r} is not a 32-bit integer") if value is None else value


def dump(value: int) -> str:
    return str(value)
