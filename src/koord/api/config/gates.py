"""This module holds the feature gates of each program, their defaults, and the parser of the `A=true,B=false`
text.

On by default counts as beta, off as alpha, unless stated.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations.number import boolean
from koord.api.config.field_error import FieldError

ALPHA, BETA, GA = "alpha", "beta", "GA"
_META = {"AllAlpha": ALPHA, "AllBeta": BETA}


class Gate(msgspec.Struct, frozen=True):
    default: bool
    stage: str


Table = Mapping[str, Gate]


def parse(text: str, known: Table, tolerated: frozenset[str] = frozenset()) -> dict[str, bool] | list[FieldError]:
    """Return every gate of the program with its value, or all that is wrong with the text.

    AllAlpha and AllBeta set the gates of a stage that the text does not name. `tolerated` names are those of
    other registries that the same flag accepts; they change nothing here.
    """
    stated: dict[str, bool] = {}
    errors: list[FieldError] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        switch = boolean(value)
        if not equals:
            errors.append(FieldError(name, None, "must be written as name=true or name=false"))
        elif switch is None:
            errors.append(FieldError(name, value, "must be true or false"))
        elif name in known or name in _META:
            stated[name] = switch
        elif name not in tolerated:
            errors.append(FieldError(name, None, f"is not a known feature gate; known are {', '.join(sorted(known))}"))
    if errors:
        return errors
    return {name: _value(name, gate, stated) for name, gate in known.items()}


def _value(name: str, gate: Gate, stated: Mapping[str, bool]) -> bool:
    if name in stated:
        return stated[name]
    for meta, stage in _META.items():
        if meta in stated and gate.stage == stage:
            return stated[meta]
    return gate.default


def defaults(known: Table) -> dict[str, bool]:
    return {name: gate.default for name, gate in known.items()}
