"""Shares, quota and memory limit of BE pods."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.api.koordinator.slo import NodeSLOSpec, ResourceThresholdStrategy
from koord.host.cgroup.knob import CPU_QUOTA, CPU_SHARES, MEMORY_LIMIT
from koord.koordlet.hooks import batch_resource
from koord.koordlet.hooks.hook import ContainerContext, ExtendedAmounts, HookPlan, NodeRules, PodContext

CPU, MEMORY, GI = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory", 1 << 30
MOST = (1 << 63) - 1


def amounts(request: int = 0, limit: int = 0, memory: int = 0) -> ExtendedAmounts:
    limits = {name: value for name, value in ((CPU, limit), (MEMORY, memory)) if value}
    return ExtendedAmounts(requests={CPU: request} if request else {}, limits=limits)


def pod(**containers: ExtendedAmounts) -> PodContext:
    return PodContext(uid="u", labels={"koordinator.sh/qosClass": "BE"}, extended=containers or None)


def values(plan: HookPlan) -> tuple[str, ...]:
    found = {one.knob: one.value for one in plan.values}
    return tuple(found[name] for name in (CPU_SHARES, CPU_QUOTA, MEMORY_LIMIT)) if found else ()


@pytest.mark.parametrize(
    ("containers", "wanted"),
    [
        pytest.param({"a": amounts(500, 500, GI)}, ("512", "50000", str(GI)), id="one"),
        pytest.param(
            {"a": amounts(500, 500, 2 * GI), "b": amounts(0, 1000, 2 * GI)}, ("512", "150000", str(4 * GI)), id="two"
        ),
        pytest.param({"a": amounts(500, 500, GI), "b": amounts(500)}, ("1024", "-1", "-1"), id="one-without-limits"),
        pytest.param({"a": amounts(limit=5)}, ("2", "1000", "-1"), id="least-quota"),
        pytest.param(
            {"a": amounts(MOST, MOST, MOST), "b": amounts(MOST, MOST, MOST)},
            ("262144", str((1 << 44) - 1), str(MOST)),
            id="no-more-than-the-kernel-and-the-wire-take",
        ),
    ],
)
def test_a_pod_has_the_sums_of_its_containers(containers: dict[str, Any], wanted: tuple[str, ...]) -> None:
    assert values(batch_resource.decide_pod(pod(**containers), NodeRules())) == wanted


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        pytest.param(amounts(500, 500, GI), ("512", "50000", str(GI)), id="all"),
        pytest.param(amounts(0, 1000), ("2", "100000", "-1"), id="limit-only"),
        pytest.param(amounts(), ("2", "-1", "-1"), id="nothing"),
        pytest.param(amounts(-5, -5, -5), ("2", "-1", "-1"), id="negative"),
    ],
)
def test_a_container_has_its_own(own: ExtendedAmounts, wanted: tuple[str, ...]) -> None:
    container = ContainerContext(pod=pod(c=own), name="c")
    assert values(batch_resource.decide_container(container, NodeRules())) == wanted


def test_faster_processors_need_less_quota() -> None:
    plan = batch_resource.decide_pod(pod(a=amounts(500, 500, GI)), NodeRules(normalization_ratio=1.2))
    assert values(plan) == ("512", "41667", str(GI))


def test_suppression_by_quota_leaves_single_pods_unbounded() -> None:
    threshold = ResourceThresholdStrategy(enable=True, cpu_suppress_policy="cfsQuota")
    rules = NodeRules(slo=NodeSLOSpec(resource_used_threshold_with_be=threshold))
    assert values(batch_resource.decide_pod(pod(a=amounts(500, 500, GI)), rules)) == ("512", "-1", str(GI))


@pytest.mark.parametrize(
    ("kube_qos", "held_us", "quota"),
    [
        pytest.param("BestEffort", 2_000, "-1", id="more-than-all-together-is-refused-by-the-kernel"),
        pytest.param("BestEffort", 50_000, "50000", id="as-much"),
        pytest.param("BestEffort", 800_000, "50000", id="an-administrators-own-that-leaves-room"),
        pytest.param("Burstable", 2_000, "50000", id="in-another-group"),
    ],
)
def test_no_pod_asks_for_more_than_all_best_effort_pods_have(kube_qos: str, held_us: int, quota: str) -> None:
    rules = NodeRules(be_quota_us=held_us)
    one = msgspec.structs.replace(pod(a=amounts(500, 500, GI)), kube_qos=kube_qos)
    assert values(batch_resource.decide_pod(one, rules))[1] == quota
    container = ContainerContext(pod=one, name="a")
    assert values(batch_resource.decide_container(container, rules))[1] == quota


def test_others_are_left_alone() -> None:
    own = {"a": amounts(500, 500, GI)}
    latency_sensitive = PodContext(uid="u", labels={"koordinator.sh/qosClass": "LS"}, extended=own)
    assert batch_resource.decide_pod(latency_sensitive, NodeRules()) == HookPlan()
    assert batch_resource.decide_pod(pod(), NodeRules()) == HookPlan()
    unnamed = ContainerContext(pod=pod(a=amounts(500)), name="b")
    assert batch_resource.decide_container(unnamed, NodeRules()) == HookPlan()
    sandbox = ContainerContext(pod=pod(a=amounts(500)), name="a", is_sandbox=True)
    assert batch_resource.decide_container(sandbox, NodeRules()) == HookPlan()
