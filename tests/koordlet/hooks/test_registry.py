"""The table of hooks, and what its hooks decide together for any pod."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator import protocol
from koord.api.koordinator.protocol import BE, BEST_EFFORT, BURSTABLE, GUARANTEED, LS, QOS_CLASSES
from koord.api.koordinator.slo import HostApplicationSpec
from koord.host.cgroup.codec import MAX_INT64
from koord.host.cgroup.knob import CPU_QUOTA, CPUSET, KNOBS
from koord.host.cgroup.layout import CgroupLayout
from koord.koordlet.feature_gates import KOORDLET_GATES
from koord.koordlet.hooks import contexts, registry
from koord.koordlet.hooks.hook import (
    CgroupResources,
    ContainerContext,
    HookPlan,
    HookStage,
    HookValue,
    NodeRules,
    PodContext,
)
from koord.koordlet.hooks.registry import HOOKS, HookDecision, HookEntry
from koord.koordlet.inputs.machine import L3Cache
from tests.koordlet.hooks.hook_builders import BE_POOLS, LS_POOLS, a_container, a_pod, pooled_rules

ANNOTATIONS = (
    protocol.A_RESOURCE_STATUS,
    protocol.A_EXTENDED_RESOURCE_SPEC,
    protocol.A_DEVICE_ALLOCATED,
    protocol.A_RESCTRL,
    protocol.A_OOM_SCORE_ADJ,
    protocol.A_OOM_SCORE_ADJ_SPEC,
    protocol.A_CPU_QOS,
    protocol.A_NETWORK_QOS,
)
GATES = frozenset(one.gate for one in HOOKS)
LAYOUT = CgroupLayout("cgroupfs")
PARENTS = {
    GUARANTEED: "/kubepods/podu",
    BURSTABLE: "/kubepods/burstable/podu",
    BEST_EFFORT: "/kubepods/besteffort/podu",
}

NUMA = {"numaNodeResources": [{"node": 1, "resources": {"cpu": "1", "kubernetes.io/batch-cpu": "1000"}}]}
BATCH = {
    "containers": {"c": {"requests": {"kubernetes.io/batch-cpu": "500"}, "limits": {"kubernetes.io/batch-cpu": 1}}}
}
CARDS = {
    "gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-memory-ratio": "50", "koordinator.sh/gpu-memory": "1Gi"}}],
    "rdma": [{"minor": 0, "id": "0000:1f:00.2"}],
}
USUAL = (
    *map(json.dumps, ({"cpuset": "0-1"}, NUMA, BATCH, CARDS, {"llc": {"schemata": {"range": [0, 50]}}}, {"c": 5})),
    "5",
)


def test_every_gate_of_a_hook_is_one_of_koordlet() -> None:
    assert [one.gate for one in HOOKS if one.gate not in KOORDLET_GATES] == []
    assert [one.gate for one in HOOKS if not KOORDLET_GATES[one.gate].hook] == []


def test_hooks_run_in_the_order_of_their_names() -> None:
    names = [one.name for one in HOOKS]
    assert names == sorted(names)
    assert len(set(names)) == len(names)


def test_files_are_in_the_knob_table_and_every_hook_decides_something() -> None:
    assert [file for one in HOOKS for file in one.files if file not in KNOBS] == []
    assert [one.name for one in HOOKS if one.pod is None and one.container is None] == []


def test_hooks_of_stages() -> None:
    """Upstream's table, without group identity, which is a strategy here."""

    def at(stage: HookStage) -> list[str]:
        return [one.name for one in HOOKS if stage in one.stages]

    known = {"BatchResource", "CPUNormalization", "CPUSetAllocator", "Resctrl", "gpu env inject", "rdma device inject"}
    amounts = ["BatchResource", "CPUNormalization", "CPUSetAllocator"]
    assert [one for one in at(HookStage.PRE_RUN_POD_SANDBOX) if one in known] == [*amounts, "Resctrl"]
    assert [one for one in at(HookStage.PRE_CREATE_CONTAINER) if one in known] == [
        *amounts,
        "Resctrl",
        "gpu env inject",
        "rdma device inject",
    ]
    assert [one for one in at(HookStage.PRE_UPDATE_CONTAINER_RESOURCES) if one in known] == amounts


