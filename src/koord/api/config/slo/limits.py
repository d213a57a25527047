"""This module states the ranges of strategy fields as data, so that admission and the controllers share each
number.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.api.config.field_error import FieldError, range_errors


class FieldLimit(msgspec.Struct, frozen=True, kw_only=True):
    """FieldLimit is the allowed range of one or more fields, by attribute name."""

    fields: tuple[str, ...]
    low: float | None = None
    high: float | None = None
    above: float | None = None


class FieldOrder(msgspec.Struct, frozen=True, kw_only=True):
    """FieldOrder requires `lower` to be below `upper` where both are given.

    A pair of which only one is given is fine: the other has a default. Upstream's webhook refuses it, and with
    it the memory-evict example of its own manual; so does ours, in koord.manager.webhooks.config_rule, where
    that rule lives.
    """

    lower: str
    upper: str


def limit_errors(
    strategy: msgspec.Struct, limits: Sequence[FieldLimit], pairs: Sequence[FieldOrder] = (), path: str = ""
) -> list[FieldError]:
    """Return an error for each limit that the strategy breaks, with wire names below `path`."""
    names = {f.name: f"{path}{f.encode_name}" for f in msgspec.structs.fields(strategy)}
    errors = [
        error
        for limit in limits
        for field in limit.fields
        for error in range_errors(
            names[field], getattr(strategy, field), low=limit.low, high=limit.high, above=limit.above
        )
    ]
    for pair in pairs:
        lower, upper = getattr(strategy, pair.lower), getattr(strategy, pair.upper)
        if lower is not None and upper is not None and not lower < upper:
            errors.append(FieldError(names[pair.upper], upper, f"must be greater than {names[pair.lower]} ({lower})"))
    return errors


def percent_limit(*fields: str) -> FieldLimit:
    return FieldLimit(fields=fields, low=0, high=100)
