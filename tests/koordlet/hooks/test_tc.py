"""Classes, filters and class ids of outgoing traffic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.slo import (
    NetworkQOSConfig,
    NodeSLOSpec,
    ResourceQOS,
    ResourceQOSPolicies,
    ResourceQOSStrategy,
    SystemStrategy,
)
from koord.host.cgroup.knob import NET_CLS_CLASSID
from koord.host.traffic_class import LEAST_RATE_BITS, AddressFilter, TrafficClass, TrafficPlan, TrafficTree
from koord.koordlet.hooks import tc
from koord.koordlet.hooks.hook import HookStage, NodeRules, PodContext
from koord.koordlet.hooks.registry import HOOKS
from koord.koordlet.inputs.effective_slo import effective_slo

QOS, NETWORK = "koordinator.sh/qosClass", "koordinator.sh/networkQOS"
M, G = 10**6, 10**9
# Both have the same first choice of a number for their class.
TWINS = ("uid-347", "uid-99")


def network(request: Any, limit: Any, enable: bool = True, ingress: tuple[Any, Any] = (None, None)) -> ResourceQOS:
    config = NetworkQOSConfig(
        enable=enable,
        egress_request=request,
        egress_limit=limit,
        ingress_request=ingress[0],
        ingress_limit=ingress[1],
    )
    return ResourceQOS(network_qos=config)


def rules(total: str | None = "1G", policy: str | None = "tc", **classes: ResourceQOS) -> NodeRules:
    policies = None if policy is None else ResourceQOSPolicies(net_qos_policy=policy)
    system = None if total is None else SystemStrategy(total_network_bandwidth=total)
    qos = ResourceQOSStrategy(policies=policies, **classes)
    return NodeRules(slo=NodeSLOSpec(resource_qos_strategy=qos, system_strategy=system))


def pod(
    qos: str, ip: str = "10.0.0.1", uid: str = "u", *, host: bool = False, created: float = 0.0, **limits: str
) -> PodContext:
    return PodContext(
        uid=uid,
        namespace="n",
        name=uid,
        ip=ip,
        host_network=host,
        created_s=created,
        labels={QOS: qos} if qos else {},
        annotations={NETWORK: json.dumps(limits)} if limits else {},
    )


def decided(under: NodeRules, *pods: PodContext) -> TrafficPlan:
    plan = tc.decide_node(under, pods)
    assert plan is not None
    return plan


def rates(tree: TrafficTree | None) -> dict[int, tuple[int, int, int]]:
    assert tree is not None
    return {one.minor: (one.rate_bits, one.ceil_bits, one.priority) for one in tree.classes}


def test_the_tree_of_a_node() -> None:
    plan = decided(rules(ls_class=network("100M", "600M"), be_class=network(5, 40)))
    assert rates(plan.egress) == {
        1: (G, G, 0),
        2: (850 * M, G, 1),
        3: (100 * M, 600 * M, 2),
        4: (50 * M, 400 * M, 3),
    }
    assert [one.parent for one in plan.egress.classes] == [0, 1, 1, 1]
    assert plan.problems == ()


@pytest.mark.parametrize(
    ("block", "wanted", "problem"),
    [
        pytest.param(network(0, 0), (LEAST_RATE_BITS, G, 3), "", id="no-limit-is-the-nodes"),
        pytest.param(network(20, 30, enable=False), (LEAST_RATE_BITS, G, 3), "", id="disabled"),
        pytest.param(network(30, 20), (300 * M, 300 * M, 3), "", id="a-limit-below-the-request"),
        pytest.param(network(101, -1), (LEAST_RATE_BITS, G, 3), "no percentage", id="percents-out-of-range-are-0"),
        pytest.param(network("a", 50), (LEAST_RATE_BITS, 500 * M, 3), "no quantity", id="unreadable-is-0"),
        pytest.param(network("2G", 50), (LEAST_RATE_BITS, 500 * M, 3), "more than", id="more-than-there-is"),
    ],
)
def test_the_class_of_be_pods(block: ResourceQOS, wanted: tuple[int, int, int], problem: str) -> None:
    plan = decided(rules(be_class=block))
    assert rates(plan.egress)[4] == wanted
    assert bool(plan.problems) == bool(problem)
    assert all(problem in one for one in plan.problems)


def test_requests_that_leave_nothing_are_told_and_the_system_still_has_a_class() -> None:
    plan = decided(rules(ls_class=network(60, 100), be_class=network(40, 100)))
    assert rates(plan.egress)[2] == (LEAST_RATE_BITS, G, 1)
    assert plan.problems == ("egressRequest of lsClass and beClass leave nothing for the system",)


@pytest.mark.parametrize(
    "under",
    [
        pytest.param(rules(policy="terway-qos"), id="other-policy"),
        pytest.param(rules(total=None), id="no-system-strategy"),
        pytest.param(rules(total="0"), id="no-bandwidth"),
        pytest.param(NodeRules(slo=effective_slo(None)), id="no-NodeSLO-any-more"),
    ],
)
def test_everything_is_given_back_when_it_is_off(under: NodeRules) -> None:
    assert decided(under, pod("BE", egressLimit="1M")) == TrafficPlan(enabled=False)
    assert tc.decide_pod(pod("BE"), under).values == ()


def test_nothing_before_the_first_node_slo_and_no_policy_is_tc() -> None:
    assert tc.decide_node(NodeRules(), [pod("BE")]) is None
    assert decided(rules(policy=None)).enabled


@pytest.mark.parametrize(
    ("qos", "minor"), [("LSE", 3), ("LSR", 3), ("LS", 3), ("BE", 4), ("SYSTEM", None), ("", None), ("odd", None)]
)
def test_pods_find_their_class_by_their_address(qos: str, minor: int | None) -> None:
    plan = decided(rules(), pod(qos))
    assert plan.egress.filters == (() if minor is None else (AddressFilter(address="10.0.0.1", minor=minor),))
    assert not plan.egress.by_cgroup


@pytest.mark.parametrize("ip", ["", "not yet"])
def test_a_pod_without_an_address_has_no_filter_yet(ip: str) -> None:
    assert decided(rules(), pod("BE", ip)).egress.filters == ()


def test_addresses_are_in_one_notation_and_the_younger_pod_has_a_shared_one() -> None:
    pods = pod("BE", "FD00:0::1", created=2.0), pod("LS", "fd00::1", "v", created=1.0)
    assert decided(rules(), *pods).egress.filters == (AddressFilter(address="fd00::1", minor=4),)


@pytest.mark.parametrize(("qos", "priority"), [("SYSTEM", 1), ("LS", 2), ("BE", 3)])
def test_a_pods_own_limit_is_exactly_what_was_asked_for(qos: str, priority: int) -> None:
    plan = decided(rules(), pod(qos, egressLimit="20M"))
    minor = tc.pod_minor("u")
    own = TrafficClass(minor=minor, parent=1, rate_bits=20 * M, ceil_bits=20 * M, priority=priority)
    assert plan.egress.classes[4:] == (own,)
    assert plan.egress.filters == (AddressFilter(address="10.0.0.1", minor=minor),)


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        pytest.param(pod("", egressLimit="20M"), "", id="no-class"),
        pytest.param(pod("BE", egressLimit="0"), "", id="zero"),
        pytest.param(pod("BE", ingressLimit="20M"), "", id="ingress-only"),
        pytest.param(
            pod("BE", host=True, ingressLimit="20M"), "ingressLimit is not enforced", id="ingress-of-the-node"
        ),
        pytest.param(pod("BE", egressLimit="x"), "networkQOS", id="malformed"),
        pytest.param(pod("BE", egressLimit="-1"), "below 0", id="negative"),
    ],
)
def test_what_gives_no_class_of_its_own(one: PodContext, problem: str) -> None:
    assert len(decided(rules(), one).egress.classes) == 4
    said = tc.decide_pod(one, rules()).problem
    assert problem in said
    assert bool(said) == bool(problem)


def test_pods_in_the_nodes_network_are_told_apart_by_their_cgroup() -> None:
    plan = decided(rules(), pod("BE", "192.0.2.1", host=True))
    assert plan.egress.by_cgroup
    assert plan.egress.filters == (), "the address is the node's"
    assert not decided(rules(), pod("SYSTEM", host=True)).egress.by_cgroup, "they have the default class anyhow"
    limited = pod("LS", host=True, egressLimit="20M")
    plan = decided(rules(), limited)
    class_id = tc.decide_pod(limited, rules()).values[0].value
    assert int(class_id) == 0x10000 + plan.egress.classes[-1].minor


@pytest.mark.parametrize(
    ("qos", "wanted"), [("SYSTEM", 65538), ("LSR", 65539), ("LS", 65539), ("BE", 65540), ("", None)]
)
def test_class_ids_of_cgroups(qos: str, wanted: int | None) -> None:
    values = [(one.knob, one.value) for one in tc.decide_pod(pod(qos), rules()).values]
    assert values == ([] if wanted is None else [(NET_CLS_CLASSID, str(wanted))])


def test_two_pods_never_have_one_class() -> None:
    first, second = TWINS
    assert tc.pod_minor(first) == tc.pod_minor(second)
    pods = [pod("BE", "10.0.0.1", first, egressLimit="1M"), pod("BE", "10.0.0.2", second, egressLimit="2M")]
    plan = decided(rules(), *pods)
    minors = {one.address: one.minor for one in plan.egress.filters}
    assert len(set(minors.values())) == 2
    assert rates(plan.egress)[minors["10.0.0.1"]][0] == M
    assert rates(plan.egress)[minors["10.0.0.2"]][0] == 2 * M
    assert plan.problems == ()


def test_the_older_pod_keeps_its_number() -> None:
    first, second = TWINS
    young = pod("BE", "10.0.0.1", first, created=2.0, egressLimit="1M")
    old = pod("BE", "10.0.0.2", second, created=1.0, egressLimit="1M")
    alone = decided(rules(), old).egress.filters[0]
    assert alone in decided(rules(), old, young).egress.filters


def test_a_number_that_the_cgroup_cannot_know_is_told() -> None:
    first, second = TWINS
    pods = [
        pod("BE", "10.0.0.1", first, egressLimit="1M"),
        pod("BE", "", second, host=True, created=1, egressLimit="2M"),
    ]
    assert decided(rules(), *pods).problems == (f"n/{second} shares the limit of n/{first}",)


PODS = st.lists(
    st.builds(
        pod,
        st.sampled_from(["SYSTEM", "LSR", "LS", "BE", ""]),
        st.one_of(st.ip_addresses().map(str), st.just("")),
        st.uuids().map(str),
        host=st.booleans(),
        created=st.floats(0, 100),
        egressLimit=st.sampled_from(["0", "1", "8M", "2G", "x", ""]),
        ingressLimit=st.sampled_from(["0", "1", "8M", "2G", ""]),
    ),
    max_size=30,
    unique_by=lambda one: one.uid,
)


@pytest.mark.parametrize(
    ("block", "one"),
    [
        pytest.param(network(10, 50), pod("BE"), id="nothing-said"),
        pytest.param(network(10, 50, ingress=(0, 100)), pod("BE"), id="the-whole-node"),
        pytest.param(network(10, 50, ingress=(0, 0)), pod("BE", egressLimit="1M"), id="the-other-direction"),
        pytest.param(network(10, 50), pod("", ingressLimit="1M"), id="no-class"),
        pytest.param(network(10, 50), pod("BE", host=True, ingressLimit="1M"), id="the-nodes-own-network"),
    ],
)
def test_incoming_traffic_takes_no_detour_for_nothing(block: ResourceQOS, one: PodContext) -> None:
    assert decided(rules(be_class=block), one).ingress is None


def test_incoming_traffic_has_a_tree_of_its_own() -> None:
    block = network(0, 0, ingress=("100M", 40))
    plan = decided(
        rules(be_class=block), pod("BE"), pod("LS", "10.0.0.2", "v", ingressLimit="5M"), pod("BE", host=True)
    )
    own = tc.pod_minor("v")
    assert rates(plan.ingress) == {
        1: (G, G, 0),
        2: (900 * M, G, 1),
        3: (LEAST_RATE_BITS, G, 2),
        4: (100 * M, 400 * M, 3),
        own: (5 * M, 5 * M, 2),
    }
    assert plan.ingress is not None
    assert {one.address: one.minor for one in plan.ingress.filters} == {"10.0.0.1": 4, "10.0.0.2": own}
    assert not plan.ingress.by_cgroup
    assert {one.address: one.minor for one in plan.egress.filters} == {"10.0.0.1": 4, "10.0.0.2": 3}


@given(pods=PODS, order=st.randoms())
def test_every_plan_can_be_applied(pods: list[PodContext], order: Any) -> None:
    under = rules(ls_class=network(10, 50, ingress=(5, 10)), be_class=network(0, 30))
    plan = decided(under, *pods)
    assert plan.ingress is not None
    for tree in (plan.egress, plan.ingress):
        minors = [one.minor for one in tree.classes]
        assert len(minors) == len(set(minors))
        assert all(one.rate_bits >= LEAST_RATE_BITS and one.ceil_bits >= one.rate_bits for one in tree.classes)
        assert all(one.parent in {0, *minors[: minors.index(one.minor)]} for one in tree.classes)
        assert {one.minor for one in tree.filters} <= set(minors)
        assert len({one.address for one in tree.filters}) == len(tree.filters)
    order.shuffle(pods)
    assert decided(under, *pods) == plan


@pytest.mark.parametrize("gate", ["CoreSched", "TerwayQoS", "TCNetworkQoS"])
def test_hooks_of_what_exists_run_only_when_reconciled(gate: str) -> None:
    (entry,) = [one for one in HOOKS if one.gate == gate]
    assert entry.stages == {HookStage.RECONCILE}
    assert entry.pod is not None