@st.composite
def pods(draw: st.DrawFn) -> PodContext:
    """Draw a pod with usual and broken annotations, as a runtime tells it."""
    texts = st.one_of(
        st.sampled_from(USUAL),
        st.text(max_size=30),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["cpuset", "CPUSet", "gpu", "rdma", "containers", "llc", "mb", "c"]), inner
                )
            ),
            max_leaves=6,
        ).map(json.dumps),
    )
    labels = {protocol.L_QOS_CLASS: draw(st.sampled_from([*QOS_CLASSES, "", "other"]))}
    if draw(st.booleans()):
        providers = (protocol.GPU_ISOLATION_HAMI_CORE, protocol.GPU_ISOLATION_MPS)
        labels[protocol.L_GPU_ISOLATION_PROVIDER] = draw(st.sampled_from(providers))
    pod = contexts.pod_context(
        uid=draw(st.sampled_from(["u", "", "a/b"])),
        namespace="ns",
        name="p",
        labels=labels,
        annotations=draw(st.dictionaries(st.sampled_from(ANNOTATIONS), texts)),
        cgroup_parent=PARENTS[draw(st.sampled_from(sorted(PARENTS)))],
        layout=LAYOUT,
    )
    return msgspec.structs.replace(pod, resources=draw(resources()))


def resources() -> st.SearchStrategy[CgroupResources]:
    amounts = st.none() | st.integers(-1, MAX_INT64)
    return st.builds(CgroupResources, shares=amounts, quota_us=amounts, memory_bytes=amounts)


def rules() -> st.SearchStrategy[NodeRules]:
    extra = frozenset({"BECPUManager", "HamiCoreVGPUMonitor", "MPSControlDaemon"})
    return st.builds(
        NodeRules,
        gates=st.sampled_from([GATES, GATES | extra]),
        ls_pools=st.sampled_from([None, (), LS_POOLS]),
        be_pools=st.sampled_from([None, (), BE_POOLS]),
        kubelet_static=st.booleans(),
        system_cpus=st.sampled_from(["", "15"]),
        normalization_ratio=st.none() | st.floats(0.01, 100),
        mps_daemons=st.sampled_from([{}, {0: "", 1: ""}]),
        cache=st.sampled_from([L3Cache(), L3Cache(mask=0x3FF, ids=(0, 1), vendor="GenuineIntel")]),
    )


@st.composite
def containers(draw: st.DrawFn) -> ContainerContext:
    return ContainerContext(
        pod=draw(pods()),
        name=draw(st.sampled_from(["c", "other", "../c"])),
        is_sandbox=draw(st.booleans()),
        resources=draw(resources()),
    )


def decided(container: ContainerContext, rules: NodeRules) -> list[HookDecision]:
    return [
        *(registry.decide_pod(container.pod, rules, stage) for stage in HookStage),
        *(registry.decide_container(container, rules, stage) for stage in HookStage),
    ]


@settings(max_examples=150, deadline=None)
@given(container=containers(), rules=rules())
def test_no_annotation_makes_a_hook_raise_and_decisions_repeat(container: ContainerContext, rules: NodeRules) -> None:
    found = decided(container, rules)
    assert [one for decision in found for one in decision.problems if one.fault is not None] == []
    again = msgspec.structs.replace(container, pod=msgspec.structs.replace(container.pod))
    assert decided(again, rules) == found, "a fresh context without cached values decides the same"


@settings(max_examples=150, deadline=None)
@given(container=containers(), rules=rules())
def test_every_value_is_one_that_its_file_takes(container: ContainerContext, rules: NodeRules) -> None:
    files = {one.name: one.files for one in HOOKS}
    for decision in decided(container, rules):
        for knob, one in decision.values.items():
            assert knob in files[one.hook]
            assert one.why
            for file in (KNOBS[knob].v1, KNOBS[knob].v2):
                assert file is not None
                assert file.codec.encode(one.value) is not None, (knob, one.value)
            assert knob == CPUSET or -1 <= int(one.value) <= MAX_INT64


