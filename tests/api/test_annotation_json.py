"""All JSON-bearing annotations at once: exact text, missing keys, unreadable text, and round trips of any value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api import slo_strategy
from koord.api.annotations import (
    amplification,
    blkio_qos,
    colocation_strategy,
    cpu_basic_info,
    cpu_burst,
    cpu_manager_policy,
    cpu_qos,
    cpu_shared_pools,
    cpu_topology,
    device_allocated,
    device_hint,
    device_joint,
    eviction_policy,
    extended_allocatable,
    extended_resource_spec,
    gpu_partition,
    memory_qos,
    network_qos,
    network_topology,
    node_reservation,
    numa_topology_spec,
    oom_score,
    operating_pod,
    pod_cpu_allocs,
    quota_resources,
    resctrl,
    reservation_affinity,
    reservation_allocated,
    reservation_exact_match,
    reservation_options,
    resource_spec,
    resource_status,
    scheduling_hint,
    soft_eviction,
    system_qos,
    usage_thresholds,
)
from koord.api.annotations.codec import Malformed
from koord.api.config.slo.colocation import ColocationStrategy
from koord.api.koord_scheduling import ReservationOwner
from koord.api.part import ObjectReference, ResourceList
from tests.api.koord_strategies import values


class Codec(NamedTuple):
    key: str
    parse: Callable[[Mapping[str, str]], Any]
    dump: Callable[[Any], str]
    shape: Any
    text: str  # as a Go writer puts it, byte for byte


Q = "quota.scheduling.koordinator.sh/"
S = "scheduling.koordinator.sh/"
N = "node.koordinator.sh/"

CODECS = [
    Codec(
        "koordinator.sh/eviction-policy",
        eviction_policy.parse,
        eviction_policy.dump,
        tuple[str, ...],
        '["BEMemoryEvict"]',
    ),
    Codec(
        "koordinator.sh/oom-score-adj-spec",
        oom_score.parse_containers,
        oom_score.dump_containers,
        dict[str, int],
        '{"c":-500}',
    ),
    Codec(
        "koordinator.sh/networkQOS",
        network_qos.parse,
        network_qos.dump,
        None,
        '{"ingressLimit":"10M","egressLimit":"10M"}',
    ),
    Codec(
        "koordinator.sh/cpuBurst",
        cpu_burst.parse,
        cpu_burst.dump,
        slo_strategy.CPUBurst,
        '{"policy":"auto","cpuBurstPercent":1000,"cfsQuotaBurstPercent":300,"cfsQuotaBurstPeriodSeconds":-1}',
    ),
    Codec(
        "koordinator.sh/cpuQOS",
        cpu_qos.parse,
        cpu_qos.dump,
        None,
        '{"groupIdentity":-1,"schedIdle":0,"coreExpeller":false,"enable":true}',
    ),
    Codec(
        "koordinator.sh/memoryQOS",
        memory_qos.parse,
        memory_qos.dump,
        memory_qos.PodMemoryQOS,
        '{"minLimitPercent":0,"wmarkRatio":95,"policy":"auto"}',
    ),
    Codec(
        "koordinator.sh/blkioQOS",
        blkio_qos.parse,
        blkio_qos.dump,
        slo_strategy.BlkIOQOS,
        '{"blocks":[{"name":"data","type":"podvolume","ioCfg":{"readIOPS":100,"writeBPS":1048576}}]}',
    ),
    Codec(
        f"{N}resctrl",
        resctrl.parse,
        resctrl.dump,
        resctrl.Resctrl,
        '{"llc":{"schemata":{"range":[0,50]},"schemataPerCache":[{"cacheID":0,"range":[0,80]}]},'
        '"mb":{"schemata":{"percent":60},"schemataPerCache":[{"cacheID":1,"percent":40}]}}',
    ),
    Codec(
        f"{N}extended-resource-spec",
        extended_resource_spec.parse,
        extended_resource_spec.dump,
        extended_resource_spec.ExtendedResourceSpec,
        '{"containers":{"c":{"limits":{"kubernetes.io/batch-cpu":"1k"},"requests":{"kubernetes.io/batch-cpu":"500"}}}}',
    ),
    Codec(
        "internal.scheduling.koordinator.sh/scheduling-hint",
        scheduling_hint.parse,
        scheduling_hint.dump,
        scheduling_hint.SchedulingHint,
        '{"nodeNames":["n1"],"preferredNodeNames":["n2","n3"]}',
    ),
    Codec(
        f"{S}resource-spec",
        resource_spec.parse,
        resource_spec.dump,
        resource_spec.ResourceSpec,
        '{"requiredCPUBindPolicy":"FullPCPUs","preferredCPUBindPolicy":"SpreadByPCPUs",'
        '"preferredCPUExclusivePolicy":"PCPULevel"}',
    ),
    Codec(
        f"{S}resource-status",
        resource_status.parse,
        resource_status.dump,
        resource_status.ResourceStatus,
        '{"cpuset":"0-3","numaNodeResources":[{"node":0,"resources":{"cpu":"4"}}]}',
    ),
    Codec(
        f"{S}numa-topology-spec",
        numa_topology_spec.parse,
        numa_topology_spec.dump,
        numa_topology_spec.NUMATopologySpec,
        '{"numaTopologyPolicy":"SingleNUMANode","singleNUMANodeExclusive":"Required"}',
    ),
    Codec(
        f"{S}device-allocated",
        device_allocated.parse,
        device_allocated.dump,
        device_allocated.Allocations,
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100"},"id":"GPU-1"}],'
        '"rdma":[{"minor":1,"resources":{},"extension":{"vfs":[{"minor":2,"busID":"0000:1f:00.2"}]}}]}',
    ),
    Codec(
        f"{S}device-allocate-hint",
        device_hint.parse,
        device_hint.dump,
        None,
        '{"gpu":{"selector":{"matchLabels":{"a":"b"}},"requiredTopologyScope":"NUMANode","exclusivePolicy":"PCIeLevel"},'
        '"rdma":{"vfSelector":{},"allocateStrategy":"ApplyForAll"}}',
    ),
    Codec(
        f"{S}device-joint-allocate",
        device_joint.parse,
        device_joint.dump,
        device_joint.DeviceJointAllocate,
        '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}',
    ),
    Codec(
        f"{S}gpu-partition-spec",
        gpu_partition.parse_spec,
        gpu_partition.dump_spec,
        gpu_partition.GPUPartitionSpec,
        '{"allocatePolicy":"Restricted","ringBusBandwidth":"100Gi"}',
    ),
    Codec(
        f"{S}gpu-partitions",
        gpu_partition.parse_table,
        gpu_partition.dump_table,
        gpu_partition.GPUPartitionTable,
        '{"1":[{"minors":[0],"gpuLinkType":"NVLink","ringBusBandwidth":"400Gi","allocationScore":1}]}',
    ),
    Codec(
        f"{S}soft-eviction",
        soft_eviction.parse,
        soft_eviction.dump,
        soft_eviction.SoftEviction,
        '{"timestamp":"2026-01-02T03:04:05Z","deleteOptions":{"gracePeriodSeconds":30},"initiator":"d","reason":"r"}',
    ),
    Codec(
        f"{S}reservation-affinity",
        reservation_affinity.parse,
        reservation_affinity.dump,
        reservation_affinity.ReservationAffinity,
        '{"requiredDuringSchedulingIgnoredDuringExecution":{"reservationSelectorTerms":'
        '[{"matchExpressions":[{"key":"k","operator":"In","values":["v"]}]}]},'
        '"reservationSelector":{"pool":"a"},"tolerations":[{"key":"k","operator":"Exists"}]}',
    ),
    Codec(
        f"{S}reservation-allocated",
        reservation_allocated.parse,
        reservation_allocated.dump,
        reservation_allocated.ReservationAllocated,
        '{"name":"r1","uid":"u1"}',
    ),
    Codec(
        f"{S}exact-match-reservation",
        reservation_exact_match.parse,
        reservation_exact_match.dump,
        reservation_exact_match.ExactMatchReservation,
        '{"resourceNames":["cpu","memory"]}',
    ),
    Codec(
        f"{S}reservation-restricted-options",
        reservation_options.parse_restricted,
        reservation_options.dump_restricted,
        reservation_options.RestrictedOptions,
        '{"resources":["cpu"]}',
    ),
    Codec(
        f"{S}reservation-resize-allocatable",
        reservation_options.parse_resize,
        reservation_options.dump_resize,
        reservation_options.ResizeAllocatable,
        '{"resources":{"cpu":"4"}}',
    ),
    Codec(
        f"{S}reservation-owners",
        operating_pod.parse_owners,
        operating_pod.dump_owners,
        tuple[ReservationOwner, ...],
        '[{"object":{"namespace":"d","name":"p"}},{"controller":{"kind":"ReplicaSet","name":"w","controller":true,'
        '"namespace":"d"}}]',
    ),
    Codec(
        f"{S}reservation-current-owner",
        operating_pod.parse_current_owner,
        operating_pod.dump_current_owner,
        ObjectReference,
        '{"kind":"Pod","namespace":"d","name":"p","uid":"u"}',
    ),
    Codec(
        f"{N}colocation-strategy",
        colocation_strategy.parse,
        colocation_strategy.dump,
        ColocationStrategy,
        '{"enable":true,"cpuReclaimThresholdPercent":50,"midCPUThresholdPercent":10,"batchCPUThresholdPercent":20}',
    ),
    Codec(
        f"{N}originExtendedAllocatable",
        extended_allocatable.parse_origin,
        extended_allocatable.dump_origin,
        extended_allocatable.OriginAllocatable,
        '{"resources":{"kubernetes.io/batch-cpu":"1000"}}',
    ),
    Codec(
        f"{N}thirdPartyAllocations",
        extended_allocatable.parse_third_party,
        extended_allocatable.dump_third_party,
        extended_allocatable.ThirdPartyAllocations,
        '{"allocations":[{"name":"yarn","priority":"koord-batch","resources":{"kubernetes.io/batch-cpu":"1k"}}]}',
    ),
    Codec(
        f"{N}reservation",
        node_reservation.parse,
        node_reservation.dump,
        node_reservation.NodeReservation,
        '{"resources":{"memory":"2Gi"},"reservedCPUs":"0-3","applyPolicy":"Default"}',
    ),
    Codec(
        f"{N}system-qos-resource",
        system_qos.parse,
        system_qos.dump,
        system_qos.SystemQOSResource,
        '{"cpuset":"0-1","cpusetExclusive":false}',
    ),
    Codec(
        f"{N}raw-allocatable",
        amplification.parse_raw_allocatable,
        amplification.dump_raw_allocatable,
        ResourceList,
        '{"cpu":"8","memory":"16Gi"}',
    ),
    Codec(
        f"{S}usage-thresholds",
        usage_thresholds.parse,
        usage_thresholds.dump,
        usage_thresholds.UsageThresholds,
        '{"usageThresholds":{"cpu":80},"prodUsageThresholds":{"cpu":50},"aggregatedUsage":{"usageThresholds":'
        '{"cpu":70},"usageAggregationType":"p95","usageAggregatedDuration":"5m0s"}}',
    ),
    Codec(
        f"{N}cpu-topology",
        cpu_topology.parse,
        cpu_topology.dump,
        cpu_topology.CPUTopology,
        '{"detail":[{"id":0,"core":0,"socket":0,"node":0}]}',
    ),
    Codec(
        f"{N}pod-cpu-allocs",
        pod_cpu_allocs.parse,
        pod_cpu_allocs.dump,
        tuple[pod_cpu_allocs.PodCPUAlloc, ...],
        '[{"namespace":"d","name":"p","uid":"u","cpuset":"1-2","managedByKubelet":true}]',
    ),
    Codec(
        f"{N}cpu-shared-pools",
        cpu_shared_pools.parse,
        cpu_shared_pools.dump,
        tuple[cpu_shared_pools.CPUSharedPool, ...],
        '[{"socket":0,"node":0,"cpuset":"0-3"}]',
    ),
    Codec(
        f"{N}be-cpu-shared-pools",
        cpu_shared_pools.parse_best_effort,
        cpu_shared_pools.dump,
        tuple[cpu_shared_pools.CPUSharedPool, ...],
        '[{"socket":0,"node":1,"cpuset":"4-7"}]',
    ),
    Codec(
        "kubelet.koordinator.sh/cpu-manager-policy",
        cpu_manager_policy.parse,
        cpu_manager_policy.dump,
        cpu_manager_policy.CPUManagerPolicy,
        '{"policy":"static","options":{"full-pcpus-only":"true"},"reservedCPUs":"0-1"}',
    ),
    Codec(
        f"{N}cpu-basic-info",
        cpu_basic_info.parse,
        cpu_basic_info.dump,
        cpu_basic_info.CPUBasicInfo,
        '{"cpuModel":"X","turboEnabled":true,"catL3CbmMask":"7ff","vendorID":"GenuineIntel"}',
    ),
    Codec(
        f"{Q}runtime",
        lambda annotations: quota_resources.parse(annotations, f"{Q}runtime"),
        quota_resources.dump,
        ResourceList,
        '{"cpu":"20","memory":"40Gi"}',
    ),
    Codec(
        f"{Q}max-strict-check-resource-keys",
        quota_resources.max_strict_check_keys,
        quota_resources.dump_names,
        tuple[str, ...],
        '["cpu"]',
    ),
    Codec(
        "gang.scheduling.koordinator.sh/network-topology-spec",
        network_topology.parse_spec,
        network_topology.dump_spec,
        network_topology.NetworkTopologySpec,
        '{"gatherStrategy":[{"layer":"SpineLayer","strategy":"PreferGather"},'
        '{"layer":"BlockLayer","strategy":"MustGather","podCountMultiple":8}]}',
    ),
]
IDS = [codec.key.rpartition("/")[2] for codec in CODECS]


@pytest.mark.parametrize("codec", CODECS, ids=IDS)
def test_a_writer_s_text_comes_back_byte_for_byte(codec: Codec) -> None:
    value = codec.parse({codec.key: codec.text})
    assert value is not None
    assert not isinstance(value, Malformed), value
    assert codec.dump(value) == codec.text


@pytest.mark.parametrize("codec", CODECS, ids=IDS)
def test_a_missing_key_is_nothing(codec: Codec) -> None:
    assert codec.parse({"other": codec.text}) is None


@pytest.mark.parametrize("codec", CODECS, ids=IDS)
@pytest.mark.parametrize("text", ["{", "[1", "true", '"x"', '{"a":'], ids=["brace", "list", "bool", "text", "cut"])
def test_unreadable_text_is_a_value_that_names_the_key(codec: Codec, text: str) -> None:
    found = codec.parse({codec.key: text})
    assert isinstance(found, Malformed)
    assert found.key == codec.key
    assert codec.key in str(found)


@pytest.mark.parametrize("codec", [pytest.param(c, id=i) for c, i in zip(CODECS, IDS) if c.shape is not None])
@settings(max_examples=20)
@given(data=st.data())
def test_any_value_survives_and_has_one_text(codec: Codec, data: st.DataObject) -> None:
    value = data.draw(values(codec.shape))
    text = codec.dump(value)
    read = codec.parse({codec.key: text})
    assert read == value
    assert codec.dump(read) == text


@pytest.mark.parametrize(
    ("parse", "key", "text"),
    [
        pytest.param(node_reservation.parse, f"{N}reservation", '{"resources":{"cpu":"four"}}', id="node-reservation"),
        pytest.param(amplification.parse_raw_allocatable, f"{N}raw-allocatable", '{"cpu":"1x"}', id="raw-allocatable"),
        pytest.param(
            device_allocated.parse,
            f"{S}device-allocated",
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":""}}]}',
            id="device-allocated",
        ),
        pytest.param(network_qos.parse, "koordinator.sh/networkQOS", '{"ingressLimit":"fast"}', id="bandwidth"),
        pytest.param(
            gpu_partition.parse_table, f"{S}gpu-partitions", '{"1":[{"ringBusBandwidth":"x"}]}', id="partition"
        ),
    ],
)
def test_a_wrong_quantity_spoils_the_annotation(parse: Callable[..., Any], key: str, text: str) -> None:
    assert isinstance(parse({key: text}), Malformed)


def test_nulls_of_go_writers_read_as_empty() -> None:
    found = gpu_partition.parse_table({f"{S}gpu-partitions": '{"2":[{"minors":null,"gpuLinkType":"NVLink"}]}'})
    assert found == {2: (gpu_partition.GPUPartition(gpu_link_type="NVLink"),)}
