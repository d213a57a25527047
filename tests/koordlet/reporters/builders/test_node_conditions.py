"""What a node's files recommend to its operator."""

from __future__ import annotations

import pytest

from koord.koordlet.reporters.builders.node_conditions import CapabilityRow, recommended_suppress_policy


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
