"""Every feature gate of koord-manager has a reader, or a sentence that says why not; the page lists them all."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from koord.api.config.gates import parse_feature_gates
from koord.manager.feature_gates import MANAGER_GATES, ManagerGate, manager_gate_warnings, shipped_manager_gates

PAGE = Path(__file__).parents[2] / "docs" / "koord-manager.md"


@pytest.mark.parametrize("name", list(MANAGER_GATES))
def test_every_gate_has_a_reader_or_a_sentence(name: str) -> None:
    gate = MANAGER_GATES[name]
    assert gate.effect
    if gate.why:
        assert not gate.reader
        return
    source = inspect.getsource(importlib.import_module(f"koord.manager.{gate.reader}"))
    words = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    assert name in words, f"koord.manager.{gate.reader} does not read it"
    assert set(gate.needs) <= set(MANAGER_GATES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", []),
        ("AllBeta=true", ["DisablePVCReservation is switched on, which changes nothing: koord-descheduler alone"]),
        (
            "PriorityTransformer=true",
            ["PriorityTransformer is switched on, which changes nothing: koord-scheduler alone reads it; set it there"],
        ),
        (
            "ElasticQuotaEvaluationTransformPod=true,EnableQuotaAdmission=true",
            [
                "ElasticQuotaEvaluationTransformPod is on, which changes nothing without ReplaceResourcesTransformer",
            ],
        ),
        (
            "ReplaceResourcesTransformer=true,ElasticQuotaEvaluationTransformPod=true",
            ["ElasticQuotaEvaluationTransformPod is on, which changes nothing without EnableQuotaAdmission"],
        ),
    ],
)
def test_a_gate_that_is_switched_without_effect_is_named(text: str, said: list[str]) -> None:
    values = parse_feature_gates(text, MANAGER_GATES)
    assert isinstance(values, dict)
    lines = manager_gate_warnings(values)
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        assert line.startswith(f"feature gate {words}")


def test_what_is_stated_wins_over_what_is_shipped() -> None:
    for stated, on in (("", True), ("EnableSyncGPUSharedResource=false", False), ("MultiQuotaTree=true", True)):
        values = parse_feature_gates(shipped_manager_gates(stated), MANAGER_GATES)
        assert isinstance(values, dict)
        assert values["EnableSyncGPUSharedResource"] is on


def test_the_page_lists_every_gate() -> None:
    lines = set(PAGE.read_text().splitlines())
    assert [row for name, gate in sorted(MANAGER_GATES.items()) if (row := table_row(name, gate)) not in lines] == []


def table_row(name: str, gate: ManagerGate) -> str:
    needs = f"; needs {' and '.join(f'`{other}`' for other in gate.needs)}" if gate.needs else ""
    reader = f"nothing: {gate.why}" if gate.why else f"`{gate.reader}`{needs}"
    return f"| `{name}` | {str(gate.default).lower()} | {gate.stage} | {gate.effect} | {reader} |"
