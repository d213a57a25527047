"""This module holds the codecs of a node's resources: amplification, reservation, reclaim ratios, third-party
allocations, bandwidth and usage thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from msgspec import field

from koord.api.annotations.codec import MalformedAnnotation, dump_json, parse_json
from koord.api.koordinator import protocol
from koord.api.model import ResourceList, Submodel
from koord.api.schema_markers import Duration
from koord.values.go_format import parse_finite_float
from koord.values.quantity import Quantity, QuantityError


def parse_amplification_ratios(annotations: Mapping[str, str]) -> dict[str, float] | MalformedAnnotation | None:
    """Parse the amplification ratio by resource. A ratio of 1 or less has no effect, but is returned as it stands."""
    return parse_json(annotations, protocol.A_RESOURCE_AMPLIFICATION_RATIO, dict[str, float])


def dump_amplification_ratios(ratios: Mapping[str, float]) -> str:
    """Format ratios with exactly two decimals, `{"cpu":1.50}`, which no JSON library writes by itself."""
    items = (f"{msgspec.json.encode(name).decode()}:{ratio:.2f}" for name, ratio in sorted(ratios.items()))
    return "{" + ",".join(items) + "}"


def parse_raw_allocatable(annotations: Mapping[str, str]) -> ResourceList | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_RAW_ALLOCATABLE, ResourceList, lambda v: v.values())


class OriginAllocatable(Submodel, frozen=True, kw_only=True):
    """OriginAllocatable is the batch resources that there were before another orchestrator took its share."""

    resources: ResourceList = {}


class ThirdPartyAllocation(Submodel, frozen=True, kw_only=True):
    name: str = ""
    priority: str = ""
    resources: ResourceList = {}


class ThirdPartyAllocations(Submodel, frozen=True, kw_only=True):
    """ThirdPartyAllocations is the batch resources that other orchestrators have taken."""

    allocations: tuple[ThirdPartyAllocation, ...] = ()


def parse_origin_allocatable(annotations: Mapping[str, str]) -> OriginAllocatable | MalformedAnnotation | None:
    return parse_json(
        annotations, protocol.A_ORIGIN_EXTENDED_ALLOCATABLE, OriginAllocatable, lambda v: v.resources.values()
    )


def parse_third_party_allocations(annotations: Mapping[str, str]) -> ThirdPartyAllocations | MalformedAnnotation | None:
    return parse_json(
        annotations,
        protocol.A_THIRD_PARTY_ALLOCATIONS,
        ThirdPartyAllocations,
        lambda v: (amount for taken in v.allocations for amount in taken.resources.values()),
    )


APPLY_DEFAULT = "Default"  # the reserved part is taken off allocatable


class NodeReservation(Submodel, frozen=True, kw_only=True):
    """NodeReservation is what a node keeps for itself, also read on reservations. With `reserved_cpus` set,
    `resources.cpu` does not count.
    """

    resources: ResourceList = {}
    reserved_cpus: str = field(default="", name="reservedCPUs")
    apply_policy: str = ""

    @property
    def trims_allocatable(self) -> bool:
        return self.apply_policy in ("", APPLY_DEFAULT)


def parse_node_reservation(annotations: Mapping[str, str]) -> NodeReservation | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_NODE_RESERVATION, NodeReservation, lambda v: v.resources.values())


def dump_node_reservation(value: NodeReservation) -> str:
    return dump_json(value)


def reserves_per_numa_node(labels: Mapping[str, str]) -> bool:
    return labels.get(protocol.L_ENABLE_NUMA_RESERVATION) == protocol.TRUE


def ratio_label_percent(labels: Mapping[str, str], key: str) -> int | None:
    """Return a ratio label as percent, truncated as a binary fraction (0.29 is 28); None if negative or unreadable."""
    ratio = parse_finite_float(labels.get(key, ""))
    return None if ratio is None or not 0 <= ratio * 100 < math.inf else int(ratio * 100)


def cpu_reclaim_percent(labels: Mapping[str, str]) -> int | None:
    return ratio_label_percent(labels, protocol.L_CPU_RECLAIM_RATIO)


def memory_reclaim_percent(labels: Mapping[str, str]) -> int | None:
    return ratio_label_percent(labels, protocol.L_MEMORY_RECLAIM_RATIO)


def mid_static_cpu_percent(labels: Mapping[str, str]) -> int | None:
    return ratio_label_percent(labels, protocol.L_MID_STATIC_CPU_RESERVED_RATIO)


def mid_static_memory_percent(labels: Mapping[str, str]) -> int | None:
    return ratio_label_percent(labels, protocol.L_MID_STATIC_MEMORY_RESERVED_RATIO)


def parse_network_bandwidth(annotations: Mapping[str, str]) -> str | MalformedAnnotation | None:
    """Parse the node's bandwidth in bits per second: the quantity as text, known to be one."""
    text = annotations.get(protocol.A_NETWORK_BANDWIDTH)
    if text is None:
        return None
    try:
        Quantity.parse(text)
    except QuantityError as error:
        return MalformedAnnotation(protocol.A_NETWORK_BANDWIDTH, str(error))
    return text


class AggregatedThresholds(Submodel, frozen=True, kw_only=True):
    usage_thresholds: dict[str, int] = {}
    usage_aggregation_type: str = ""
    usage_aggregated_duration: Duration | None = None


class UsageThresholds(Submodel, frozen=True, kw_only=True):
    """UsageThresholds is one node's own ceilings for load-aware scheduling, in percent by resource."""

    usage_thresholds: dict[str, int] = {}
    prod_usage_thresholds: dict[str, int] = {}
    aggregated_usage: AggregatedThresholds | None = None


def parse_usage_thresholds(annotations: Mapping[str, str]) -> UsageThresholds | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_USAGE_THRESHOLDS, UsageThresholds)
