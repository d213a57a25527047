"""Compute a node's NodeSLO, and where each part of it comes from. Reading the configuration is left to others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.slo.slo_documents import EXTENSION_KEY, InterferenceStrategy, with_interference
from koord.api.koordinator import slo
from koord.api.koordinator.protocol import A_NETWORK_BANDWIDTH
from koord.api.koordinator.slo import NodeSLOSpec
from koord.manager.colocation.strategy import LayeredStrategy
from koord.values.quantity import Quantity

T = TypeVar("T")

CLUSTER = "cluster"
STORED = "stored"  # the document was never readable: the node keeps what is stored
NO_REQUEST, NO_LIMIT = 0, 100  # what the schema fills in; stated here so that a written NodeSLO equals a read one


class NodeSloSection(msgspec.Struct, Generic[T], frozen=True):
    """One configuration document. Unless `is_readable` it has never been readable since this program started."""

    layers: LayeredStrategy[T]
    is_readable: bool = True


class NodeSloSettings(msgspec.Struct, frozen=True, kw_only=True):
    threshold: NodeSloSection[slo.ResourceThresholdStrategy]
    qos: NodeSloSection[slo.ResourceQOSStrategy]
    cpu_burst: NodeSloSection[slo.CPUBurstStrategy]
    system: NodeSloSection[slo.SystemStrategy]
    host_applications: NodeSloSection[tuple[slo.HostApplicationSpec, ...]]
    interference: NodeSloSection[InterferenceStrategy]


class NodeSloDecision(msgspec.Struct, frozen=True, kw_only=True):
    spec: NodeSLOSpec
    sources: Mapping[str, str]  # field of the spec: "cluster", "stored", the name of a node strategy, an annotation
    flaw: MalformedAnnotation | None = None  # an annotation that cannot be read


def decide_node_slo(
    settings: NodeSloSettings, labels: Mapping[str, str], annotations: Mapping[str, str], stored: NodeSLOSpec | None
) -> NodeSloDecision:
    """Compute the spec. `stored` is the spec that the node has now. Extensions belong to others and are kept, except
    the strategy of interference detection.
    """
    sources: dict[str, str] = {}
    had = stored or NodeSLOSpec()

    def chosen(field: str, section: NodeSloSection[T], before: T | None) -> T:
        if not section.is_readable and stored is not None and before is not None:
            sources[field] = STORED
            return before
        layer = section.layers.matching_layer(labels)
        sources[field] = CLUSTER if layer is None else layer.name or "(unnamed)"
        return section.layers.cluster if layer is None else layer.strategy

    threshold = chosen("resourceUsedThresholdWithBE", settings.threshold, had.resource_used_threshold_with_be)
    qos = chosen("resourceQOSStrategy", settings.qos, had.resource_qos_strategy)
    burst = chosen("cpuBurstStrategy", settings.cpu_burst, had.cpu_burst_strategy)
    system: slo.SystemStrategy | None = chosen("systemStrategy", settings.system, had.system_strategy)
    applications = chosen("hostApplications", settings.host_applications, had.host_applications)
    extensions = had.extensions
    if settings.interference.is_readable:
        layer = settings.interference.layers.matching_layer(labels)
        interference = settings.interference.layers.cluster if layer is None else layer.strategy
        extensions = with_interference(had.extensions, interference)
        if interference != InterferenceStrategy():
            sources[f"extensions.{EXTENSION_KEY}"] = CLUSTER if layer is None else layer.name or "(unnamed)"
    bandwidth = node_codecs.parse_network_bandwidth(annotations)
    if isinstance(bandwidth, str) and Quantity.parse(bandwidth).sign() < 0:
        bandwidth = MalformedAnnotation(A_NETWORK_BANDWIDTH, f"{bandwidth} is negative")
    flaw = bandwidth if isinstance(bandwidth, MalformedAnnotation) else None
    if flaw is not None:
        # As upstream does it: without a bandwidth that can be believed the node gets no system strategy at all.
        system, sources["systemStrategy"] = None, flaw.key
    elif isinstance(bandwidth, str) and system is not None:
        system = msgspec.structs.replace(system, total_network_bandwidth=str(Quantity.parse(bandwidth)))
        sources["systemStrategy.totalNetworkBandwidth"] = A_NETWORK_BANDWIDTH
    spec = NodeSLOSpec(
        resource_used_threshold_with_be=threshold,
        resource_qos_strategy=_with_network_defaults(qos),
        cpu_burst_strategy=burst,
        system_strategy=system,
        host_applications=applications,
        extensions=extensions,
    )
    return NodeSloDecision(spec=spec, sources=sources, flaw=flaw)


def _with_network_defaults(qos: slo.ResourceQOSStrategy) -> slo.ResourceQOSStrategy:
    def filled(block: slo.ResourceQOS | None) -> slo.ResourceQOS | None:
        network = None if block is None else block.network_qos
        if block is None or network is None:
            return block
        complete = slo.NetworkQOSConfig(
            enable=network.enable,
            ingress_request=NO_REQUEST if network.ingress_request is None else network.ingress_request,
            ingress_limit=NO_LIMIT if network.ingress_limit is None else network.ingress_limit,
            egress_request=NO_REQUEST if network.egress_request is None else network.egress_request,
            egress_limit=NO_LIMIT if network.egress_limit is None else network.egress_limit,
        )
        return msgspec.structs.replace(block, network_qos=complete)

    return msgspec.structs.replace(
        qos,
        lsr_class=filled(qos.lsr_class),
        ls_class=filled(qos.ls_class),
        be_class=filled(qos.be_class),
        system_class=filled(qos.system_class),
        cgroup_root=filled(qos.cgroup_root),
    )
