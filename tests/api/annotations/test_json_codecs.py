"""All JSON-bearing annotations at once: exact text, missing keys, unreadable text, and round trips of any value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.annotations import (
    cpu_codecs,
    device_codecs,
    gang_codecs,
    node_codecs,
    pod_codecs,
    qos_codecs,
    quota_codecs,
    reservation_codecs,
)
from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.koordinator import slo
from koord.api.koordinator.scheduling import ReservationOwner
from koord.api.model import ObjectReference, ResourceList
from tests.api.model_strategies import model_values


class JsonCodecCase(NamedTuple):
    key: str
    parse: Callable[[Mapping[str, str]], Any]
    dump: Callable[[Any], str]
    shape: Any
    text: str  # as a Go writer puts it, byte for byte


Q = "quota.scheduling.koordinator.sh/"
S = "scheduling.koordinator.sh/"
N = "node.koordinator.sh/"

CODECS = [
    JsonCodecCase(
        "koordinator.sh/eviction-policy",
        pod_codecs.parse_eviction_policy,
        dump_json,
        tuple[str, ...],
        '["BEMemoryEvict"]',
    ),
    JsonCodecCase(
        "koordinator.sh/oom-score-adj-spec",
        qos_codecs.parse_container_oom_score_adjs,
        dump_json,
        dict[str, int],
        '{"c":-500}',
    ),
    JsonCodecCase(
        "koordinator.sh/networkQOS",
        qos_codecs.parse_network_qos,
        dump_json,
        None,
        '{"ingressLimit":"10M","egressLimit":"10M"}',
    ),
    JsonCodecCase(
        "koordinator.sh/cpuBurst",
        qos_codecs.parse_cpu_burst,
        dump_json,
        slo.CPUBurst,
        '{"policy":"auto","cpuBurstPercent":1000,"cfsQuotaBurstPercent":300,"cfsQuotaBurstPeriodSeconds":-1}',
    ),
    JsonCodecCase(
        "koordinator.sh/cpuQOS",
        qos_codecs.parse_cpu_qos,
        dump_json,
        None,
        '{"groupIdentity":-1,"schedIdle":0,"coreExpeller":false,"enable":true}',
    ),
    JsonCodecCase(
        "koordinator.sh/memoryQOS",
        qos_codecs.parse_memory_qos,
        dump_json,
        qos_codecs.PodMemoryQOS,
        '{"minLimitPercent":0,"wmarkRatio":95,"policy":"auto"}',
    ),
    JsonCodecCase(
        "koordinator.sh/blkioQOS",
        qos_codecs.parse_blkio_qos,
        dump_json,
        slo.BlkIOQOS,
        '{"blocks":[{"name":"data","type":"podvolume","ioCfg":{"readIOPS":100,"writeBPS":1048576}}]}',
    ),
    JsonCodecCase(
        f"{N}resctrl",
        qos_codecs.parse_resctrl,
        dump_json,
        qos_codecs.PodResctrl,
        '{"llc":{"schemata":{"range":[0,50]},"schemataPerCache":[{"cacheID":0,"range":[0,80]}]},'
        '"mb":{"schemata":{"percent":60},"schemataPerCache":[{"cacheID":1,"percent":40}]}}',
    ),
    JsonCodecCase(
        f"{N}extended-resource-spec",
        pod_codecs.parse_extended_resource_spec,
        dump_json,
        pod_codecs.ExtendedResourceSpec,
        '{"containers":{"c":{"limits":{"kubernetes.io/batch-cpu":"1k"},"requests":{"kubernetes.io/batch-cpu":"500"}}}}',
    ),
    JsonCodecCase(
        "internal.scheduling.koordinator.sh/scheduling-hint",
        pod_codecs.parse_scheduling_hint,
        dump_json,
        pod_codecs.PodSchedulingHint,
        '{"nodeNames":["n1"],"preferredNodeNames":["n2","n3"]}',
    ),
    JsonCodecCase(
        f"{S}resource-spec",
        cpu_codecs.parse_resource_spec,
        dump_json,
        cpu_codecs.ResourceSpec,
        '{"requiredCPUBindPolicy":"FullPCPUs","preferredCPUBindPolicy":"SpreadByPCPUs",'
        '"preferredCPUExclusivePolicy":"PCPULevel"}',
    ),
    JsonCodecCase(
        f"{S}resource-status",
        cpu_codecs.parse_resource_status,
        dump_json,
        cpu_codecs.PodResourceStatus,
        '{"cpuset":"0-3","numaNodeResources":[{"node":0,"resources":{"cpu":"4"}}]}',
    ),
    JsonCodecCase(
        f"{S}numa-topology-spec",
        cpu_codecs.parse_numa_topology_spec,
        dump_json,
        cpu_codecs.NUMATopologySpec,
        '{"numaTopologyPolicy":"SingleNUMANode","singleNUMANodeExclusive":"Required"}',
    ),
    JsonCodecCase(
        f"{S}device-allocated",
        device_codecs.parse_device_allocated,
        dump_json,
        device_codecs.DeviceAllocations,
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100"},"id":"GPU-1"}],'
        '"rdma":[{"minor":1,"resources":{},"extension":{"vfs":[{"minor":2,"busID":"0000:1f:00.2"}]}}]}',
    ),
    JsonCodecCase(
        f"{S}device-allocate-hint",
        device_codecs.parse_device_hints,
        dump_json,
        None,
        '{"gpu":{"selector":{"matchLabels":{"a":"b"}},"requiredTopologyScope":"NUMANode","exclusivePolicy":"PCIeLevel"},'
        '"rdma":{"vfSelector":{},"allocateStrategy":"ApplyForAll"}}',
    ),
    JsonCodecCase(
        f"{S}device-joint-allocate",
        device_codecs.parse_device_joint_allocate,
        dump_json,
        device_codecs.DeviceJointAllocate,
        '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}',
    ),
    JsonCodecCase(
        f"{S}gpu-partition-spec",
        device_codecs.parse_gpu_partition_spec,
        dump_json,
        device_codecs.GPUPartitionSpec,
        '{"allocatePolicy":"Restricted","ringBusBandwidth":"100Gi"}',
    ),
    JsonCodecCase(
        f"{S}gpu-partitions",
        device_codecs.parse_gpu_partition_table,
        device_codecs.dump_gpu_partition_table,
        device_codecs.GPUPartitionTable,
        '{"1":[{"minors":[0],"gpuLinkType":"NVLink","ringBusBandwidth":"400Gi","allocationScore":1}]}',
    ),
    JsonCodecCase(
        f"{S}soft-eviction",
        pod_codecs.parse_soft_eviction,
        pod_codecs.dump_soft_eviction,
        pod_codecs.SoftEviction,
        '{"timestamp":"2026-01-02T03:04:05Z","deleteOptions":{"gracePeriodSeconds":30},"initiator":"d","reason":"r"}',
    ),
    JsonCodecCase(
        f"{S}reservation-affinity",
        reservation_codecs.parse_reservation_affinity,
        dump_json,
        reservation_codecs.ReservationAffinity,
        '{"requiredDuringSchedulingIgnoredDuringExecution":{"reservationSelectorTerms":'
        '[{"matchExpressions":[{"key":"k","operator":"In","values":["v"]}]}]},'
        '"reservationSelector":{"pool":"a"},"tolerations":[{"key":"k","operator":"Exists"}]}',
    ),
    JsonCodecCase(
        f"{S}reservation-allocated",
        reservation_codecs.parse_reservation_allocated,
        dump_json,
        reservation_codecs.ReservationAllocated,
        '{"name":"r1","uid":"u1"}',
    ),
    JsonCodecCase(
        f"{S}exact-match-reservation",
        reservation_codecs.parse_exact_match_reservation,
        dump_json,
        reservation_codecs.ExactMatchReservation,
        '{"resourceNames":["cpu","memory"]}',
    ),
    JsonCodecCase(
        f"{S}reservation-restricted-options",
        reservation_codecs.parse_restricted_options,
        dump_json,
        reservation_codecs.ReservationRestrictedOptions,
        '{"resources":["cpu"]}',
    ),
    JsonCodecCase(
        f"{S}reservation-resize-allocatable",
        reservation_codecs.parse_resize_allocatable,
        dump_json,
        reservation_codecs.ReservationResizeAllocatable,
        '{"resources":{"cpu":"4"}}',
    ),
    JsonCodecCase(
        f"{S}reservation-owners",
        reservation_codecs.parse_reservation_owners,
        dump_json,
        tuple[ReservationOwner, ...],
        '[{"object":{"namespace":"d","name":"p"}},{"controller":{"kind":"ReplicaSet","name":"w","controller":true,'
        '"namespace":"d"}}]',
    ),
    JsonCodecCase(
        f"{S}reservation-current-owner",
        reservation_codecs.parse_reservation_current_owner,
        dump_json,
        ObjectReference,
        '{"kind":"Pod","namespace":"d","name":"p","uid":"u"}',
    ),
    JsonCodecCase(
        f"{N}originExtendedAllocatable",
        node_codecs.parse_origin_allocatable,
        dump_json,
        node_codecs.OriginAllocatable,
        '{"resources":{"kubernetes.io/batch-cpu":"1000"}}',
    ),
    JsonCodecCase(
        f"{N}thirdPartyAllocations",
        node_codecs.parse_third_party_allocations,
        dump_json,
        node_codecs.ThirdPartyAllocations,
        '{"allocations":[{"name":"yarn","priority":"koord-batch","resources":{"kubernetes.io/batch-cpu":"1k"}}]}',
    ),
    JsonCodecCase(
        f"{N}reservation",
        node_codecs.parse_node_reservation,
        node_codecs.dump_node_reservation,
        node_codecs.NodeReservation,
        '{"resources":{"memory":"2Gi"},"reservedCPUs":"0-3","applyPolicy":"Default"}',
    ),
    JsonCodecCase(
        f"{N}system-qos-resource",
        cpu_codecs.parse_system_qos_resource,
        cpu_codecs.dump_system_qos_resource,
        cpu_codecs.SystemQOSResource,
        '{"cpuset":"0-1","cpusetExclusive":false}',
    ),
    JsonCodecCase(
        f"{N}raw-allocatable",
        node_codecs.parse_raw_allocatable,
        dump_json,
        ResourceList,
        '{"cpu":"8","memory":"16Gi"}',
    ),
    JsonCodecCase(
        f"{S}usage-thresholds",
        node_codecs.parse_usage_thresholds,
        dump_json,
        node_codecs.UsageThresholds,
        '{"usageThresholds":{"cpu":80},"prodUsageThresholds":{"cpu":50},"aggregatedUsage":{"usageThresholds":'
        '{"cpu":70},"usageAggregationType":"p95","usageAggregatedDuration":"5m0s"}}',
    ),
    JsonCodecCase(
        f"{N}cpu-topology",
        cpu_codecs.parse_cpu_topology,
        cpu_codecs.dump_cpu_topology,
        cpu_codecs.CPUTopology,
        '{"detail":[{"id":0,"core":0,"socket":0,"node":0}]}',
    ),
    JsonCodecCase(
        f"{N}pod-cpu-allocs",
        cpu_codecs.parse_pod_cpu_allocs,
        cpu_codecs.dump_pod_cpu_allocs,
        tuple[cpu_codecs.PodCPUAlloc, ...],
        '[{"namespace":"d","name":"p","uid":"u","cpuset":"1-2","managedByKubelet":true}]',
    ),
    JsonCodecCase(
        "kubelet.koordinator.sh/cpu-manager-policy",
        cpu_codecs.parse_cpu_manager_policy,
        cpu_codecs.dump_cpu_manager_policy,
        cpu_codecs.CPUManagerPolicy,
        '{"policy":"static","options":{"full-pcpus-only":"true"},"reservedCPUs":"0-1"}',
    ),
    JsonCodecCase(
        f"{N}cpu-basic-info",
        cpu_codecs.parse_cpu_basic_info,
        cpu_codecs.dump_cpu_basic_info,
        cpu_codecs.CPUBasicInfo,
        '{"cpuModel":"X","turboEnabled":true,"catL3CbmMask":"7ff","vendorID":"GenuineIntel"}',
    ),
    JsonCodecCase(
        f"{Q}runtime",
        lambda annotations: quota_codecs.parse_quota_resources(annotations, f"{Q}runtime"),
        dump_json,
        ResourceList,
        '{"cpu":"20","memory":"40Gi"}',
    ),
    JsonCodecCase(
        f"{Q}max-strict-check-resource-keys",
        quota_codecs.quota_max_strict_check_keys,
        dump_json,
        tuple[str, ...],
        '["cpu"]',
    ),
    JsonCodecCase(
        "gang.scheduling.koordinator.sh/network-topology-spec",
        gang_codecs.parse_network_topology_spec,
        dump_json,
        gang_codecs.NetworkTopologySpec,
        '{"gatherStrategy":[{"layer":"SpineLayer","strategy":"PreferGather"},'
        '{"layer":"BlockLayer","strategy":"MustGather","podCountMultiple":8}]}',
    ),
]
IDS = [codec.key.rpartition("/")[2] for codec in CODECS]


@pytest.mark.parametrize("codec", CODECS, ids=IDS)
def test_a_writer_s_text_comes_back_byte_for_byte(codec: JsonCodecCase) -> None:
    value = codec.parse({codec.key: codec.text})
    assert value is not None
    assert not isinstance(value, MalformedAnnotation), value
    assert codec.dump(value) == codec.text


@pytest.mark.parametrize("codec", CODECS, ids=IDS)
def test_a_missing_key_is_nothing(codec: JsonCodecCase) -> None:
    assert codec.parse({"other": codec.text}) is None


@pytest.mark.parametrize("codec", CODECS, ids=IDS)
@pytest.mark.parametrize("text", ["{", "[1", "true", '"x"', '{"a":'], ids=["brace", "list", "bool", "text", "cut"])
def test_unreadable_text_is_a_value_that_names_the_key(codec: JsonCodecCase, text: str) -> None:
    found = codec.parse({codec.key: text})
    assert isinstance(found, MalformedAnnotation)
    assert found.key == codec.key
    assert codec.key in str(found)


@pytest.mark.parametrize("codec", [pytest.param(c, id=i) for c, i in zip(CODECS, IDS) if c.shape is not None])
@settings(max_examples=20)
@given(data=st.data())
def test_any_value_survives_and_has_one_text(codec: JsonCodecCase, data: st.DataObject) -> None:
    value = data.draw(model_values(codec.shape))
    text = codec.dump(value)
    read = codec.parse({codec.key: text})
    assert read == value
    assert codec.dump(read) == text


@pytest.mark.parametrize(
    ("parse", "key", "text"),
    [
        pytest.param(
            node_codecs.parse_node_reservation, f"{N}reservation", '{"resources":{"cpu":"four"}}', id="node-reservation"
        ),
        pytest.param(node_codecs.parse_raw_allocatable, f"{N}raw-allocatable", '{"cpu":"1x"}', id="raw-allocatable"),
        pytest.param(
            device_codecs.parse_device_allocated,
            f"{S}device-allocated",
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":""}}]}',
            id="device-allocated",
        ),
        pytest.param(
            qos_codecs.parse_network_qos, "koordinator.sh/networkQOS", '{"ingressLimit":"fast"}', id="bandwidth"
        ),
        pytest.param(
            device_codecs.parse_gpu_partition_table,
            f"{S}gpu-partitions",
            '{"1":[{"ringBusBandwidth":"x"}]}',
            id="partition",
        ),
    ],
)
def test_a_wrong_quantity_spoils_the_annotation(parse: Callable[..., Any], key: str, text: str) -> None:
    assert isinstance(parse({key: text}), MalformedAnnotation)


def test_nulls_of_go_writers_read_as_empty() -> None:
    found = device_codecs.parse_gpu_partition_table(
        {f"{S}gpu-partitions": '{"2":[{"minors":null,"gpuLinkType":"NVLink"}]}'}
    )
    assert found == {2: (device_codecs.GPUPartition(gpu_link_type="NVLink"),)}


@pytest.mark.parametrize(
    ("parse", "key", "text", "same"),
    [
        pytest.param(
            qos_codecs.parse_network_qos,
            "koordinator.sh/networkQOS",
            '{"IngressLimit":"1000","EGRESSLIMIT" : "2000"}',
            '{"ingressLimit":"1000","egressLimit":"2000"}',
            id="fields",
        ),
        pytest.param(
            cpu_codecs.parse_resource_status,
            f"{S}resource-status",
            '{"CPUSet":"0","numanoderesources":[{"Node":1,"Resources":{"cpu":"1"}}]}',
            '{"cpuset":"0","numaNodeResources":[{"node":1,"resources":{"cpu":"1"}}]}',
            id="fields-in-lists",
        ),
        pytest.param(
            pod_codecs.parse_extended_resource_spec,
            f"{N}extended-resource-spec",
            '{"Containers":{"Requests":{"Limits":{"kubernetes.io/batch-cpu":"1"}}}}',
            '{"containers":{"Requests":{"limits":{"kubernetes.io/batch-cpu":"1"}}}}',
            id="keys-of-maps-are-data",
        ),
        pytest.param(
            device_codecs.parse_device_allocated,
            f"{S}device-allocated",
            '{"gpu":[{"Minor":1,"Extension":{"VFs":[{"BusID":"a"}]}}],"GPU":[]}',
            '{"gpu":[{"minor":1,"extension":{"vfs":[{"busID":"a"}]}}],"GPU":[]}',
            id="optional-parts",
        ),
        pytest.param(
            cpu_codecs.parse_resource_status,
            f"{S}resource-status",
            '{"cpuset":"0","CPUSET":"1"}',
            '{"cpuset":"1"}',
            id="the-last-one-counts",
        ),
    ],
)
def test_fields_are_known_in_any_case(parse: Callable[..., Any], key: str, text: str, same: str) -> None:
    found = parse({key: text})
    assert not isinstance(found, MalformedAnnotation)
    assert found == parse({key: same})


def test_a_field_in_another_case_is_checked_like_any_other() -> None:
    found = cpu_codecs.parse_resource_status({f"{S}resource-status": '{"CPUSet":5}'})
    assert isinstance(found, MalformedAnnotation)
    assert "cpuset" in found.reason
