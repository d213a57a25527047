"""The identity that pods start with, on kernels with bvt_warp_ns."""

from __future__ import annotations

import pytest

from koord.api.koordinator.slo import CPUQOSConfig, NodeSLOSpec, ResourceQOS, ResourceQOSStrategy
from koord.host.cgroup.knob import CPU_BVT
from koord.koordlet.hooks import group_identity
from koord.koordlet.hooks.hook import HookPlan, NodeRules, PodContext


def rules(*, enable: bool = True, has_group_identity: bool = True) -> NodeRules:
    def block(identity: int) -> ResourceQOS:
        return ResourceQOS(cpu_qos=CPUQOSConfig(enable=enable, group_identity=identity))

    strategy = ResourceQOSStrategy(lsr_class=block(2), ls_class=block(1), be_class=block(-1))
    return NodeRules(slo=NodeSLOSpec(resource_qos_strategy=strategy), has_group_identity=has_group_identity)


def pod(qos: str, kube_qos: str = "Burstable", own: str = "") -> PodContext:
    return PodContext(
        uid="u",
        kube_qos=kube_qos,
        labels={"koordinator.sh/qosClass": qos} if qos else {},
        annotations={"koordinator.sh/cpuQOS": own} if own else {},
    )


def identity(plan: HookPlan) -> str:
    (value,) = plan.values
    assert value.knob == CPU_BVT
    return value.value


@pytest.mark.parametrize(
    ("qos", "kube_qos", "own", "wanted"),
    [
        pytest.param("LSE", "Guaranteed", "", "2", id="lse"),
        pytest.param("LSR", "Guaranteed", "", "2", id="lsr"),
        pytest.param("LS", "Burstable", "", "1", id="ls"),
        pytest.param("BE", "BestEffort", "", "-1", id="be"),
        pytest.param("", "Guaranteed", "", "2", id="unlabelled-guaranteed"),
        pytest.param("SYSTEM", "Burstable", "", "1", id="system"),
        pytest.param("LS", "Burstable", '{"enable":true,"groupIdentity":0}', "0", id="own"),
        pytest.param("LS", "Burstable", '{"groupIdentity":2}', "0", id="own-not-enabled"),
        pytest.param("BE", "BestEffort", '{"enable":true,"groupIdentity":2}', "-1", id="own-of-be"),
    ],
)
def test_a_pod_has_the_identity_of_its_class(qos: str, kube_qos: str, own: str, wanted: str) -> None:
    assert identity(group_identity.decide_pod(pod(qos, kube_qos, own), rules())) == wanted


def test_nothing_without_the_kernel_the_rule_or_the_node_slo() -> None:
    one = pod("LS")
    assert group_identity.decide_pod(one, rules(has_group_identity=False)) == HookPlan()
    assert group_identity.decide_pod(one, rules(enable=False)) == HookPlan()
    assert group_identity.decide_pod(one, NodeRules(has_group_identity=True)) == HookPlan()


def test_an_unreadable_annotation_is_told() -> None:
    plan = group_identity.decide_pod(pod("LS", own="{"), rules())
    assert plan.problem
    assert not plan.values
