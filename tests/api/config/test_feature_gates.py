"""Feature gates: tables and the text that changes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.config.gates import (
    KUBERNETES_GATES,
    FeatureGateTable,
    default_feature_gates,
    describe_feature_gates,
    parse_feature_gates,
)
from koord.descheduler.configuration import DESCHEDULER_GATES
from koord.koordlet.feature_gates import KOORDLET_GATES
from koord.manager.feature_gates import MANAGER_GATES
from koord.scheduler.configuration.feature_gates import SCHEDULER_GATES

BUILT = {name: gate for name, gate in KOORDLET_GATES.items() if gate.unbuilt is None}
ON: dict[str, tuple[FeatureGateTable, int, str]] = {
    "manager": (
        MANAGER_GATES,
        32,
        "PodMutatingWebhook PodValidatingWebhook ElasticMutatingWebhook ElasticValidatingWebhook WebhookFramework "
        "NodeSLOValidatingWebhook",
    ),
    "scheduler": (
        SCHEDULER_GATES,
        41,  # ten of Kubernetes, eight of these about resource claims and storage
        "DynamicSchedulerCheck CSIStorageCapacity GenericEphemeralVolume PodDisruptionBudget "
        "GangPendingPodsConditionPatch EnableBatchScheduleNodeSnapshot "
        "DRAAdminAccess DRAPrioritizedList DRASchedulerFilterTimeout",
    ),
    "koordlet": (
        {name: gate for name, gate in KOORDLET_GATES.items() if not gate.hook},
        30,  # two more than Koordinator has
        "BECPUSuppress CPUBurst RdtResctrl NodeTopologyReport",
    ),
    "runtime-hooks": (
        {name: gate for name, gate in KOORDLET_GATES.items() if gate.hook},
        11,
        "GroupIdentity CPUSetAllocator BatchResource",
    ),
    "descheduler": (DESCHEDULER_GATES, 1, ""),
}


@pytest.mark.parametrize("program", list(ON))
def test_defaults(program: str) -> None:
    table, count, on = ON[program]
    assert {name for name, value in default_feature_gates(table).items() if value} == set(on.split())
    assert len(table) == count


def gates(text: str) -> dict[str, bool]:
    found = parse_feature_gates(text, KOORDLET_GATES)
    assert isinstance(found, dict), found
    return {name: value for name, value in found.items() if value != KOORDLET_GATES[name].default}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param("CPUEvict=true,CPUBurst=false", {"CPUEvict": True, "CPUBurst": False}, id="two"),
        pytest.param(" CPUEvict = true , ", {"CPUEvict": True}, id="spaces"),
        pytest.param("CPUEvict=1", {"CPUEvict": True}, id="go-boolean"),
        pytest.param("CPUEvict=true,CPUEvict=false", {}, id="last-wins"),
        pytest.param(
            "AllBeta=false,CPUBurst=true",
            {
                "BECPUSuppress": False,
                "RdtResctrl": False,
                "NodeTopologyReport": False,
                "GroupIdentity": False,
                "CPUSetAllocator": False,
                "BatchResource": False,
            },
            id="all-beta-but-one",
        ),
    ],
)
def test_text(text: str, changed: dict[str, bool]) -> None:
    assert gates(text) == changed


def test_all_alpha_switches_on_what_is_off() -> None:
    found = parse_feature_gates("AllAlpha=true,BECPUManager=false", BUILT)
    assert isinstance(found, dict)
    assert {name for name, value in found.items() if not value} == {"BECPUManager"}
    refused = parse_feature_gates("AllAlpha=true", KOORDLET_GATES)
    assert isinstance(refused, list)
    assert "Libpfm4" in {error.gate for error in refused}


@pytest.mark.parametrize(
    ("text", "gate", "message"),
    [
        pytest.param("X=true", "X", "X is not a known feature gate; known are DisablePVCReservation", id="unknown"),
        pytest.param(
            "DisablePVCReservation",
            "DisablePVCReservation",
            "DisablePVCReservation must be written as DisablePVCReservation=true or DisablePVCReservation=false",
            id="no-value",
        ),
        pytest.param("X", "X", "X must be written as X=true or X=false", id="unknown-without-value"),
        pytest.param(
            "DisablePVCReservation=yes",
            "DisablePVCReservation",
            'DisablePVCReservation must be true or false, not "yes"',
            id="no-boolean",
        ),
        pytest.param(
            "=true", "", "an empty name is not a known feature gate; known are DisablePVCReservation", id="no-name"
        ),
    ],
)
def test_wrong_text_is_told_in_one_sentence(text: str, gate: str, message: str) -> None:
    found = parse_feature_gates(text, DESCHEDULER_GATES)
    assert isinstance(found, list)
    assert [(error.gate, str(error)) for error in found] == [(gate, message)]


def test_a_value_that_is_not_built_is_told_in_one_sentence() -> None:
    found = parse_feature_gates("Libpfm4=true", KOORDLET_GATES)
    assert isinstance(found, list)
    assert list(map(str, found)) == [f"Libpfm4=true is not built: {KOORDLET_GATES['Libpfm4'].why}"]


@pytest.mark.parametrize("program", list(ON))
def test_help_has_a_line_for_each_gate(program: str) -> None:
    table, count, _ = ON[program]
    lines = describe_feature_gates(table).splitlines()
    assert len(lines) == count
    assert all(line.partition("): ")[2] for line in lines), "each says what it switches"


def test_the_scheduler_takes_gates_of_kubernetes_and_leaves_them() -> None:
    text = "DynamicResourceAllocation=true,ResizePod=true"
    assert isinstance(parse_feature_gates(text, SCHEDULER_GATES), list)
    found = parse_feature_gates(text, SCHEDULER_GATES, tolerated=KUBERNETES_GATES)
    assert isinstance(found, dict)
    assert found["ResizePod"]
    assert "DynamicResourceAllocation" not in found


@given(st.dictionaries(st.sampled_from(sorted(BUILT)), st.booleans()))
def test_what_is_stated_holds_and_the_rest_is_default(stated: dict[str, bool]) -> None:
    text = ",".join(f"{name}={str(value).lower()}" for name, value in stated.items())
    assert parse_feature_gates(text, BUILT) == {**default_feature_gates(BUILT), **stated}