@settings(max_examples=300, deadline=None)
@given(container=containers(), rules=rules())
def test_no_two_hooks_want_one_file(container: ContainerContext, rules: NodeRules) -> None:
    """The order of the table would decide; it never has to, so no pod's value depends on the order."""

    def wanting(plans: list[tuple[str, HookPlan]]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, plan in plans:
            for value in plan.values:
                found.setdefault(value.knob, []).append(name)
        return {knob: names for knob, names in found.items() if len(names) > 1}

    assert wanting([(one.name, one.pod(container.pod, rules)) for one in HOOKS if one.pod]) == {}
    assert wanting([(one.name, one.container(container, rules)) for one in HOOKS if one.container]) == {}


def test_a_closed_gate_decides_nothing() -> None:
    pod = a_pod("LSR", {"cpuset": "0"})
    assert registry.decide_pod(pod, pooled_rules()) == HookDecision()
    found = registry.decide_pod(pod, pooled_rules("CPUSetAllocator"))
    assert {knob: (one.value, one.hook) for knob, one in found.values.items()} == {CPU_QUOTA: ("-1", "CPUSetAllocator")}
    assert found.applied == ("CPUSetAllocator",)
    removed = registry.decide_pod(pod, pooled_rules("CPUSetAllocator"), HookStage.PRE_REMOVE_POD_SANDBOX)
    assert removed == HookDecision(), "nor does a hook of another stage"


def test_host_applications() -> None:
    web = HostApplicationSpec(name="web", qos=LS)
    assert registry.decide_host_application(web, pooled_rules()) == HookDecision()
    found = registry.decide_host_application(web, pooled_rules("CPUSetAllocator"))
    assert {knob: one.value for knob, one in found.values.items()} == {CPUSET: "0-15"}
    batch = HostApplicationSpec(name="batch", qos=BE)
    assert registry.decide_host_application(batch, pooled_rules("CPUSetAllocator")) == HookDecision()


def entry(name: str, decide: Callable[[PodContext, NodeRules], HookPlan]) -> HookEntry:
    return HookEntry(name=name, gate="G", stages=frozenset({HookStage.RECONCILE}), pod=decide)


def wants(value: str, problem: str = "") -> Callable[[PodContext, NodeRules], HookPlan]:
    return lambda pod, rules: HookPlan(values=(HookValue(knob=CPU_QUOTA, value=value, why="w"),), problem=problem)


def raises(pod: PodContext, rules: NodeRules) -> HookPlan:
    raise ZeroDivisionError("one")


def test_the_later_hook_has_the_value_and_a_fault_spares_the_others() -> None:
    hooks = (entry("A", wants("1", "half of it")), entry("B", raises), entry("C", wants("2")))
    found = registry.decide_pod(a_pod(), NodeRules(gates=frozenset({"G"})), hooks=hooks)
    assert (found.values[CPU_QUOTA].value, found.values[CPU_QUOTA].hook, found.applied) == ("2", "C", ("A", "C"))
    assert [(one.hook, one.problem, type(one.fault)) for one in found.problems] == [
        ("A", "half of it", type(None)),
        ("B", "ZeroDivisionError('one')", ZeroDivisionError),
    ]


def test_parts_of_plans_are_gathered() -> None:
    cards: dict[str, Any] = {protocol.A_DEVICE_ALLOCATED: json.dumps(CARDS), protocol.A_RESCTRL: "{}"}
    pod = a_pod("LS", annotations=cards)
    on = NodeRules(gates=GATES, cache=L3Cache(mask=0xFF, ids=(0,)))
    found = registry.decide_container(a_container(pod), on, HookStage.PRE_CREATE_CONTAINER)
    assert (found.env, found.resctrl_group) == ({"NVIDIA_VISIBLE_DEVICES": "0"}, "koordlet-u")
    assert [one.path for one in found.devices] == ["/dev/infiniband/rdma_cm"]
    assert [one.pci_address for one in found.rdma] == ["0000:1f:00.2"]
    share = msgspec.structs.replace(pod, annotations={protocol.A_RESCTRL: '{"mb":{"schemata":{"percent":50}}}'})
    decision = registry.decide_pod(share, on)
    assert [one.by_cache for one in decision.schemata] == [((0, "50"),)]
    adjusted = msgspec.structs.replace(pod, annotations={protocol.A_OOM_SCORE_ADJ: "7"})
    for stage in (HookStage.PRE_CREATE_CONTAINER, HookStage.RECONCILE):
        assert registry.decide_container(a_container(adjusted), on, stage).oom_score_adj == 7


@pytest.mark.parametrize("stage", [HookStage.PRE_CREATE_CONTAINER, HookStage.PRE_UPDATE_CONTAINER_RESOURCES])
def test_devices_are_given_when_a_container_is_made(stage: HookStage) -> None:
    pod = a_pod("LS", annotations={protocol.A_DEVICE_ALLOCATED: json.dumps(CARDS)})
    found = registry.decide_container(a_container(pod), NodeRules(gates=GATES), stage)
    assert bool(found.env) == bool(found.devices) == (stage is HookStage.PRE_CREATE_CONTAINER)
