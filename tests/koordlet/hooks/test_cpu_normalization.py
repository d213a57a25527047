"""Quotas on processors that are faster than the reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.host.cgroup.codec import MIN_QUOTA_US, normalized_quota_us
from koord.host.cgroup.knob import CPU_QUOTA
from koord.koordlet.hooks import cpu_normalization
from koord.koordlet.hooks.hook import HookPlan, NodeRules
from tests.koordlet.hooks.hook_builders import a_container, a_pod, quota, values


@pytest.mark.parametrize(
    ("quota_us", "ratio", "wanted"),
    [
        pytest.param(100_000, 1.2, "83334", id="faster"),
        pytest.param(100_000, 1.0, "100000", id="as-fast"),
        pytest.param(100_000, 0.8, "100000", id="slower"),
        pytest.param(20_000, 1.2, "16667", id="rounded-up"),
        pytest.param(20_000, 2.5, "8000", id="much-faster"),
        pytest.param(1_000, 2.0, "1000", id="the-least-that-the-kernel-takes"),
        pytest.param(-1, 1.2, None, id="no-limit"),
        pytest.param(0, 1.2, None, id="not-set"),
        pytest.param(None, 1.2, None, id="not-known"),
        pytest.param(100_000, None, None, id="no-ratio"),
    ],
)
@pytest.mark.parametrize("qos", ["LS", ""])
def test_a_quota_is_divided_by_the_ratio(
    qos: str, quota_us: int | None, ratio: float | None, wanted: str | None
) -> None:
    rules = NodeRules(normalization_ratio=ratio)
    pod = a_pod(qos, resources=quota(quota_us))
    assert values(cpu_normalization.decide_pod(pod, rules)).get(CPU_QUOTA) == wanted
    container = a_container(a_pod(qos), resources=quota(quota_us))
    assert values(cpu_normalization.decide_container(container, rules)).get(CPU_QUOTA) == wanted


@pytest.mark.parametrize(
    ("qos", "status", "changes"),
    [
        pytest.param("LSE", None, {}, id="lse"),
        pytest.param("LSR", None, {}, id="lsr"),
        pytest.param("BE", None, {}, id="be"),
        pytest.param("SYSTEM", None, {}, id="system"),
        pytest.param("LS", {"cpuset": "0-1"}, {}, id="ls-with-cpus-of-its-own"),
        pytest.param("", {"cpuset": "0-1"}, {}, id="no-class-with-cpus-of-its-own"),
        pytest.param("LS", None, {"is_sandbox": True}, id="sandbox"),
    ],
)
def test_others_are_left_alone(qos: str, status: Any, changes: dict[str, Any]) -> None:
    container = a_container(a_pod(qos, status), resources=quota(100_000), **changes)
    assert cpu_normalization.decide_container(container, NodeRules(normalization_ratio=1.2)) == HookPlan()


def test_a_pod_that_may_have_cpus_of_its_own_is_left_alone() -> None:
    plan = cpu_normalization.decide_pod(a_pod("LS", "{", resources=quota(100_000)), NodeRules(normalization_ratio=1.2))
    assert "resource-status" in plan.problem
    assert plan == HookPlan(problem=plan.problem)


@given(quota_us=st.integers(MIN_QUOTA_US, 1 << 40), ratio=st.floats(0.01, 100), more=st.integers(0, 1 << 20))
def test_a_quota_shrinks_only_and_keeps_its_order(quota_us: int, ratio: float, more: int) -> None:
    found = normalized_quota_us(quota_us, ratio)
    assert MIN_QUOTA_US <= found <= quota_us
    assert found <= normalized_quota_us(quota_us + more, ratio)
