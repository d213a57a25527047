"""CPU binding of pods follows upstream's facts, for pods alone and on nodes with policies."""

from __future__ import annotations

import pytest

from koord.api.annotations.resource_spec import ResourceSpec
from koord.policy.topology.binding import (
    Binding,
    Wish,
    check_amplified,
    check_binding,
    completed_spec,
    decide_binding,
    decide_wish,
    may_bind,
)
from koord.policy.topology.cpu_topology import Invalid
from koord.policy.topology.ledger import Ledger
from koord.policy.topology.node import NodeTopology
from koord.policy.topology.refusal import Short
from tests.policy.topology.machine import holding, machine, node_of

FULL, SPREAD = "FullPCPUs", "SpreadByPCPUs"
NOT_WHOLE = Short(("the requested CPUs must be integer",), final=True)
QOS, PRIORITY = "koordinator.sh/qosClass", "koordinator.sh/priority-class"


def spec(required: str = "", preferred: str = "", exclusive: str = "") -> ResourceSpec:
    return ResourceSpec(
        required_cpu_bind_policy=required,
        preferred_cpu_bind_policy=preferred,
        preferred_cpu_exclusive_policy=exclusive,
    )


@pytest.mark.parametrize(
    ("labels", "priority", "kube_qos", "bound"),
    [
        pytest.param({QOS: "LSR"}, 9500, "Guaranteed", True, id="LSR-prod"),
        pytest.param({QOS: "LSE"}, None, "Burstable", True, id="LSE-is-prod-by-default"),
        pytest.param({}, 9500, "Guaranteed", False, id="guaranteed-is-not-enough"),
        pytest.param({QOS: "LS"}, 9500, "Guaranteed", False, id="LS"),
        pytest.param({QOS: "BE"}, 5500, "BestEffort", False, id="BE"),
        pytest.param({QOS: "LSR", PRIORITY: "koord-batch"}, 9500, "Guaranteed", False, id="LSR-batch"),
        pytest.param({QOS: "lsr"}, 9500, "Guaranteed", False, id="misspelt"),
    ],
)
def test_who_may_bind(labels: dict[str, str], priority: int | None, kube_qos: str, bound: bool) -> None:
    assert may_bind(labels, priority, kube_qos) is bound


@pytest.mark.parametrize(
    ("given", "default", "required", "preferred"),
    [
        pytest.param(spec(preferred=FULL), FULL, "", FULL, id="preferred"),
        pytest.param(spec(required="Default"), FULL, FULL, FULL, id="required-default"),
        pytest.param(None, FULL, "", FULL, id="nothing-said"),
        pytest.param(None, SPREAD, "", SPREAD, id="nothing-said-other-default"),
        pytest.param(spec(preferred="Default"), SPREAD, "", SPREAD, id="preferred-default"),
        pytest.param(spec(required=SPREAD, preferred=FULL), FULL, SPREAD, SPREAD, id="required-wins"),
    ],
)
def test_wish_to_bind(given: ResourceSpec | None, default: str, required: str, preferred: str) -> None:
    wish = decide_wish(given, 4000, eligible=True, default_policy=default)
    assert wish == Wish(cpu_milli=4000, binds=True, required=required, preferred=preferred)
    assert isinstance(wish, Wish)
    assert wish.count == 4


def test_wish_keeps_exclusivity() -> None:
    wish = decide_wish(spec(preferred=FULL, exclusive="PCPULevel"), 1000, eligible=True, default_policy=FULL)
    assert isinstance(wish, Wish)
    assert wish.exclusive == "PCPULevel"


