"""This module decodes ordinary objects of built-in kinds in C, with one msgspec Struct per type.

A compiled type accepts only input whose round trip it can reproduce exactly; anything else (unknown fields,
nulls, wrong types, times in another zone) makes it decline, and the walk in `builtin_decoding` gives the
full answer. The canonical wire forms of quantities and times are defined here as well; koord.values parses
them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.values import instant
from koord.values.quantity import Quantity

# Times in exactly the form that comes back. The 29th of February is left to the real parser, which knows the years.
_DAY = (
    "((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    "|(0[13-9]|1[0-2])-(29|30)"
    "|(0[13578]|1[02])-31)"
)  # fmt: skip
_MOMENT = rf"^(?!0001-01-01T00:00:00)(?!0000)[0-9]{{4}}-{_DAY}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
CANONICAL_SECONDS = _MOMENT + r"Z$"
CANONICAL_MICROSECONDS = _MOMENT + r"\.[0-9]{6}Z$"
_ZERO = instant.parse("0001-01-01T00:00:00Z")


def canonical_quantity(value: Any) -> str:
    """Return a quantity as the server writes it back: `1000m` becomes `1`, `1024Mi` becomes `1Gi`.

    Raises ValueError in the server's words for what is not a quantity.
    """
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return str(Quantity.parse(value))
    # Go hands the JSON text itself to the parser, whatever it is.
    return str(Quantity.parse(msgspec.json.encode(value).decode()))


def canonical_time(text: str, *, micro: bool) -> str | None:
    """Return a time in UTC with whole seconds, or with six decimals for MicroTime.

    None for the zero time, written as null.
    """
    moment = instant.parse_micro(text) if micro else instant.parse(text)
    if moment == _ZERO:
        return None
    return instant.micro_text(moment) if micro else instant.text(moment)
