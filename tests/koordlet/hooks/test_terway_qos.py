"""Terway's two files, byte for byte."""

from __future__ import annotations

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
from koord.koordlet.hooks import terway_qos
from koord.koordlet.hooks.hook import NodeRules, PodContext
from koord.koordlet.hooks.terway_qos import TerwayPlan
from koord.koordlet.inputs.effective_slo import effective_slo

QOS, NETWORK = "koordinator.sh/qosClass", "koordinator.sh/networkQOS"
KEYS = (
    *("hw_tx_bps_max", "hw_rx_bps_max"),
    *("offline_l1_tx_bps_min", "offline_l1_tx_bps_max", "offline_l1_rx_bps_min", "offline_l1_rx_bps_max"),
    *("offline_l2_tx_bps_min", "offline_l2_tx_bps_max", "offline_l2_rx_bps_min", "offline_l2_rx_bps_max"),
)


def network(ingress: tuple[Any, Any], egress: tuple[Any, Any], enable: bool = True) -> ResourceQOS:
    return ResourceQOS(
        network_qos=NetworkQOSConfig(
            enable=enable,
            ingress_request=ingress[0],
            ingress_limit=ingress[1],
            egress_request=egress[0],
            egress_limit=egress[1],
        )
    )


def rules(policy: str | None = "terway-qos", total: str | None = "1G", **classes: ResourceQOS) -> NodeRules:
    policies = None if policy is None else ResourceQOSPolicies(net_qos_policy=policy)
    system = None if total is None else SystemStrategy(total_network_bandwidth=total)
    qos = ResourceQOSStrategy(policies=policies, **classes)
    return NodeRules(slo=NodeSLOSpec(resource_qos_strategy=qos, system_strategy=system))


def pod(uid: str = "u", kube_qos: str = "Burstable", qos: str = "", network: str | None = None) -> PodContext:
    return PodContext(
        uid=uid,
        namespace="work",
        name=f"pod-{uid}",
        kube_qos=kube_qos,
        group=f"kubepods/burstable/pod{uid}",
        labels={QOS: qos} if qos else {},
        annotations={} if network is None else {NETWORK: network},
    )


def decided(under: NodeRules, *pods: PodContext) -> TerwayPlan:
    plan = terway_qos.decide_node(under, pods)
    assert plan is not None
    return plan


def numbers(plan: TerwayPlan) -> tuple[int, ...]:
    lines = [line.split(" ") for line in plan.global_config.splitlines()]
    assert tuple(key for key, _ in lines) == KEYS, "all ten, in this order"
    return tuple(int(value) for _, value in lines)


def test_the_file_of_the_node_byte_for_byte() -> None:
    plan = decided(rules(ls_class=network(("100M", "200M"), (10, 20)), be_class=network((0, "80M"), (5, 40))))
    assert plan.global_config == (
        "hw_tx_bps_max 125000000\nhw_rx_bps_max 125000000\n"
        "offline_l1_tx_bps_min 12500000\noffline_l1_tx_bps_max 25000000\n"
        "offline_l1_rx_bps_min 12500000\noffline_l1_rx_bps_max 25000000\n"
        "offline_l2_tx_bps_min 6250000\noffline_l2_tx_bps_max 50000000\n"
        "offline_l2_rx_bps_min 0\noffline_l2_rx_bps_max 10000000\n"
    )
    assert plan.problems == ()


@pytest.mark.parametrize(
    ("value", "wanted", "problem"),
    [
        pytest.param(50, 6, "", id="percent-of-the-total-in-bytes"),
        pytest.param("40", 5, "", id="quantity"),
        pytest.param(None, 0, "", id="nothing"),
        pytest.param("808", 0, "lsClass.networkQOS.egressLimit 808 is more than", id="more-than-there-is"),
        pytest.param(101, 0, "lsClass.networkQOS.egressLimit 101 is no percentage", id="over-100"),
        pytest.param(-1, 0, "lsClass.networkQOS.egressLimit -1 is no percentage", id="below-0"),
        pytest.param("50%", 0, "lsClass.networkQOS.egressLimit '50%' is no quantity", id="no-quantity"),
        pytest.param("-5", 0, "lsClass.networkQOS.egressLimit -5 is below 0", id="negative"),
    ],
)
def test_amounts_of_a_node_with_100_bits(value: Any, wanted: int, problem: str) -> None:
    plan = decided(rules(total="100", ls_class=network((0, 0), (0, value))))
    assert numbers(plan)[3] == wanted
    assert [one[: len(problem)] for one in plan.problems] == ([problem] if problem else [])