@pytest.mark.parametrize(
    ("given", "cpu_milli", "eligible", "default"),
    [
        pytest.param(spec(preferred=FULL), 4000, False, FULL, id="not-eligible"),
        pytest.param(spec(preferred=FULL), 4500, False, FULL, id="not-eligible-need-not-be-whole"),
        pytest.param(spec(preferred="ConstrainedBurst"), 4000, True, FULL, id="constrained-burst"),
        pytest.param(spec(required="ConstrainedBurst", preferred=FULL), 4000, True, FULL, id="required-burst"),
        pytest.param(None, 4500, True, "", id="no-default"),
        pytest.param(spec(required="Default"), 4000, True, "", id="default-of-nothing"),
        pytest.param(None, 0, True, FULL, id="no-cpu"),
    ],
)
def test_no_wish_to_bind(given: ResourceSpec | None, cpu_milli: int, eligible: bool, default: str) -> None:
    wish = decide_wish(given, cpu_milli, eligible=eligible, default_policy=default)
    assert wish == Wish(cpu_milli=cpu_milli)


def test_part_of_a_cpu_cannot_be_bound() -> None:
    assert decide_wish(None, 4500, eligible=True, default_policy=FULL) == NOT_WHOLE


LSR = Wish(cpu_milli=4000, binds=True, preferred=FULL)
LS = Wish(cpu_milli=4000)
SMT = machine(1, 1, 8, 2)


def on(policy: str) -> NodeTopology:
    return node_of(SMT, bind_policy=policy)


@pytest.mark.parametrize(
    ("wish", "policy", "binding"),
    [
        pytest.param(LSR, "None", Binding(count=4, policy=FULL, required=False), id="pod-prefers"),
        pytest.param(LS, "None", None, id="nobody-asks"),
        pytest.param(LS, "FullPCPUsOnly", Binding(count=4, policy=FULL, required=True), id="node-binds-everybody"),
        pytest.param(LS, "SpreadByPCPUs", Binding(count=4, policy=SPREAD, required=True), id="node-spreads-everybody"),
        pytest.param(LSR, "SpreadByPCPUs", Binding(count=4, policy=SPREAD, required=True), id="node-before-preference"),
        pytest.param(Wish(cpu_milli=0), "FullPCPUsOnly", None, id="no-cpu"),
        pytest.param(Wish(cpu_milli=4500), "FullPCPUsOnly", NOT_WHOLE, id="part-of-a-cpu"),
        pytest.param(
            Wish(cpu_milli=4000, binds=True, required=SPREAD, preferred=SPREAD, exclusive="PCPULevel"),
            "None",
            Binding(count=4, policy=SPREAD, required=True, exclusive="PCPULevel"),
            id="pod-requires",
        ),
    ],
)
def test_binding_on_a_node(wish: Wish, policy: str, binding: Binding | Short | None) -> None:
    assert decide_binding(wish, on(policy)) == binding


@pytest.mark.parametrize(
    ("wish", "policy", "refusal"),
    [
        pytest.param(LSR, "None", None, id="fine"),
        pytest.param(
            Wish(cpu_milli=5000, binds=True, preferred=FULL),
            "FullPCPUsOnly",
            "node(s) requested cpus not multiple cpus per core",
            id="half-a-core",
        ),
        pytest.param(
            Wish(cpu_milli=5000),
            "FullPCPUsOnly",
            "node(s) requested cpus not multiple cpus per core",
            id="half-a-core-of-an-LS-pod",
        ),
        pytest.param(Wish(cpu_milli=5000, binds=True, preferred=FULL), "None", None, id="preferred-need-not-be-whole"),
        pytest.param(Wish(cpu_milli=4000, binds=True, preferred=SPREAD), "FullPCPUsOnly", None, id="preference-yields"),
        pytest.param(
            Wish(cpu_milli=4000, binds=True, required=SPREAD, preferred=SPREAD),
            "FullPCPUsOnly",
            "node(s) cpu bind policy conflicts with pod's required cpu bind policy",
            id="requirement-does-not",
        ),
        pytest.param(
            Wish(cpu_milli=3000, binds=True, required=FULL, preferred=FULL),
            "None",
            "node(s) requested cpus not multiple cpus per core",
            id="pod-requires-whole-cores",
        ),
    ],
)
def test_told_before_cpus_are_looked_at(wish: Wish, policy: str, refusal: str | None) -> None:
    node = on(policy)
    binding = decide_binding(wish, node)
    assert isinstance(binding, Binding)
    expected = None if refusal is None else Short((refusal,), final=True)
    assert check_binding(wish, binding, node) == expected


