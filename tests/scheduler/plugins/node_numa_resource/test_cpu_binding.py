"""CPU binding of pods follows upstream's facts, for pods alone and on nodes with policies."""

from __future__ import annotations

import pytest

from koord.api.annotations.cpu_codecs import ResourceSpec
from koord.scheduler.plugins.node_numa_resource.cpu_binding import (
    CpuBinding,
    CpuBindRequest,
    check_amplified_cpu,
    check_binding,
    complete_resource_spec,
    decide_bind_request,
    decide_binding,
    is_bind_eligible,
)
from koord.scheduler.plugins.node_numa_resource.cpu_topology import InvalidCpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import NumaLedger
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from tests.scheduler.plugins.node_numa_resource.numa_builders import holding, machine, node_of

FULL, SPREAD = "FullPCPUs", "SpreadByPCPUs"
NOT_WHOLE = NumaRefusal(("the requested CPUs must be integer",), is_unresolvable=True)
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
    assert is_bind_eligible(labels, priority, kube_qos) is bound


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
    wish = decide_bind_request(given, 4000, eligible=True, default_policy=default)
    assert wish == CpuBindRequest(cpu_milli=4000, binds=True, required=required, preferred=preferred)
    assert isinstance(wish, CpuBindRequest)
    assert wish.count == 4


def test_wish_keeps_exclusivity() -> None:
    wish = decide_bind_request(spec(preferred=FULL, exclusive="PCPULevel"), 1000, eligible=True, default_policy=FULL)
    assert isinstance(wish, CpuBindRequest)
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
    wish = decide_bind_request(given, cpu_milli, eligible=eligible, default_policy=default)
    assert wish == CpuBindRequest(cpu_milli=cpu_milli)


def test_part_of_a_cpu_cannot_be_bound() -> None:
    assert decide_bind_request(None, 4500, eligible=True, default_policy=FULL) == NOT_WHOLE


LSR = CpuBindRequest(cpu_milli=4000, binds=True, preferred=FULL)
LS = CpuBindRequest(cpu_milli=4000)
SMT = machine(1, 1, 8, 2)


def on(policy: str) -> TopologyOptions:
    return node_of(SMT, bind_policy=policy)


@pytest.mark.parametrize(
    ("wish", "policy", "binding"),
    [
        pytest.param(LSR, "None", CpuBinding(count=4, policy=FULL, required=False), id="pod-prefers"),
        pytest.param(LS, "None", None, id="nobody-asks"),
        pytest.param(LS, "FullPCPUsOnly", CpuBinding(count=4, policy=FULL, required=True), id="node-binds-everybody"),
        pytest.param(
            LS, "SpreadByPCPUs", CpuBinding(count=4, policy=SPREAD, required=True), id="node-spreads-everybody"
        ),
        pytest.param(
            LSR, "SpreadByPCPUs", CpuBinding(count=4, policy=SPREAD, required=True), id="node-before-preference"
        ),
        pytest.param(CpuBindRequest(cpu_milli=0), "FullPCPUsOnly", None, id="no-cpu"),
        pytest.param(CpuBindRequest(cpu_milli=4500), "FullPCPUsOnly", NOT_WHOLE, id="part-of-a-cpu"),
        pytest.param(
            CpuBindRequest(cpu_milli=4000, binds=True, required=SPREAD, preferred=SPREAD, exclusive="PCPULevel"),
            "None",
            CpuBinding(count=4, policy=SPREAD, required=True, exclusive="PCPULevel"),
            id="pod-requires",
        ),
    ],
)
def test_binding_on_a_node(wish: CpuBindRequest, policy: str, binding: CpuBinding | NumaRefusal | None) -> None:
    assert decide_binding(wish, on(policy)) == binding


