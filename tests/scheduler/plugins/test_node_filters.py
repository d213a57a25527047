"""NodeUnschedulable, NodeName, TaintToleration, NodeAffinity and NodePorts: what each refuses, in which words."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.scheduler.in_tree_args import NodeAffinityArgs
from koord.api.kubernetes.affinity import NodeAffinity as NodeAffinitySpec
from koord.api.kubernetes.node import Node
from koord.api.model import convert
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import SKIP, Fault, PreFilterResult, Reject, reject, unresolvable
from koord.scheduler.plugins.node_affinity import NodeAffinityPlugin
from koord.scheduler.plugins.node_filters import NodeName, NodePorts, NodeUnschedulable, TaintToleration
from tests.scheduler.builders import make_node, make_pod, make_state, node_term, preferred_nodes, required_nodes

CORDONED = unresolvable("node(s) were unschedulable")
ELSEWHERE = unresolvable("node(s) didn't match the requested node name")
TAINTED = unresolvable("node(s) had untolerated taint(s)")
NO_MATCH = unresolvable("node(s) didn't match Pod's node affinity/selector")
NOT_ENFORCED = unresolvable("node(s) didn't match scheduler-enforced node affinity")
PORT_TAKEN = reject("node(s) didn't have free ports for the requested pod ports")


def verdict(plugin: Plugin, pod: Pod, node: Node, *placed: Pod) -> Reject | None:
    state = make_state([node], placed)
    info = state.node(node.metadata.name)
    assert info is not None
    cycle, asked = CycleState(state), state.pod_info(pod)
    plugin.pre_filter(cycle, asked)
    found = plugin.filter(cycle, asked, info)
    assert not isinstance(found, Fault)
    return found


def tolerating(**words: str) -> Pod:
    return make_pod(tolerations=[words])


UNSCHEDULABLE_KEY = "node.kubernetes.io/unschedulable"


@pytest.mark.parametrize(
    ("pod", "node", "refusal"),
    [
        pytest.param(make_pod(), make_node(), None, id="open-node"),
        pytest.param(make_pod(), make_node(unschedulable=True), CORDONED, id="cordoned-node"),
        pytest.param(
            tolerating(key=UNSCHEDULABLE_KEY, operator="Exists", effect="NoSchedule"),
            make_node(unschedulable=True),
            None,
            id="tolerated",
        ),
        pytest.param(tolerating(operator="Exists"), make_node(unschedulable=True), None, id="everything-tolerated"),
        pytest.param(
            tolerating(key=UNSCHEDULABLE_KEY, operator="Exists", effect="NoExecute"),
            make_node(unschedulable=True),
            CORDONED,
            id="tolerated-for-another-effect",
        ),
    ],
)
def test_cordoned_nodes(pod: Pod, node: Node, refusal: Reject | None) -> None:
    assert verdict(NodeUnschedulable(), pod, node) == refusal


@pytest.mark.parametrize(
    ("named", "refusal"),
    [
        pytest.param("", None, id="no-name"),
        pytest.param("n0", None, id="this-node"),
        pytest.param("n1", ELSEWHERE, id="another-node"),
    ],
)
def test_named_node(named: str, refusal: Reject | None) -> None:
    assert verdict(NodeName(), make_pod(node=named), make_node("n0")) == refusal


@pytest.mark.parametrize(
    ("taints", "toleration", "refusal"),
    [
        pytest.param(["a=x:NoSchedule"], {}, TAINTED, id="untolerated"),
        pytest.param(["a=x:NoExecute"], {}, TAINTED, id="no-execute-counts"),
        pytest.param(["a=x:PreferNoSchedule"], {}, None, id="preference-does-not-refuse"),
        pytest.param(["a=x:NoSchedule"], {"key": "a", "value": "x"}, None, id="equal-is-the-default-operator"),
        pytest.param(["a=x:NoSchedule"], {"key": "a", "operator": "Equal", "value": "y"}, TAINTED, id="another-value"),
        pytest.param(["a=x:NoSchedule"], {"key": "a", "operator": "Exists"}, None, id="any-value"),
        pytest.param(["a=x:NoSchedule"], {"operator": "Exists"}, None, id="any-taint"),
        pytest.param(
            ["a=x:NoSchedule"], {"key": "a", "operator": "Exists", "effect": "NoExecute"}, TAINTED, id="another-effect"
        ),
        pytest.param(
            ["a=x:NoSchedule", "b=:NoSchedule"], {"key": "a", "operator": "Exists"}, TAINTED, id="one-of-two-tolerated"
        ),
        pytest.param(
            ["a=5:NoSchedule"], {"key": "a", "operator": "Gt", "value": "3"}, TAINTED, id="comparison-is-gated"
        ),
    ],
)
def test_taints(taints: list[str], toleration: dict[str, str], refusal: Reject | None) -> None:
    pod = tolerating(**toleration) if toleration else make_pod()
    assert verdict(TaintToleration(), pod, make_node(taints=taints)) == refusal


def test_when_a_taint_was_added_makes_no_difference() -> None:
    older, newer = (
        convert({"metadata": {"name": name}, "spec": {"taints": [taint]}}, Node)
        for name, taint in (
            ("older", {"key": "a", "effect": "NoSchedule", "timeAdded": "2024-01-01T00:00:00Z"}),
            ("newer", {"key": "a", "effect": "NoSchedule", "timeAdded": "2025-01-01T00:00:00Z"}),
        )
    )
    state = make_state([older, newer])
    TaintToleration().filter_columns(CycleState(state), state.pod_info(make_pod()), state.table, slice(None))
    assert len(state.table.coded_column("taints", lambda _: None).values) == 2  # nothing, and the one taint


NODE = make_node(labels={"zone": "a", "generation": "7", "empty": ""})


def affine(*terms: Any) -> Pod:
    return make_pod(affinity=required_nodes(*terms))


@pytest.mark.parametrize(
    ("pod", "refusal"),
    [
        pytest.param(make_pod(nodeSelector={"zone": "a"}), None, id="selector-matches"),
        pytest.param(make_pod(nodeSelector={"zone": "b"}), NO_MATCH, id="selector-value-differs"),
        pytest.param(make_pod(nodeSelector={"rack": ""}), NO_MATCH, id="empty-value-needs-the-label"),
        pytest.param(make_pod(nodeSelector={"empty": ""}), None, id="empty-value"),
        pytest.param(affine(node_term(("zone", "In", ["b", "a"]))), None, id="one-of"),
        pytest.param(affine(node_term(("zone", "NotIn", ["a"]))), NO_MATCH, id="none-of"),
        pytest.param(affine(node_term(("rack", "NotIn", ["a"]))), None, id="none-of-holds-without-the-label"),
        pytest.param(affine(node_term(("zone", "Exists", []))), None, id="exists"),
        pytest.param(affine(node_term(("zone", "DoesNotExist", []))), NO_MATCH, id="does-not-exist"),
        pytest.param(affine(node_term(("generation", "Gt", ["6"]))), None, id="greater"),
        pytest.param(affine(node_term(("generation", "Gt", ["7"]))), NO_MATCH, id="equal-is-not-greater"),
        pytest.param(affine(node_term(("generation", "Lt", ["10"]))), None, id="less-as-numbers-not-texts"),
        pytest.param(affine(node_term(("zone", "Lt", ["10"]))), NO_MATCH, id="not-a-number"),
        pytest.param(
            affine(node_term(("zone", "In", ["a"]), ("generation", "Gt", ["9"]))), NO_MATCH, id="all-of-a-term"
        ),
        pytest.param(affine(node_term(("zone", "In", ["b"])), node_term(("zone", "In", ["a"]))), None, id="any-term"),
        pytest.param(affine(node_term()), NO_MATCH, id="empty-term-matches-nothing"),
        pytest.param(affine(node_term(("zone", "Near", ["a"]))), NO_MATCH, id="unreadable-term-matches-nothing"),
        pytest.param(
            affine(node_term(("zone", "Near", ["a"])), node_term(("zone", "Exists", []))),
            None,
            id="readable-term-remains",
        ),
        pytest.param(affine(node_term(fields=[("metadata.name", "In", ["n0"])])), None, id="by-name"),
        pytest.param(affine(node_term(fields=[("metadata.name", "NotIn", ["n0"])])), NO_MATCH, id="not-by-name"),
        pytest.param(
            affine(node_term(fields=[("metadata.name", "In", ["n0", "n1"])])), NO_MATCH, id="two-names-at-once"
        ),
        pytest.param(
            make_pod(nodeSelector={"zone": "b"}, affinity=required_nodes(node_term(("zone", "In", ["a"])))),
            NO_MATCH,
            id="selector-and-affinity",
        ),
    ],
)
def test_node_affinity(pod: Pod, refusal: Reject | None) -> None:
    assert verdict(NodeAffinityPlugin(NodeAffinityArgs()), pod, NODE) == refusal


def added(affinity: Any) -> NodeAffinityPlugin:
    return NodeAffinityPlugin(NodeAffinityArgs(added_affinity=convert(affinity["nodeAffinity"], NodeAffinitySpec)))


def test_added_affinity_is_refused_in_its_own_words() -> None:
    plugin = added(required_nodes(node_term(("zone", "In", ["b"]))))
    assert verdict(plugin, make_pod(), NODE) == NOT_ENFORCED
    assert verdict(plugin, make_pod(nodeSelector={"zone": "x"}), NODE) == NOT_ENFORCED
    assert verdict(plugin, make_pod(nodeSelector={"zone": "x"}), make_node(labels={"zone": "b"})) == NO_MATCH


@pytest.mark.parametrize(
    "affinity", [required_nodes(node_term(("a", "Near", []))), preferred_nodes((1, node_term(("a", "Gt", ["x"]))))]
)
def test_added_affinity_must_be_readable(affinity: Any) -> None:
    with pytest.raises(ValueError, match="parsing addedAffinity"):
        added(affinity)


@pytest.mark.parametrize(
    ("pod", "answer"),
    [
        pytest.param(make_pod(), SKIP, id="nothing-said"),
        pytest.param(
            make_pod(affinity=preferred_nodes((1, node_term(("a", "Exists", []))))), SKIP, id="only-preferred"
        ),
        pytest.param(make_pod(nodeSelector={"a": "b"}), None, id="selector"),
        pytest.param(affine(node_term(("a", "Exists", []))), None, id="labels-only"),
        pytest.param(
            affine(node_term(fields=[("metadata.name", "In", ["n3"])])),
            PreFilterResult(frozenset({"n3"})),
            id="one-name",
        ),
        pytest.param(
            affine(*(node_term(("a", "Exists", []), fields=[("metadata.name", "In", [n])]) for n in ("n1", "n2"))),
            PreFilterResult(frozenset({"n1", "n2"})),
            id="names-of-all-terms",
        ),
        pytest.param(
            affine(node_term(fields=[("metadata.name", "In", ["n3"])]), node_term(("a", "Exists", []))),
            None,
            id="a-term-leaves-the-name-open",
        ),
        pytest.param(
            affine(node_term(fields=[("metadata.name", "In", ["n1"]), ("metadata.name", "In", ["n2"])])),
            unresolvable("pod affinity terms conflict"),
            id="no-name-can-be-both",
        ),
        pytest.param(
            affine(node_term(fields=[("metadata.name", "NotIn", ["n1"])])), None, id="excluded-names-open-the-rest"
        ),
    ],
)
def test_affinity_before_nodes_are_looked_at(pod: Pod, answer: object) -> None:
    state = make_state()
    assert NodeAffinityPlugin(NodeAffinityArgs()).pre_filter(CycleState(state), state.pod_info(pod)) == answer


def test_added_affinity_is_always_asked() -> None:
    state = make_state()
    plugin = added(required_nodes(node_term(("zone", "In", ["b"]))))
    assert plugin.pre_filter(CycleState(state), state.pod_info(make_pod())) is None


def test_an_unreadable_preference_is_a_fault() -> None:
    state = make_state()
    pod = state.pod_info(make_pod(affinity=preferred_nodes((1, node_term(("a", "Gt", ["x"]))))))
    answer = NodeAffinityPlugin(NodeAffinityArgs()).pre_score(CycleState(state), pod, [])
    rule = "for 'Gt', 'Lt' operators, the value must be an integer"
    assert answer == Fault(f'[0].matchExpressions[0].values[0]: Invalid value: "x": {rule}')


def holding(*ports: tuple[str, str, int]) -> Pod:
    return make_pod("holder", node="n0", ports=ports)


@pytest.mark.parametrize(
    ("wanted", "held", "refusal"),
    [
        pytest.param(("TCP", "", 80), ("TCP", "", 80), PORT_TAKEN, id="same-port"),
        pytest.param(("TCP", "", 80), ("TCP", "", 81), None, id="another-number"),
        pytest.param(("TCP", "", 80), ("UDP", "", 80), None, id="another-protocol"),
        pytest.param(("TCP", "10.0.0.1", 80), ("TCP", "10.0.0.2", 80), None, id="another-address"),
        pytest.param(("TCP", "10.0.0.1", 80), ("TCP", "10.0.0.1", 80), PORT_TAKEN, id="same-address"),
        pytest.param(("TCP", "10.0.0.1", 80), ("TCP", "0.0.0.0", 80), PORT_TAKEN, id="held-on-every-address"),
        pytest.param(("TCP", "0.0.0.0", 80), ("TCP", "10.0.0.1", 80), PORT_TAKEN, id="wanted-on-every-address"),
        pytest.param(("TCP", "", 80), ("TCP", "10.0.0.1", 80), PORT_TAKEN, id="no-address-is-every-address"),
        pytest.param(("", "", 80), ("TCP", "", 80), PORT_TAKEN, id="tcp-is-the-default"),
    ],
)
def test_ports(wanted: tuple[str, str, int], held: tuple[str, str, int], refusal: Reject | None) -> None:
    assert verdict(NodePorts(), make_pod(ports=[wanted]), make_node(), holding(held)) == refusal


def test_a_port_held_twice_is_free_only_when_both_are_gone() -> None:
    state = make_state([make_node()], [make_pod(f"h{i}", node="n0", ports=[("TCP", "", 80)]) for i in range(2)])
    node, pod = state.node("n0"), state.pod_info(make_pod(ports=[("TCP", "", 80)]))
    assert node is not None
    state.drop_pod("uid-default-h0")
    assert NodePorts().filter(CycleState(state), pod, node) == PORT_TAKEN
    state.drop_pod("uid-default-h1")
    assert NodePorts().filter(CycleState(state), pod, node) is None


def test_pods_without_ports_skip() -> None:
    state = make_state()
    assert NodePorts().pre_filter(CycleState(state), state.pod_info(make_pod())) is SKIP
    sidecar = {"name": "s", "restartPolicy": "Always", "ports": [{"hostPort": 80}]}
    assert NodePorts().pre_filter(CycleState(state), state.pod_info(make_pod(initContainers=[sidecar]))) is None
    ends = sidecar | {"restartPolicy": None}
    assert NodePorts().pre_filter(CycleState(state), state.pod_info(make_pod(initContainers=[ends]))) is SKIP
