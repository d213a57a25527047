"""Every feature gate of koord-descheduler has a reader and an effect; the page lists them all."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.descheduler.configuration import DESCHEDULER_GATES, DeschedulerGate
from koord.kube.transport.api_error import unwrap
from tests.descheduler.descheduler_harness import DeschedulerHarness, run_in_harness

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "descheduling.md"


@pytest.mark.parametrize("name", list(DESCHEDULER_GATES))
def test_every_gate_has_a_reader(name: str) -> None:
    gate = DESCHEDULER_GATES[name]
    assert gate.effect
    source = inspect.getsource(importlib.import_module(f"koord.descheduler.{gate.reader}"))
    words = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    assert name in words, f"koord.descheduler.{gate.reader} does not read it"


async def claims_in_a_reservation(harness: DeschedulerHarness, gates: frozenset[str]) -> int:
    """Return how many claims the reservation of a pod with one asks for."""
    harness.start(gates=gates)
    await harness.add_pod("a", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}])
    await harness.add_job()
    await harness.settle()
    (found,) = unwrap(await harness.client.dynamic.list(RESERVATIONS)).items
    volumes = found["spec"]["template"]["spec"].get("volumes") or ()
    return sum("persistentVolumeClaim" in volume for volume in volumes)


# By gate: something that can be seen of it from outside.
EFFECTS = {"DisablePVCReservation": claims_in_a_reservation}


def test_an_effect_is_known_of_every_gate() -> None:
    assert EFFECTS.keys() == DESCHEDULER_GATES.keys()


@pytest.mark.parametrize("gate", list(EFFECTS))
def test_every_gate_has_an_effect(gate: str) -> None:
    seen = []
    for gates in (frozenset[str](), frozenset({gate})):

        async def story(harness: DeschedulerHarness, gates: frozenset[str] = gates) -> None:
            seen.append(await EFFECTS[gate](harness, gates))

        run_in_harness(story)
    assert seen[0] != seen[1]
    assert DESCHEDULER_GATES[gate].default is False


def test_the_page_lists_every_gate() -> None:
    lines = set(PAGE.read_text().splitlines())
    assert [
        row for name, gate in sorted(DESCHEDULER_GATES.items()) if (row := table_row(name, gate)) not in lines
    ] == []


def table_row(name: str, gate: DeschedulerGate) -> str:
    return f"| `{name}` | {str(gate.default).lower()} | {gate.stage} | {gate.effect} | `{gate.reader}` |"