@pytest.mark.parametrize(
    ("wish", "policy", "refusal"),
    [
        pytest.param(LSR, "None", None, id="fine"),
        pytest.param(
            CpuBindRequest(cpu_milli=5000, binds=True, preferred=FULL),
            "FullPCPUsOnly",
            "node(s) requested cpus not multiple cpus per core",
            id="half-a-core",
        ),
        pytest.param(
            CpuBindRequest(cpu_milli=5000),
            "FullPCPUsOnly",
            "node(s) requested cpus not multiple cpus per core",
            id="half-a-core-of-an-LS-pod",
        ),
        pytest.param(
            CpuBindRequest(cpu_milli=5000, binds=True, preferred=FULL), "None", None, id="preferred-need-not-be-whole"
        ),
        pytest.param(
            CpuBindRequest(cpu_milli=4000, binds=True, preferred=SPREAD), "FullPCPUsOnly", None, id="preference-yields"
        ),
        pytest.param(
            CpuBindRequest(cpu_milli=4000, binds=True, required=SPREAD, preferred=SPREAD),
            "FullPCPUsOnly",
            "node(s) cpu bind policy conflicts with pod's required cpu bind policy",
            id="requirement-does-not",
        ),
        pytest.param(
            CpuBindRequest(cpu_milli=3000, binds=True, required=FULL, preferred=FULL),
            "None",
            "node(s) requested cpus not multiple cpus per core",
            id="pod-requires-whole-cores",
        ),
    ],
)
def test_told_before_cpus_are_looked_at(wish: CpuBindRequest, policy: str, refusal: str | None) -> None:
    node = on(policy)
    binding = decide_binding(wish, node)
    assert isinstance(binding, CpuBinding)
    expected = None if refusal is None else NumaRefusal((refusal,), is_unresolvable=True)
    assert check_binding(wish, binding, node) == expected


def test_no_binding_without_topology() -> None:
    node = TopologyOptions(cpu=InvalidCpuTopology("gone"))
    refused = check_binding(LSR, CpuBinding(count=4, policy=FULL, required=False), node)
    assert refused == NumaRefusal(("node(s) invalid CPU Topology",), is_unresolvable=True)


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
    wish = CpuBindRequest(cpu_milli=1000 * cpu, binds=binds)
    refused = check_amplified_cpu(
        wish,
        node,
        holding(topology, bound),
        binds=binds,
        requested_milli=1000 * requested,
        allocatable_milli=64_000,
    )
    assert refused == (None if fits else NumaRefusal(("Insufficient amplified cpu",)))


def test_amplified_cpu_without_topology() -> None:
    node = TopologyOptions(cpu=InvalidCpuTopology("gone"), node_ratio=2.0)
    ledger = holding(SMT, "0-15").with_topology(None)
    assert check_amplified_cpu(LS, node, ledger, binds=False, requested_milli=16_000, allocatable_milli=32_000) is None


def test_bad_ratio_and_no_ratio() -> None:
    ledger = NumaLedger.build(SMT)
    bad = node_of(SMT, ratio_error="x")
    refused = check_amplified_cpu(LS, bad, ledger, binds=False, requested_milli=0, allocatable_milli=0)
    assert refused == NumaRefusal(("node(s) invalid CPU amplification ratio",), is_unresolvable=True)
    plain = node_of(SMT)
    assert check_amplified_cpu(LS, plain, ledger, binds=False, requested_milli=9, allocatable_milli=0) is None


@pytest.mark.parametrize(
    ("given", "binding", "written"),
    [
        pytest.param(
            spec(required=SPREAD, preferred="Default"),
            CpuBinding(count=4, policy=SPREAD, required=True),
            spec(required=SPREAD, preferred=SPREAD),
            id="default-preference-is-filled-in",
        ),
        pytest.param(
            None, CpuBinding(count=4, policy=FULL, required=True), spec(required=FULL), id="node-policy-is-written"
        ),
        pytest.param(
            None, CpuBinding(count=4, policy=FULL, required=False), spec(preferred=FULL), id="default-policy-is-written"
        ),
        pytest.param(
            spec(preferred=FULL, exclusive="PCPULevel"),
            CpuBinding(count=4, policy=FULL, required=False),
            spec(preferred=FULL, exclusive="PCPULevel"),
            id="exclusivity-is-kept",
        ),
        pytest.param(
            spec(required="Default"),
            CpuBinding(count=4, policy=FULL, required=True),
            spec(required=FULL),
            id="required-default-is-filled-in",
        ),
    ],
)
def test_spec_for_the_node_agent(given: ResourceSpec | None, binding: CpuBinding, written: ResourceSpec) -> None:
    assert complete_resource_spec(given, binding) == written
