"""This module holds the feature gates of each program, their defaults, and the parser of the `A=true,B=false`
text.

On by default counts as beta, off as alpha, unless stated.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.config.field_error import FieldError
from koord.values.go_format import parse_bool

ALPHA, BETA, GA = "alpha", "beta", "GA"
_STAGE_GATES = {"AllAlpha": ALPHA, "AllBeta": BETA}


class FeatureGate(msgspec.Struct, frozen=True):
    """Describe a gate; where this version cannot give one of its values, `unbuilt` is that value and `why` says so.

    A gate of both values that changes nothing says `why` alone.
    """

    default: bool
    stage: str
    effect: str = ""  # what it switches, for people
    unbuilt: bool | None = None
    why: str = ""


FeatureGateTable = Mapping[str, FeatureGate]


def parse_feature_gates(
    text: str, known: FeatureGateTable, tolerated: frozenset[str] = frozenset()
) -> dict[str, bool] | list[FieldError]:
    """Return every gate of the program with its value, or all that is wrong with the text.

    AllAlpha and AllBeta set the gates of a stage that the text does not name. `tolerated` names are those of
    other registries that the same flag accepts; they change nothing here. A value that is not built is refused, unless
    it is the default: then `feature_gate_warnings` has a sentence about it.
    """
    stated: dict[str, bool] = {}
    errors: list[FieldError] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        switch = parse_bool(value)
        if not equals:
            errors.append(FieldError(name, None, "must be written as name=true or name=false"))
        elif switch is None:
            errors.append(FieldError(name, value, "must be true or false"))
        elif name in known or name in _STAGE_GATES:
            stated[name] = switch
        elif name not in tolerated:
            errors.append(FieldError(name, None, f"is not a known feature gate; known are {', '.join(sorted(known))}"))
    values = {name: _gate_value(name, gate, stated) for name, gate in known.items()}
    errors += [
        FieldError(name, value, f"is not built: {known[name].why}")
        for name, value in values.items()
        if value is known[name].unbuilt and value is not known[name].default
    ]
    return errors or values


def feature_gate_warnings(values: Mapping[str, bool], known: FeatureGateTable) -> list[str]:
    """Return a sentence for each gate whose default is not built, and for each that was switched without effect."""
    found = []
    for name, gate in known.items():
        on = "on" if values[name] else "off"
        if values[name] is gate.unbuilt:
            found.append(f"feature gate {name} is {on} by default, without effect: {gate.why}")
        elif gate.unbuilt is None and gate.why and values[name] is not gate.default:
            found.append(f"feature gate {name} is switched {on}, which changes nothing: {gate.why}")
    return found


def _gate_value(name: str, gate: FeatureGate, stated: Mapping[str, bool]) -> bool:
    if name in stated:
        return stated[name]
    for meta, stage in _STAGE_GATES.items():
        if meta in stated and gate.stage == stage:
            return stated[meta]
    return gate.default


def default_feature_gates(known: FeatureGateTable) -> dict[str, bool]:
    return {name: gate.default for name, gate in known.items()}


DESCHEDULER_GATES: dict[str, FeatureGate] = {"DisablePVCReservation": FeatureGate(False, BETA)}