@pytest.mark.parametrize(
    ("under", "problem"),
    [
        pytest.param(rules(total=None), "", id="no-strategy"),
        pytest.param(rules(total="-1"), "totalNetworkBandwidth -1 is below 0", id="negative"),
        pytest.param(rules(ls_class=network((10, 20), (10, 20), enable=False), total="0"), "", id="disabled"),
    ],
)
def test_all_ten_lines_are_there_without_amounts(under: NodeRules, problem: str) -> None:
    plan = decided(under)
    assert numbers(plan) == (0,) * 10
    assert plan.problems == ((problem,) if problem else ())


def test_what_terway_will_refuse_is_told() -> None:
    both = decided(rules(ls_class=network((0, 60), (0, 60)), be_class=network((0, 40), (0, 41))))
    assert both.problems == ("Terway refuses egressLimit of lsClass and beClass: they are above the node's bandwidth",)
    upside_down = decided(rules(be_class=network((30, 20), (0, 0))))
    assert upside_down.problems == ("Terway refuses ingressRequest of beClass: it is above ingressLimit",)


def test_the_file_of_pods_byte_for_byte() -> None:
    plan = decided(
        rules(),
        pod("b", qos="BE", network='{"ingressLimit":"10M","egressLimit":"20M"}'),
        pod("a", qos="LS"),
    )
    assert plan.pods == (
        '{"a":{"podName":"pod-a","podNamespace":"work","podUID":"a","prio":1,'
        '"cgroupDir":"/sys/fs/cgroup/net_cls/kubepods/burstable/poda",'
        '"qosConfig":{"ingressBandwidth":0,"egressBandwidth":0}},'
        '"b":{"podName":"pod-b","podNamespace":"work","podUID":"b","prio":2,'
        '"cgroupDir":"/sys/fs/cgroup/net_cls/kubepods/burstable/podb",'
        '"qosConfig":{"ingressBandwidth":1250000,"egressBandwidth":2500000}}}'
    )
    assert decided(rules()).pods == "{}"


@pytest.mark.parametrize(
    "text", ['{"ingressLimit":"10M"}', '{"ingressLimit":"x","egressLimit":"1"}', "{", '{"egressLimit":"-5"}']
)
def test_a_pod_with_an_unusable_annotation_is_left_out_and_told(text: str) -> None:
    one = pod(network=text)
    assert decided(rules(), one, pod("v")).pods == decided(rules(), pod("v")).pods
    assert "Terway is not told of the pod" in terway_qos.decide_pod(one, rules()).problem
    assert terway_qos.decide_pod(one, rules("tc")).problem == "", "somebody else looks at it"


@pytest.mark.parametrize(
    ("qos", "kube_qos", "wanted"),
    [
        ("SYSTEM", "BestEffort", 0),
        ("LSE", "BestEffort", 1),
        ("LSR", "BestEffort", 1),
        ("LS", "BestEffort", 1),
        ("BE", "Guaranteed", 2),
        ("", "Guaranteed", 1),
        ("", "Burstable", 1),
        ("", "BestEffort", 2),
        ("", "", 0),
    ],
)
def test_priorities(qos: str, kube_qos: str, wanted: int) -> None:
    assert terway_qos.priority(pod(kube_qos=kube_qos, qos=qos)) == wanted


@pytest.mark.parametrize("policy", ["tc", None, ""])
def test_another_policy_deletes_the_files(policy: str | None) -> None:
    assert decided(rules(policy), pod()) == TerwayPlan(enabled=False)


def test_nothing_before_the_first_node_slo() -> None:
    assert terway_qos.decide_node(NodeRules(), [pod()]) is None
    assert decided(NodeRules(slo=effective_slo(None))) == TerwayPlan(enabled=False)


@given(total=st.integers(0, 10**13), percents=st.lists(st.integers(0, 100), min_size=4, max_size=4))
def test_percents_are_of_the_total_in_bytes(total: int, percents: list[int]) -> None:
    ls = network((percents[0], percents[1]), (percents[2], percents[3]))
    hw, _, tx_min, tx_max, rx_min, rx_max, *_ = numbers(decided(rules(total=str(total), ls_class=ls)))
    assert hw == total // 8
    for found, percent in zip((rx_min, rx_max, tx_min, tx_max), percents, strict=True):
        assert found <= hw
        assert abs(found - total * percent / 800) <= 1