def test_no_binding_without_topology() -> None:
    node = NodeTopology(cpu=Invalid("gone"))
    refused = check_binding(LSR, Binding(count=4, policy=FULL, required=False), node)
    assert refused == Short(("node(s) invalid CPU Topology",), final=True)


@pytest.mark.parametrize(
    ("cpu", "binds", "requested", "bound", "fits"),
    [
        pytest.param(32, False, 32, "", True, id="share-beside-share"),
        pytest.param(32, False, 64, "", False, id="share-beside-a-full-node"),
        pytest.param(32, False, 32, "0-31", False, id="share-beside-bound"),
        pytest.param(32, True, 32, "", False, id="bound-beside-share"),
        pytest.param(32, True, 0, "", True, id="bound-alone"),
        pytest.param(0, False, 64, "0-31", True, id="no-cpu"),
        pytest.param(63, False, 1, "0-31", True, id="stale-sum-is-left-alone"),
    ],
)
def test_amplified_cpu(cpu: int, binds: bool, requested: int, bound: str, fits: bool) -> None:
    """32 CPUs stated as 64."""
    topology = machine(1, 1, 16, 2)
    node = node_of(topology, ratio=2.0, node_ratio=2.0)
    wish = Wish(cpu_milli=1000 * cpu, binds=binds)
    refused = check_amplified(
        wish,
        node,
        holding(topology, bound),
        binds=binds,
        requested_milli=1000 * requested,
        allocatable_milli=64_000,
    )
    assert refused == (None if fits else Short(("Insufficient amplified cpu",)))


def test_amplified_cpu_without_topology() -> None:
    node = NodeTopology(cpu=Invalid("gone"), node_ratio=2.0)
    ledger = holding(SMT, "0-15").on(None)
    assert check_amplified(LS, node, ledger, binds=False, requested_milli=16_000, allocatable_milli=32_000) is None


def test_bad_ratio_and_no_ratio() -> None:
    ledger = Ledger.over(SMT)
    bad = node_of(SMT, ratio_fault="x")
    refused = check_amplified(LS, bad, ledger, binds=False, requested_milli=0, allocatable_milli=0)
    assert refused == Short(("node(s) invalid CPU amplification ratio",), final=True)
    plain = node_of(SMT)
    assert check_amplified(LS, plain, ledger, binds=False, requested_milli=9, allocatable_milli=0) is None


@pytest.mark.parametrize(
    ("given", "binding", "written"),
    [
        pytest.param(
            spec(required=SPREAD, preferred="Default"),
            Binding(count=4, policy=SPREAD, required=True),
            spec(required=SPREAD, preferred=SPREAD),
            id="default-preference-is-filled-in",
        ),
        pytest.param(
            None, Binding(count=4, policy=FULL, required=True), spec(required=FULL), id="node-policy-is-written"
        ),
        pytest.param(
            None, Binding(count=4, policy=FULL, required=False), spec(preferred=FULL), id="default-policy-is-written"
        ),
        pytest.param(
            spec(preferred=FULL, exclusive="PCPULevel"),
            Binding(count=4, policy=FULL, required=False),
            spec(preferred=FULL, exclusive="PCPULevel"),
            id="exclusivity-is-kept",
        ),
        pytest.param(
            spec(required="Default"),
            Binding(count=4, policy=FULL, required=True),
            spec(required=FULL),
            id="required-default-is-filled-in",
        ),
    ],
)
def test_spec_for_the_node_agent(given: ResourceSpec | None, binding: Binding, written: ResourceSpec) -> None:
    assert completed_spec(given, binding) == written
