"""This module reports one problem of one configuration field, and holds the checks that produce most of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koord.api.kubernetes.meta import LabelSelector
from koord.values import duration

_WITH_VALUES = ("In", "NotIn")
_WITHOUT_VALUES = ("Exists", "DoesNotExist")
_OPERATORS = (*_WITH_VALUES, *_WITHOUT_VALUES)


class FieldError(msgspec.Struct, frozen=True):
    """FieldError says which field is wrong, what it holds, and what it may hold."""

    field: str
    value: Any
    rule: str

    def __str__(self) -> str:
        return f"{self.field}: {msgspec.json.encode(self.value).decode()}: {self.rule}"


def range_errors(
    field: str, value: float | None, *, low: float | None = None, high: float | None = None, above: float | None = None
) -> list[FieldError]:
    """Check a range: `low` and `high` are allowed themselves, `above` is not. An absent value is never wrong."""
    if value is None:
        return []
    if above is not None and not value > above:
        return [FieldError(field, value, f"must be greater than {above}")]
    if (low is not None and value < low) or (high is not None and value > high):
        if low is not None and high is not None:
            return [FieldError(field, value, f"must be from {low} to {high}")]
        rule = f"must be {low} or greater" if low is not None else f"must be {high} or less"
        return [FieldError(field, value, rule)]
    return []


def each_range_errors(
    field: str, values: Mapping[str, float], *, low: float | None = None, high: float | None = None
) -> list[FieldError]:
    return [
        error for key, value in values.items() for error in range_errors(f"{field}[{key}]", value, low=low, high=high)
    ]


def enum_errors(field: str, value: str | None, allowed: Collection[str]) -> list[FieldError]:
    if value is None or value in allowed:
        return []
    return [FieldError(field, value, f"must be one of {', '.join(repr(a) for a in allowed)}")]


def required_error(field: str) -> FieldError:
    return FieldError(field, None, "is required")


def duplicate_errors(field: str, values: Iterable[str]) -> list[FieldError]:
    seen: set[str] = set()
    errors = []
    for index, value in enumerate(values):
        if value in seen:
            errors.append(FieldError(f"{field}[{index}]", value, "is a duplicate (Duplicate value)"))
        seen.add(value)
    return errors


def duration_errors(field: str, value: str | None, lowest: int = 0) -> list[FieldError]:
    """Check Go duration text against `lowest` nanoseconds. An absent value is never wrong."""
    if value is None:
        return []
    try:
        stated = duration.parse(value)
    except duration.DurationError as error:
        return [FieldError(field, value, str(error))]
    if stated >= lowest:
        return []
    return [FieldError(field, value, f"must be {duration.text(lowest)} or longer")]


def selector_errors(field: str, selector: LabelSelector | None) -> list[FieldError]:
    """Check the operators and values of a label selector; None selects nothing and is well formed."""
    errors = []
    for index, requirement in enumerate(selector.match_expressions if selector else ()):
        here = f"{field}.matchExpressions[{index}]"
        if not requirement.key:
            errors.append(required_error(f"{here}.key"))
        errors += enum_errors(f"{here}.operator", requirement.operator, _OPERATORS)
        if requirement.operator in _WITH_VALUES and not requirement.values:
            errors.append(required_error(f"{here}.values"))
        if requirement.operator in _WITHOUT_VALUES and requirement.values:
            rule = f"must be empty with operator {requirement.operator}"
            errors.append(FieldError(f"{here}.values", requirement.values, rule))
    return errors


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
