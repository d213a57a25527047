"""Every feature gate of koordlet has a reader, or is refused by name; the documentation lists them all."""

from __future__ import annotations

import importlib
import inspect

import pytest

from koord.api.config.gates import feature_gate_warnings, parse_feature_gates
from koord.koordlet.feature_gates import KOORDLET_GATES
from koord.koordlet.strategies.registry import STRATEGIES

UNBUILT = [name for name, gate in KOORDLET_GATES.items() if gate.unbuilt is not None]


@pytest.mark.parametrize("name", list(KOORDLET_GATES))
def test_every_gate_has_a_reader_or_a_sentence(name: str) -> None:
    gate = KOORDLET_GATES[name]
    assert gate.effect
    if gate.unbuilt is None:
        assert f'"{name}"' in inspect.getsource(importlib.import_module(gate.reader)), gate.reader
    else:
        assert gate.why
        assert gate.reader == ""


def test_strategies_have_gates_of_the_table() -> None:
    assert {gate for strategy in STRATEGIES for gate in strategy.gates} <= KOORDLET_GATES.keys() - set(UNBUILT)


@pytest.mark.parametrize("name", UNBUILT)
def test_what_is_not_built_is_refused_or_told_once(name: str) -> None:
    gate = KOORDLET_GATES[name]
    found = parse_feature_gates(f"{name}=true", KOORDLET_GATES)
    if gate.default:
        assert isinstance(found, dict)
        assert [line for line in feature_gate_warnings(found, KOORDLET_GATES) if name in line] == [
            f"feature gate {name} is on by default, without effect: {gate.why}"
        ]
        off = parse_feature_gates(f"{name}=false", KOORDLET_GATES)
        assert isinstance(off, dict)
        assert not [line for line in feature_gate_warnings(off, KOORDLET_GATES) if name in line]
    else:
        assert isinstance(found, list)
        (error,) = found
        assert (error.gate, str(error)) == (name, f"{name}=true is not built: {gate.why}")
