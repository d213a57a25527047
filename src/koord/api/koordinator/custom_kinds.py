"""This module is the table of Koordinator's custom resources: how each kind is addressed, printed and modelled."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from koord.api.koordinator import sigs_scheduling
from koord.api.koordinator.profiles import ClusterColocationProfile, ElasticQuotaProfile, Recommendation
from koord.api.koordinator.scheduling import (
    ClusterNetworkTopology,
    Device,
    PodMigrationJob,
    Reservation,
    ScheduleExplanation,
)
from koord.api.koordinator.slo import NodeMetric, NodeSLO
from koord.api.kubernetes.builtin_kinds import BUILTIN_KINDS
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import CrdPrinterColumn, Resource

O = TypeVar("O", bound=Object)  # noqa: E741

SLO_GROUP = "slo.koordinator.sh"
SCHEDULING_GROUP = "scheduling.koordinator.sh"
SIGS_SCHEDULING_GROUP = "scheduling.sigs.k8s.io"
QUOTA_GROUP = "quota.koordinator.sh"
CONFIG_GROUP = "config.koordinator.sh"
ANALYSIS_GROUP = "analysis.koordinator.sh"
TOPOLOGY_GROUP = "topology.node.k8s.io"


def _v1alpha1(
    group: str,
    model: type[O],
    plural: str,
    *short_names: str,
    namespaced: bool = False,
    status: bool = False,
    columns: tuple[tuple[str, str, str], ...] = (),
) -> Resource[O]:
    """Make the entry of a custom kind; a column is a name, a type and a JSON path."""
    shown = tuple(CrdPrinterColumn(name=name, type=kind, json_path=path) for name, kind, path in columns)
    return Resource.named_like_model(
        group, "v1alpha1", model, plural, short_names, namespaced=namespaced, status=status, columns=shown, custom=True
    )


_AGE = ("Age", "date", ".metadata.creationTimestamp")

NODE_METRICS = _v1alpha1(SLO_GROUP, NodeMetric, "nodemetrics", status=True)
NODE_SLOS = _v1alpha1(SLO_GROUP, NodeSLO, "nodeslos", status=True)
DEVICES = _v1alpha1(SCHEDULING_GROUP, Device, "devices")
RESERVATIONS = _v1alpha1(
    SCHEDULING_GROUP,
    Reservation,
    "reservations",
    status=True,
    columns=(
        ("Phase", "string", ".status.phase"),
        _AGE,
        ("Node", "string", ".status.nodeName"),
        ("TTL", "string", ".spec.ttl"),
        ("Expires", "string", ".spec.expires"),
    ),
)
POD_MIGRATION_JOBS = _v1alpha1(
    SCHEDULING_GROUP,
    PodMigrationJob,
    "podmigrationjobs",
    "pmj",
    status=True,
    columns=(
        ("Phase", "string", ".status.phase"),
        ("Status", "string", ".status.status"),
        _AGE,
        ("Node", "string", ".status.nodeName"),
        ("Reservation", "string", ".spec.reservationOptions.reservationRef.name"),
        ("PodNamespace", "string", ".spec.podRef.namespace"),
        ("Pod", "string", ".spec.podRef.name"),
        ("NewPod", "string", ".status.podRef.name"),
        ("TTL", "string", ".spec.ttl"),
    ),
)
CLUSTER_NETWORK_TOPOLOGIES = _v1alpha1(
    SCHEDULING_GROUP, ClusterNetworkTopology, "clusternetworktopologies", status=True
)
SCHEDULE_EXPLANATIONS = _v1alpha1(
    SCHEDULING_GROUP, ScheduleExplanation, "scheduleexplanations", "sched-exp", namespaced=True, status=True
)
ELASTIC_QUOTAS = _v1alpha1(SIGS_SCHEDULING_GROUP, sigs_scheduling.ElasticQuota, "elasticquotas", namespaced=True)
POD_GROUPS = _v1alpha1(SIGS_SCHEDULING_GROUP, sigs_scheduling.PodGroup, "podgroups", namespaced=True)
ELASTIC_QUOTA_PROFILES = _v1alpha1(QUOTA_GROUP, ElasticQuotaProfile, "elasticquotaprofiles", "eqp", namespaced=True)
CLUSTER_COLOCATION_PROFILES = _v1alpha1(
    CONFIG_GROUP, ClusterColocationProfile, "clustercolocationprofiles", status=True
)
RECOMMENDATIONS = _v1alpha1(
    ANALYSIS_GROUP,
    Recommendation,
    "recommendations",
    "recom",
    namespaced=True,
    status=True,
    columns=(
        _AGE,
        ("Type", "string", ".spec.target.type"),
        ("Kind", "string", ".spec.target.workload.kind"),
        ("Name", "string", ".spec.target.workload.name"),
        ("LastUpdateTime", "date", ".status.updateTime"),
    ),
)
NODE_RESOURCE_TOPOLOGIES = _v1alpha1(
    TOPOLOGY_GROUP, sigs_scheduling.NodeResourceTopology, "noderesourcetopologies", "node-res-topo"
)
NODE_RESOURCE_TOPOLOGIES_V1ALPHA2 = msgspec.structs.replace(
    NODE_RESOURCE_TOPOLOGIES.with_model(sigs_scheduling.NodeResourceTopologyV1Alpha2), version="v1alpha2"
)

# All of the above, in their order. One entry per served version; where a kind has several, the last one is stored.
CUSTOM_KINDS: tuple[Resource[Any], ...] = tuple(one for one in globals().values() if isinstance(one, Resource))
ALL_KINDS: tuple[Resource[Any], ...] = BUILTIN_KINDS + CUSTOM_KINDS
KINDS_BY_API_VERSION: dict[tuple[str, str], Resource[Any]] = {(kind.api_version, kind.kind): kind for kind in ALL_KINDS}
