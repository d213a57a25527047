"""Every feature gate of koord-scheduler has one reader, or is refused by name; the documentation lists them all."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from koord.api.config.gates import feature_gate_warnings, parse_feature_gates
from koord.api.config.scheduler import configuration
from koord.api.kubernetes.resource import Resource
from koord.scheduler import scheduler
from koord.scheduler.configuration import completed_config, feature_gates
from koord.scheduler.configuration.completed_config import CompletedConfig, EmptyLister, ValidationHandle
from koord.scheduler.configuration.feature_gates import GATED_FACTORIES, SCHEDULER_GATES, SchedulerGate
from koord.scheduler.plugins.registry import REGISTRY

PAGE = Path(__file__).parents[3] / "docs" / "koord-scheduler.md"


@pytest.mark.parametrize("name", list(SCHEDULER_GATES))
def test_every_gate_has_a_reader_or_a_sentence(name: str) -> None:
    gate = SCHEDULER_GATES[name]
    assert gate.effect
    readers = [bool(gate.plugin), bool(gate.hides), gate.transform is not None, gate.by_scheduler]
    if gate.unbuilt is None and not gate.why:
        assert sum(readers) == 1, "one reader"
    else:
        assert not any(readers)
        assert gate.why
    if gate.plugin:
        assert gate.keyword in inspect.signature(GATED_FACTORIES[gate.plugin]).parameters
        assert gate.plugin in REGISTRY


def test_gates_of_the_scheduler_are_read_there() -> None:
    """The scheduler reads most of them, profiles read one."""
    sources = [inspect.getsource(module) for module in (scheduler, completed_config)]
    constants = {value: key for key, value in vars(feature_gates).items() if isinstance(value, str)}
    for name, gate in SCHEDULER_GATES.items():
        if gate.by_scheduler:
            reads = (f"gates[{constants[name]}]", f"gates[feature_gates.{constants[name]}]")
            assert any(read in source for source in sources for read in reads), name


def test_what_is_not_built_is_refused_by_name() -> None:
    refused = [name for name, gate in SCHEDULER_GATES.items() if gate.unbuilt is not None]
    assert refused
    for name in refused:
        value = str(SCHEDULER_GATES[name].unbuilt).lower()
        found = parse_feature_gates(f"{name}={value}", SCHEDULER_GATES)
        assert isinstance(found, list)
        (error,) = found
        assert error.gate == name
        assert str(error).endswith(SCHEDULER_GATES[name].why)


def test_all_gates_of_a_stage_name_what_is_not_built() -> None:
    found = parse_feature_gates("AllAlpha=true", SCHEDULER_GATES)
    assert isinstance(found, list)
    assert {error.gate for error in found} == {n for n, gate in SCHEDULER_GATES.items() if gate.unbuilt is True}


def test_what_is_switched_without_effect_is_said() -> None:
    assert warnings("") == []
    assert warnings("MultiQuotaTree=true") == []
    (line,) = warnings("LazyReservationRestore=true")
    assert line.startswith("feature gate LazyReservationRestore is switched on, which changes nothing: ")
    table = {"Hook": SchedulerGate(True, "beta", "a hook", unbuilt=True, why="there are no hooks")}
    values = parse_feature_gates("Hook=true", table)
    assert isinstance(values, dict)
    assert feature_gate_warnings(values, table) == [
        "feature gate Hook is on by default, without effect: there are no hooks"
    ]
    assert feature_gate_warnings({"Hook": False}, table) == []


def warnings(text: str) -> list[str]:
    values = parse_feature_gates(text, SCHEDULER_GATES)
    assert isinstance(values, dict)
    return feature_gate_warnings(values, SCHEDULER_GATES)


class RecordingHandle(ValidationHandle):
    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[str] = set()

    def lister(self, resource: Resource[Any]) -> EmptyLister[Any]:
        self.kinds.add(resource.kind)
        return EmptyLister()


@pytest.mark.parametrize(
    ("gates", "missing"),
    [
        ({}, set()),
        ({"PodDisruptionBudget": False}, {"PodDisruptionBudget"}),
        ({"DisablePodDisruptionBudgetInformer": True}, {"PodDisruptionBudget"}),
        ({"CSIStorageCapacity": False}, {"CSIStorageCapacity", "CSIDriver"}),
        ({"DisableCSIStorageCapacityInformer": True}, {"CSIStorageCapacity", "CSIDriver"}),
        ({"DisableDynamicResourceAllocationInformer": True}, {"ResourceClaim"}),
    ],
)
def test_informers_that_are_switched_off_are_not_asked_for(gates: dict[str, bool], missing: set[str]) -> None:
    made = CompletedConfig.complete(configuration.configuration(), REGISTRY, gates)
    assert isinstance(made, CompletedConfig)
    handle = RecordingHandle()
    made.make_profiles(handle)
    kinds = {"PodDisruptionBudget", "CSIStorageCapacity", "CSIDriver", "ResourceClaim"}
    assert kinds - handle.kinds == missing


def test_the_page_lists_every_gate() -> None:
    lines = set(PAGE.read_text().splitlines())
    assert [row for name, gate in sorted(SCHEDULER_GATES.items()) if (row := table_row(name, gate)) not in lines] == []


def table_row(name: str, gate: SchedulerGate) -> str:
    if gate.unbuilt is not None:
        reader = f"refused when {str(gate.unbuilt).lower()}: {gate.why}"
    elif gate.why:
        reader = f"nothing: {gate.why}"
    elif gate.plugin:
        reader = gate.plugin
    elif gate.transform is not None:
        reader = "the informer of pods"
    else:
        reader = "all plugins" if gate.hides else "the scheduling loop"
    return f"| `{name}` | {str(gate.default).lower()} | {gate.stage} | {gate.effect} | {reader} |"
