"""Groups of containers, idle pods and the node's switches of core scheduling."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.slo import CPUQOSConfig, NodeSLOSpec, ResourceQOS, ResourceQOSPolicies, ResourceQOSStrategy
from koord.host.cgroup.knob import CPU_IDLE, GROUP_IDENTITY_ENABLED, SCHED_CORE, SCHED_FEATURES
from koord.koordlet.hooks import core_sched
from koord.koordlet.hooks.core_sched import CoreSchedKernel
from koord.koordlet.hooks.hook import ContainerContext, HookPlan, NodeRules, PodContext
from koord.koordlet.inputs.effective_slo import effective_slo

QOS, GROUP, POLICY = (
    "koordinator.sh/qosClass",
    "koordinator.sh/core-sched-group-id",
    "koordinator.sh/core-sched-policy",
)


def block(enable: bool | None = True, *, expeller: bool = False, idle: int = 0) -> ResourceQOS:
    return ResourceQOS(cpu_qos=CPUQOSConfig(enable=enable, core_expeller=expeller, sched_idle=idle))


def rules(policy: str | None = "coreSched", **classes: ResourceQOS) -> NodeRules:
    policies = None if policy is None else ResourceQOSPolicies(cpu_policy=policy)
    strategy = ResourceQOSStrategy(policies=policies, **classes)
    return NodeRules(gates=frozenset({"CoreSched"}), slo=NodeSLOSpec(resource_qos_strategy=strategy))


def pod(kube_qos: str = "Burstable", **labels: str) -> PodContext:
    names = {"qos": QOS, "group": GROUP, "policy": POLICY}
    return PodContext(uid="uid-1", kube_qos=kube_qos, labels={names[name]: value for name, value in labels.items()})


def group(of: PodContext, under: NodeRules) -> str | None:
    return core_sched.decide_container(ContainerContext(pod=of, name="c", id="i", group="g"), under).core_sched_group


ALL = rules(lsr_class=block(expeller=True), ls_class=block(expeller=True), be_class=block(idle=1))


@pytest.mark.parametrize(
    ("of", "wanted"),
    [
        pytest.param(pod(qos="BE", group="a"), "a", id="label"),
        pytest.param(pod(qos="BE"), "__default__", id="no-label"),
        pytest.param(pod(qos="LS", group="a"), "a-expeller", id="expeller"),
        pytest.param(pod(qos="LS"), "-expeller", id="expeller-without-label"),
        pytest.param(pod(qos="LSE", group="a"), "a-expeller", id="LSE-is-as-LSR"),
        pytest.param(pod(qos="BE", group="a", policy="exclusive"), "uid-1", id="exclusive"),
        pytest.param(pod(qos="LS", policy="exclusive"), "uid-1-expeller", id="exclusive-expeller"),
        pytest.param(pod(qos="LS", group="a", policy="none"), "", id="none"),
        pytest.param(pod(qos="SYSTEM", group="a"), None, id="SYSTEM-is-left-alone"),
        pytest.param(pod("BestEffort", group="a"), "a", id="no-class-besteffort"),
        pytest.param(pod("Burstable", group="a"), "a-expeller", id="no-class-burstable"),
        pytest.param(pod("Guaranteed", group="a"), "a-expeller", id="no-class-guaranteed"),
        pytest.param(pod("", group="a"), "", id="nothing-known"),
    ],
)
def test_the_group_of_a_container(of: PodContext, wanted: str | None) -> None:
    assert group(of, ALL) == wanted


@pytest.mark.parametrize(
    ("under", "of", "wanted"),
    [
        pytest.param(rules("groupIdentity", ls_class=block()), pod(qos="LS", group="a"), "", id="other-policy"),
        pytest.param(rules(None, ls_class=block()), pod(qos="LS", group="a"), "", id="no-policy"),
        pytest.param(rules(ls_class=block(False)), pod(qos="LS", group="a"), "", id="class-is-disabled"),
        pytest.param(rules(), pod(qos="LS", group="a"), "", id="class-is-absent"),
        pytest.param(NodeRules(), pod(qos="LS", group="a"), None, id="no-NodeSLO-yet"),
        pytest.param(rules(ls_class=block()), pod("Guaranteed"), "__default__", id="guaranteed-as-LS-without-LSR"),
        pytest.param(
            rules(lsr_class=block(expeller=True), ls_class=block()), pod("Guaranteed"), "-expeller", id="or-as-LSR"
        ),
    ],
)
def test_the_group_by_the_nodes_rules(under: NodeRules, of: PodContext, wanted: str | None) -> None:
    assert group(of, under) == wanted


def test_an_unknown_policy_is_a_problem_and_changes_nothing() -> None:
    plan = core_sched.decide_container(ContainerContext(pod=pod(qos="BE", policy="some"), name="c"), ALL)
    assert plan.core_sched_group is None
    assert "core-sched-policy" in plan.problem


@given(first=st.from_regex(r"[a-z0-9]{0,3}", fullmatch=True), second=st.from_regex(r"[a-z0-9]{0,3}", fullmatch=True))
def test_expellers_never_share_a_group_with_others(first: str, second: str) -> None:
    assert group(pod(qos="LS", group=first), ALL) != group(pod(qos="BE", group=second), ALL)


@pytest.mark.parametrize(
    ("of", "under", "wanted"),
    [
        pytest.param(pod(qos="BE"), ALL, "1", id="idle-class"),
        pytest.param(pod("BestEffort"), ALL, "1", id="by-kubernetes-class"),
        pytest.param(pod(qos="LS"), ALL, None, id="other-class"),
        pytest.param(pod(qos="BE"), rules("groupIdentity", be_class=block(idle=1)), None, id="other-policy"),
        pytest.param(pod("BestEffort", qos="SYSTEM"), ALL, None, id="SYSTEM"),
        pytest.param(pod(qos="BE"), NodeRules(), None, id="no-NodeSLO-yet"),
    ],
)
def test_pods_of_idle_classes_are_idle(of: PodContext, under: NodeRules, wanted: str | None) -> None:
    plan = core_sched.decide_pod(of, under)
    assert [(one.knob, one.value) for one in plan.values] == ([] if wanted is None else [(CPU_IDLE, wanted)])


def test_a_disabled_class_is_not_idle_whatever_it_says() -> None:
    slo = effective_slo(rules(be_class=block(False, idle=1)).slo)
    assert core_sched.decide_pod(pod(qos="BE"), NodeRules(slo=slo)) == HookPlan()


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [
        pytest.param({}, [], id="mainline"),
        pytest.param(
            {"identity_switch": True, "core_switch": True, "core_feature": True},
            [(GROUP_IDENTITY_ENABLED, "0"), (SCHED_CORE, "1")],
            id="vendor",
        ),
        pytest.param(
            {"identity_switch": True, "core_feature": True},
            [(GROUP_IDENTITY_ENABLED, "0"), (SCHED_FEATURES, "CORE_SCHED")],
            id="vendor-with-a-feature",
        ),
    ],
)
def test_the_nodes_switches(kernel: dict[str, Any], wanted: list[tuple[str, str]]) -> None:
    plan = core_sched.decide_node(ALL, CoreSchedKernel(**kernel))
    assert plan.enabled
    assert [(one.knob, one.value) for one in plan.switches] == wanted, "group identity goes first"
    assert {kube_qos: value.value for kube_qos, value in plan.qos_groups} == {
        "Guaranteed": "0",
        "Burstable": "0",
        "BestEffort": "0",
    }


@pytest.mark.parametrize("under", [NodeRules(), rules(), rules("groupIdentity", ls_class=block())])
def test_nothing_is_switched_while_no_class_is_enabled(under: NodeRules) -> None:
    plan = core_sched.decide_node(under, CoreSchedKernel(identity_switch=True, core_switch=True))
    assert not plan.enabled
    assert (plan.switches, plan.qos_groups) == ((), ())
