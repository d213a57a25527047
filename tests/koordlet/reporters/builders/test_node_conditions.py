"""What a node's files recommend to its operator."""

from __future__ import annotations

import pytest

from koord.host.hardware import Capability, CapabilityState
from koord.koordlet.reporters.builders.node_conditions import (
    CapabilityRow,
    recommended_suppress_policy,
    strategy_conditions,
    with_strategies,
)


def rows(**states: str) -> list[CapabilityRow]:
    return [CapabilityRow(knob=name.replace("__", "."), state=state, how="") for name, state in states.items()]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(rows(cpuset__cpus="supported", cpu__idle="supported"), "idleCpuset keeps", id="idle-groups"),
        pytest.param(
            rows(cpuset__cpus="supported", cpu__idle="off", cpu__bvt_warp_ns="supported"),
            "idleCpuset with cpuQOS",
            id="group-identity",
        ),
        pytest.param(rows(cpuset__cpus="supported", cpu__idle="rejected"), "cpuset is the best", id="neither"),
        pytest.param(rows(cpuset__cpus="off", cpu__idle="supported"), "cfsQuota is the only", id="no-cpuset"),
    ],
)
def test_the_recommended_suppress_policy(found: list[CapabilityRow], said: str) -> None:
    assert said in recommended_suppress_policy(found)


@pytest.mark.parametrize(
    ("found", "cpus", "said"),
    [
        pytest.param(rows(cpuset__cpus="supported", cpu__idle="supported"), 2, "cfsQuota with cpuQOS", id="two"),
        pytest.param(rows(cpuset__cpus="supported", cpu__idle="supported"), 8, "idleCpuset keeps", id="enough"),
        pytest.param(rows(cpuset__cpus="supported", cpu__idle="supported"), None, "idleCpuset keeps", id="unknown"),
        pytest.param(rows(cpuset__cpus="supported", cpu__idle="off"), 2, "cpuset is the best", id="no-idle-groups"),
    ],
)
def test_few_cpus_are_not_divided_by_a_set(found: list[CapabilityRow], cpus: int | None, said: str) -> None:
    assert said in recommended_suppress_policy(found, cpus)


def test_idle_groups_are_a_file_of_group_identity() -> None:
    (row,) = with_strategies(rows(cpu__idle="supported"))
    assert "GroupIdentity" in row.strategies


@pytest.mark.parametrize(
    ("idle", "status", "reason"),
    [
        pytest.param(CapabilityState.SUPPORTED, "True", "Degraded", id="idle-groups-stand-in"),
        pytest.param(CapabilityState.OFF, "False", "Unsupported", id="neither"),
    ],
)
def test_group_identity_of_a_mainline_kernel(idle: CapabilityState, status: str, reason: str) -> None:
    found = [
        Capability(knob="cpu.bvt_warp_ns", version=2, state=CapabilityState.OFF, how="", errno="ENOENT"),
        Capability(knob="cpu.idle", version=2, state=idle, how=""),
    ]
    (said,) = strategy_conditions(found, ["GroupIdentity"])
    assert (said.status, said.reason) == (status, reason)
    assert "cpu.bvt_warp_ns: off (ENOENT)" in said.message
