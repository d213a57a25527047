"""Annotations and labels with a grammar or a default of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import (
    cpu_codecs,
    device_codecs,
    node_codecs,
    pod_codecs,
    qos_codecs,
    quota_codecs,
    reservation_codecs,
)
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.model import ResourceList
from koord.values import go_format

INT32_MAX = 2**31 - 1
BAD = "unreadable"


def seen(value: object) -> object:
    """Malformed values carry a reason that tables do not repeat."""
    return BAD if isinstance(value, MalformedAnnotation) else value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("5", 5),
        ("-5", -5),
        ("2147483647", INT32_MAX),
        ("-2147483648", -INT32_MAX - 1),
        ("+5", BAD),
        ("007", BAD),
        ("008", BAD),
        ("+10", BAD),
        ("", BAD),
        ("-", BAD),
        ("1.5", BAD),
        ("2147483648", BAD),
        (" 1", BAD),
        ("1_000", BAD),
        ("-007", -7),
    ],
)
def test_eviction_cost(text: str, value: object) -> None:
    found = pod_codecs.parse_eviction_cost({"scheduling.koordinator.sh/eviction-cost": text})
    assert seen(found) == value
    assert pod_codecs.eviction_cost_or_zero({"scheduling.koordinator.sh/eviction-cost": text}) == (
        0 if value == BAD else value
    )


def test_eviction_cost_is_zero_when_missing() -> None:
    assert pod_codecs.parse_eviction_cost({}) == 0


@given(st.integers(-(2**31), 2**31 - 1))
def test_eviction_cost_round_trip(cost: int) -> None:
    assert pod_codecs.parse_eviction_cost({"scheduling.koordinator.sh/eviction-cost": str(cost)}) == cost


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("-3", -3), ("0x10", 16), ("010", 8), ("0b11", 3), ("0o17", 15), ("1_000", 1000), ("0", 0)]
    + [(bad, BAD) for bad in ("", "x", "08", "1__0", "_1", "1_", "2147483648", "1.0", " 1", "0x")],
)
def test_sub_priority_reads_any_base(text: str, value: object) -> None:
    assert seen(pod_codecs.parse_sub_priority({"koordinator.sh/priority": text})) == value


def test_sub_priority_missing_is_none() -> None:
    assert pod_codecs.parse_sub_priority({}) is None


@given(st.integers(-(2**63), 2**63 - 1))
def test_decimal_and_any_base_agree_on_plain_numbers(value: int) -> None:
    assert go_format.parse_decimal_int(str(value)) == go_format.parse_any_base_int(str(value)) == value


@given(st.text(max_size=6))
def test_readers_of_numbers_never_raise(text: str) -> None:
    for read in (
        go_format.parse_decimal_int,
        go_format.parse_any_base_int,
        go_format.parse_finite_float,
        go_format.parse_bool,
    ):
        read(text)


@pytest.mark.parametrize(
    ("annotations", "feature", "allowed"),
    [
        pytest.param({}, "BEMemoryEvict", True, id="missing-allows-all"),
        pytest.param({"koordinator.sh/eviction-policy": '["BEMemoryEvict"]'}, "BEMemoryEvict", True, id="listed"),
        pytest.param({"koordinator.sh/eviction-policy": '["BEMemoryEvict"]'}, "CPUEvict", False, id="not-listed"),
        pytest.param({"koordinator.sh/eviction-policy": "BEMemoryEvict"}, "BEMemoryEvict", False, id="unreadable"),
        pytest.param({"koordinator.sh/eviction-policy": "[]"}, "BEMemoryEvict", False, id="empty-list"),
    ],
)
def test_eviction_policy(annotations: dict[str, str], feature: str, allowed: bool) -> None:
    assert pod_codecs.allows_eviction_by(annotations, feature) is allowed


@pytest.mark.parametrize(("text", "value"), [("-100", -100), ("7", 7), ("x", 0), ("", 0), ("99999999999", 0)])
def test_eviction_priority(text: str, value: int) -> None:
    assert pod_codecs.parse_eviction_priority({"koordinator.sh/eviction-priority": text}) == value
    assert pod_codecs.parse_eviction_priority({}) == 0


@pytest.mark.parametrize(
    ("pod", "spec", "value"),
    [
        pytest.param(None, None, None, id="nothing"),
        pytest.param("-1000", None, -1000, id="lowest"),
        pytest.param("1000", None, 1000, id="highest"),
        pytest.param("1001", None, BAD, id="too-high"),
        pytest.param("ten", None, BAD, id="text"),
        pytest.param("10", '{"c":-500}', -500, id="container-wins"),
        pytest.param("10", '{"other":-500}', 10, id="other-container"),
        pytest.param("10", '{"c":-5000}', BAD, id="container-out-of-range"),
        pytest.param("10", "{", BAD, id="spec-unreadable"),
    ],
)
def test_oom_score(pod: str | None, spec: str | None, value: object) -> None:
    annotations = {}
    if pod is not None:
        annotations["koordinator.sh/oom-score-adj"] = pod
    if spec is not None:
        annotations["koordinator.sh/oom-score-adj-spec"] = spec
    assert seen(qos_codecs.container_oom_score_adj(annotations, "c")) == value


@pytest.mark.parametrize(("identity", "fine"), [(-1, True), (0, True), (2, True), (3, False), (-2, False)])
def test_group_identity_range(identity: int, fine: bool) -> None:
    found = qos_codecs.parse_cpu_qos({"koordinator.sh/cpuQOS": f'{{"groupIdentity":{identity}}}'})
    assert isinstance(found, MalformedAnnotation) is not fine


def test_empty_memory_policy_is_default() -> None:
    found = qos_codecs.parse_memory_qos({"koordinator.sh/memoryQOS": "{}"})
    assert isinstance(found, qos_codecs.PodMemoryQOS)
    assert found.effective_policy == "default"


@pytest.mark.parametrize(
    ("labels", "group"),
    [
        pytest.param({}, "", id="default-group"),
        pytest.param({"koordinator.sh/core-sched-group-id": "g"}, "g", id="named"),
        pytest.param({"koordinator.sh/core-sched-policy": "exclusive"}, "uid", id="exclusive"),
        pytest.param(
            {"koordinator.sh/core-sched-policy": "none", "koordinator.sh/core-sched-group-id": "g"}, None, id="none"
        ),
        pytest.param({"koordinator.sh/core-sched-policy": "maybe"}, BAD, id="unknown"),
    ],
)
def test_core_sched(labels: dict[str, str], group: object) -> None:
    assert seen(cpu_codecs.core_sched_group_id(labels, "uid")) == group


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("a:b,c:d,e:", {"a": "b", "c": "d", "e": ""}, id="rename-and-erase"),
        pytest.param(" a : b , e : ", {"a": "b", "e": ""}, id="spaces"),
        pytest.param("a,b:c:d,:x,,k:v", {"k": "v"}, id="malformed-items"),
        pytest.param("", {}, id="empty"),
        pytest.param("x.com/a:y.com/b", {"x.com/a": "y.com/b"}, id="domains"),
    ],
)
def test_replace_resources(text: str, found: dict[str, str]) -> None:
    assert pod_codecs.parse_replace_resources({"pod.koordinator.sh/replace-resources": text}) == found


NAMES = st.text(st.characters(codec="ascii", exclude_characters=":,", categories=["L", "N"]), min_size=1, max_size=5)


@given(st.dictionaries(NAMES, NAMES | st.just("")))
def test_replace_resources_round_trip(replacements: dict[str, str]) -> None:
    text = pod_codecs.dump_replace_resources(replacements)
    assert pod_codecs.parse_replace_resources({"pod.koordinator.sh/replace-resources": text}) == replacements


@pytest.mark.parametrize(("text", "value"), [("3", 3.0), ("-1.5", -1.5), ("x", 0.0), ("nan", 0.0)])
def test_pre_allocatable(text: str, value: float) -> None:
    assert (
        reservation_codecs.parse_pre_allocatable_priority({"pod.koordinator.sh/pre-allocatable-priority": text})
        == value
    )
    assert reservation_codecs.is_pre_allocatable({"pod.koordinator.sh/is-pre-allocatable": "true"})
    assert not reservation_codecs.is_pre_allocatable({"pod.koordinator.sh/is-pre-allocatable": "True"})
    assert reservation_codecs.is_pre_allocatable({"my.key": "true"}, "my.key")


NEW = "internal.scheduling.koordinator.sh/scheduling-hint"
OLD = "scheduling.koordinator.sh/scheduling-hint"


@pytest.mark.parametrize(
    ("annotations", "nodes"),
    [
        pytest.param({NEW: '{"nodeNames":["a"]}', OLD: '{"nodeNames":["b"]}'}, ("a",), id="new-key-first"),
        pytest.param({OLD: '{"nodeNames":["b"]}'}, ("b",), id="deprecated-key"),
        pytest.param({NEW: "", OLD: '{"nodeNames":["b"]}'}, ("b",), id="empty-is-ignored"),
        pytest.param({NEW: "{", OLD: '{"nodeNames":["b"]}'}, BAD, id="bad-new-key-does-not-fall-back"),
        pytest.param({NEW: ""}, None, id="nothing"),
    ],
)
def test_scheduling_hint(annotations: dict[str, str], nodes: object) -> None:
    found = pod_codecs.parse_scheduling_hint(annotations)
    assert (found.node_names if isinstance(found, pod_codecs.PodSchedulingHint) else seen(found)) == nodes


@pytest.mark.parametrize(
    ("label", "policy"),
    [(None, "Never"), ("Never", "Never"), ("PreemptLowerPriority", "PreemptLowerPriority"), ("Always", "Never")],
)
def test_preemption_policy(label: str | None, policy: str) -> None:
    labels = {} if label is None else {"scheduling.koordinator.sh/preemption-policy": label}
    assert pod_codecs.pod_preemption_policy(labels) == policy


def test_preemptible_unless_disabled() -> None:
    assert pod_codecs.is_preemptible({})
    assert not pod_codecs.is_preemptible({"scheduling.koordinator.sh/disable-preemptible": "true"})


def test_gpu_partition_defaults() -> None:
    spec = device_codecs.parse_gpu_partition_spec({"scheduling.koordinator.sh/gpu-partition-spec": "{}"})
    assert isinstance(spec, device_codecs.GPUPartitionSpec)
    assert spec.effective_policy == "BestEffort"
    assert isinstance(
        device_codecs.parse_gpu_partition_table({"scheduling.koordinator.sh/gpu-partitions": "null"}),
        MalformedAnnotation,
    )
    assert device_codecs.node_gpu_partition_policy({"node.koordinator.sh/gpu-partition-policy": "Honor"}) == "Honor"
    assert device_codecs.node_gpu_partition_policy({"node.koordinator.sh/gpu-partition-policy": "x"}) == "Prefer"


def test_load_estimation_ignores_what_it_cannot_read() -> None:
    base = "scheduling.koordinator.sh/load-estimated-"
    assert pod_codecs.estimated_scaling_factors({f"{base}scaling-factors": '{"cpu":80}'}) == {"cpu": 80}
    assert pod_codecs.estimated_scaling_factors({f"{base}scaling-factors": "{"}) == {}
    assert pod_codecs.estimated_seconds_after_scheduled({f"{base}seconds-after-pod-scheduled": "30"}) == 30
    assert pod_codecs.estimated_seconds_after_scheduled({f"{base}seconds-after-pod-scheduled": "-1"}) is None
    assert pod_codecs.estimated_seconds_after_initialized({f"{base}seconds-after-initialized": "x"}) is None
    assert pod_codecs.estimated_seconds_after_initialized({}) is None


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        ({"koordinator.sh/evict-reason": "hot", "koordinator.sh/evict-trigger": "LowNodeLoad"}, "hot"),
        ({"koordinator.sh/evict-trigger": "LowNodeLoad"}, "LowNodeLoad"),
        ({}, "NotSet"),
    ],
    ids=["reason", "trigger", "neither"],
)
def test_evict_reason(annotations: dict[str, str], reason: str) -> None:
    assert pod_codecs.parse_evict_reason(annotations) == reason


def test_an_empty_reservation_affinity_is_an_affinity() -> None:
    found = reservation_codecs.parse_reservation_affinity({"scheduling.koordinator.sh/reservation-affinity": ""})
    assert found == reservation_codecs.ReservationAffinity()


@pytest.mark.parametrize(("text", "order"), [(None, 0), ("0", 0), ("7", 7), ("-1", -1), ("first", BAD)])
def test_reservation_order(text: str | None, order: object) -> None:
    labels = {} if text is None else {"scheduling.koordinator.sh/reservation-order": text}
    assert seen(reservation_codecs.parse_reservation_order(labels)) == order


def test_switches_are_on_only_when_spelled_true() -> None:
    for text, on in (("true", True), ("True", False), ("1", False), ("", False)):
        assert (
            reservation_codecs.requires_pre_allocation({"scheduling.koordinator.sh/pre-allocation-required": text})
            is on
        )
        assert reservation_codecs.ignores_reservations({"scheduling.koordinator.sh/reservation-ignored": text}) is on
        assert node_codecs.reserves_per_numa_node({"node.koordinator.sh/enable-numa-reservation": text}) is on
        assert pod_codecs.is_controller_managed({"config.koordinator.sh/controller-managed": text}) is on
    assert reservation_codecs.is_in_reservation_mode({"scheduling.koordinator.sh/operating-mode": "Reservation"})
    assert not reservation_codecs.is_in_reservation_mode({})


def test_skipping_resources_needs_only_the_key() -> None:
    assert pod_codecs.skips_resource_update({"config.koordinator.sh/skip-update-resources": ""})
    assert not pod_codecs.skips_resource_update({})


@pytest.mark.parametrize(
    ("text", "percent"),
    [("0.7", 70), ("1.5", 150), ("0.29", 28), ("0", 0), ("-0.1", None), ("abc", None), ("", None), ("inf", None)],
)
def test_reclaim_ratio(text: str, percent: int | None) -> None:
    assert node_codecs.cpu_reclaim_percent({"node.koordinator.sh/cpu-reclaim-ratio": text}) == percent
    assert (
        node_codecs.mid_static_memory_percent({"node.koordinator.sh/mid-static-memory-reserved-ratio": text}) == percent
    )


@pytest.mark.parametrize(("policy", "trims"), [("", True), ("Default", True), ("ReservedCPUsOnly", False)])
def test_node_reservation_policy(policy: str, trims: bool) -> None:
    found = node_codecs.parse_node_reservation({"node.koordinator.sh/reservation": f'{{"applyPolicy":"{policy}"}}'})
    assert isinstance(found, node_codecs.NodeReservation)
    assert found.trims_allocatable is trims


@pytest.mark.parametrize(
    ("text", "exclusive"), [("{}", True), ('{"cpusetExclusive":true}', True), ('{"cpusetExclusive":false}', False)]
)
def test_system_cpus_are_exclusive_by_default(text: str, exclusive: bool) -> None:
    found = cpu_codecs.parse_system_qos_resource({"node.koordinator.sh/system-qos-resource": text})
    assert isinstance(found, cpu_codecs.SystemQOSResource)
    assert found.is_exclusive is exclusive


@pytest.mark.parametrize(("text", "value"), [("10M", "10M"), ("1e9", "1e9"), ("wrong-format", BAD), ("", BAD)])
def test_network_bandwidth(text: str, value: object) -> None:
    assert seen(node_codecs.parse_network_bandwidth({"node.koordinator.sh/network-bandwidth": text})) == value


@pytest.mark.parametrize(
    ("text", "value"), [("1.20", 1.2), ("1", 1.0), ("0", BAD), ("-1", BAD), ("x", BAD), ("NaN", BAD)]
)
def test_cpu_normalization_ratio(text: str, value: object) -> None:
    assert (
        seen(cpu_codecs.parse_cpu_normalization_ratio({"node.koordinator.sh/cpu-normalization-ratio": text})) == value
    )


@pytest.mark.parametrize(("ratio", "text"), [(1.0, "1.00"), (1.2, "1.20"), (1.125, "1.12"), (1.299, "1.30")])
def test_ratios_are_written_with_two_decimals(ratio: float, text: str) -> None:
    assert cpu_codecs.dump_cpu_normalization_ratio(ratio) == text
    assert node_codecs.dump_amplification_ratios({"cpu": ratio}) == f'{{"cpu":{text}}}'


@pytest.mark.parametrize(("text", "value"), [("1", True), ("t", True), ("TRUE", True), ("f", False), ("yes", BAD)])
def test_cpu_normalization_switch(text: str, value: object) -> None:
    assert (
        seen(cpu_codecs.parse_cpu_normalization_enabled({"node.koordinator.sh/cpu-normalization-enabled": text}))
        == value
    )


def test_amplification_ratios_are_sorted_and_escaped() -> None:
    text = node_codecs.dump_amplification_ratios({"memory": 1.25, 'a"b': 2, "cpu": 1.5})
    assert text == '{"a\\"b":2.00,"cpu":1.50,"memory":1.25}'
    parsed = node_codecs.parse_amplification_ratios({"node.koordinator.sh/resource-amplification-ratio": text})
    assert parsed == {'a"b': 2.0, "cpu": 1.5, "memory": 1.25}


@given(st.dictionaries(st.text(max_size=5), st.floats(1, 100).map(lambda r: round(r, 2))))
def test_amplification_round_trip(ratios: dict[str, float]) -> None:
    key = "node.koordinator.sh/resource-amplification-ratio"
    read = node_codecs.parse_amplification_ratios({key: node_codecs.dump_amplification_ratios(ratios)})
    assert read == ratios


def test_node_policies() -> None:
    assert cpu_codecs.node_cpu_bind_policy({"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"}) == "FullPCPUsOnly"
    assert cpu_codecs.node_cpu_bind_policy({"node.koordinator.sh/cpu-bind-policy": "x"}) == "None"
    assert cpu_codecs.node_numa_allocate_strategy({"node.koordinator.sh/numa-allocate-strategy": ""}) is None
    assert cpu_codecs.node_numa_topology_policy({}) == ""


def test_kubelet_full_cores_needs_the_static_policy() -> None:
    options = {cpu_codecs.CPU_MANAGER_FULL_PCPUS_ONLY: "true"}
    assert cpu_codecs.CPUManagerPolicy(policy="static", options=options).wants_full_cores
    assert not cpu_codecs.CPUManagerPolicy(policy="none", options=options).wants_full_cores


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("x", None), (None, None)])
def test_secondary_devices_are_tri_state(text: str | None, value: bool | None) -> None:
    labels = {} if text is None else {"node.koordinator.sh/secondary-device-well-planned": text}
    assert device_codecs.parse_secondary_device_well_planned(labels) is value


Q = "quota.scheduling.koordinator.sh/"


def test_quota_labels_by_default() -> None:
    found = quota_codecs.parse_quota_labels({})
    assert (found.parent, found.is_parent, found.allow_lent_resource) == ("koordinator-root-quota", False, True)


@pytest.mark.parametrize(("text", "lends"), [("true", True), ("false", False), ("no", True), ("", True)])
def test_quota_lends_unless_told_not_to(text: str, lends: bool) -> None:
    assert quota_codecs.parse_quota_labels({f"{Q}allow-lent-resource": text}).allow_lent_resource is lends


def test_pod_quota_labels() -> None:
    assert quota_codecs.pod_quota_name({f"{Q}name": "team"}) == "team"
    assert quota_codecs.pod_quota_name({f"{Q}name": ""}) is None
    assert quota_codecs.is_quota_preemptible({})
    assert not quota_codecs.is_quota_preemptible({f"{Q}preemptible": "false"})


MAXIMUM: ResourceList = {"cpu": "40"}


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        pytest.param(None, MAXIMUM, id="missing"),
        pytest.param("{", MAXIMUM, id="unreadable"),
        pytest.param('{"cpu":"x"}', MAXIMUM, id="no-quantity"),
        pytest.param('{"cpu":"0","memory":0}', MAXIMUM, id="all-zero"),
        pytest.param("{}", MAXIMUM, id="empty"),
        pytest.param('{"cpu":"10","memory":"0"}', {"cpu": "10", "memory": "0"}, id="stated"),
    ],
)
def test_shared_weight(text: str | None, weight: ResourceList) -> None:
    annotations = {} if text is None else {f"{Q}shared-weight": text}
    assert quota_codecs.quota_shared_weight(annotations, MAXIMUM) == weight


def test_quota_names() -> None:
    assert quota_codecs.quota_namespaces({f"{Q}namespaces": '["a","b"]'}) == ("a", "b")
    assert quota_codecs.quota_namespaces({f"{Q}namespaces": "a,b"}) == ()
    assert quota_codecs.quota_resource_keys({}) == ("cpu", "memory")
    assert quota_codecs.quota_resource_keys({f"{Q}resource-keys": '["nvidia.com/gpu"]'}) == ("nvidia.com/gpu",)
