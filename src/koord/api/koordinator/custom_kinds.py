"""This module is the table of Koordinator's custom resources: how each kind is addressed, printed and modelled."""

from __future__ import annotations

from typing import Any

from koord.api.koordinator import sigs_scheduling
from koord.api.koordinator.analysis import Recommendation
from koord.api.koordinator.device import Device
from koord.api.koordinator.profiles import ClusterColocationProfile, ElasticQuotaProfile
from koord.api.koordinator.scheduling import ClusterNetworkTopology, PodMigrationJob, Reservation, ScheduleExplanation
from koord.api.koordinator.slo import NodeMetric, NodeSLO
from koord.api.kubernetes.builtin_kinds import BUILTIN_KINDS
from koord.api.kubernetes.resource import CrdPrinterColumn, Resource

SLO_GROUP = "slo.koordinator.sh"
SCHEDULING_GROUP = "scheduling.koordinator.sh"
SIGS_SCHEDULING_GROUP = "scheduling.sigs.k8s.io"
QUOTA_GROUP = "quota.koordinator.sh"
CONFIG_GROUP = "config.koordinator.sh"
ANALYSIS_GROUP = "analysis.koordinator.sh"
TOPOLOGY_GROUP = "topology.node.k8s.io"


def _columns(*stated: tuple[str, str, str]) -> tuple[CrdPrinterColumn, ...]:
    return tuple(CrdPrinterColumn(name=name, type=kind, json_path=path) for name, kind, path in stated)


_AGE = ("Age", "date", ".metadata.creationTimestamp")

NODE_METRICS = Resource(
    group=SLO_GROUP,
    version="v1alpha1",
    kind="NodeMetric",
    plural="nodemetrics",
    singular="nodemetric",
    namespaced=False,
    model=NodeMetric,
    status_subresource=True,
    custom=True,
)
NODE_SLOS = Resource(
    group=SLO_GROUP,
    version="v1alpha1",
    kind="NodeSLO",
    plural="nodeslos",
    singular="nodeslo",
    namespaced=False,
    model=NodeSLO,
    status_subresource=True,
    custom=True,
)
DEVICES = Resource(
    group=SCHEDULING_GROUP,
    version="v1alpha1",
    kind="Device",
    plural="devices",
    singular="device",
    namespaced=False,
    model=Device,
    custom=True,
)
RESERVATIONS = Resource(
    group=SCHEDULING_GROUP,
    version="v1alpha1",
    kind="Reservation",
    plural="reservations",
    singular="reservation",
    namespaced=False,
    model=Reservation,
    status_subresource=True,
    custom=True,
    columns=_columns(
        ("Phase", "string", ".status.phase"),
        _AGE,
        ("Node", "string", ".status.nodeName"),
        ("TTL", "string", ".spec.ttl"),
        ("Expires", "string", ".spec.expires"),
    ),
)
POD_MIGRATION_JOBS = Resource(
    group=SCHEDULING_GROUP,
    version="v1alpha1",
    kind="PodMigrationJob",
    plural="podmigrationjobs",
    singular="podmigrationjob",
    short_names=("pmj",),
    namespaced=False,
    model=PodMigrationJob,
    status_subresource=True,
    custom=True,
    columns=_columns(
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
CLUSTER_NETWORK_TOPOLOGIES = Resource(
    group=SCHEDULING_GROUP,
    version="v1alpha1",
    kind="ClusterNetworkTopology",
    plural="clusternetworktopologies",
    singular="clusternetworktopology",
    namespaced=False,
    model=ClusterNetworkTopology,
    status_subresource=True,
    custom=True,
)
SCHEDULE_EXPLANATIONS = Resource(
    group=SCHEDULING_GROUP,
    version="v1alpha1",
    kind="ScheduleExplanation",
    plural="scheduleexplanations",
    singular="scheduleexplanation",
    short_names=("sched-exp",),
    namespaced=True,
    model=ScheduleExplanation,
    status_subresource=True,
    custom=True,
)
ELASTIC_QUOTAS = Resource(
    group=SIGS_SCHEDULING_GROUP,
    version="v1alpha1",
    kind="ElasticQuota",
    plural="elasticquotas",
    singular="elasticquota",
    namespaced=True,
    model=sigs_scheduling.ElasticQuota,
    custom=True,
)
POD_GROUPS = Resource(
    group=SIGS_SCHEDULING_GROUP,
    version="v1alpha1",
    kind="PodGroup",
    plural="podgroups",
    singular="podgroup",
    namespaced=True,
    model=sigs_scheduling.PodGroup,
    custom=True,
)
ELASTIC_QUOTA_PROFILES = Resource(
    group=QUOTA_GROUP,
    version="v1alpha1",
    kind="ElasticQuotaProfile",
    plural="elasticquotaprofiles",
    singular="elasticquotaprofile",
    short_names=("eqp",),
    namespaced=True,
    model=ElasticQuotaProfile,
    custom=True,
)
CLUSTER_COLOCATION_PROFILES = Resource(
    group=CONFIG_GROUP,
    version="v1alpha1",
    kind="ClusterColocationProfile",
    plural="clustercolocationprofiles",
    singular="clustercolocationprofile",
    namespaced=False,
    model=ClusterColocationProfile,
    status_subresource=True,
    custom=True,
)
RECOMMENDATIONS = Resource(
    group=ANALYSIS_GROUP,
    version="v1alpha1",
    kind="Recommendation",
    plural="recommendations",
    singular="recommendation",
    short_names=("recom",),
    namespaced=True,
    model=Recommendation,
    status_subresource=True,
    custom=True,
    columns=_columns(
        _AGE,
        ("Type", "string", ".spec.target.type"),
        ("Kind", "string", ".spec.target.workload.kind"),
        ("Name", "string", ".spec.target.workload.name"),
        ("LastUpdateTime", "date", ".status.updateTime"),
    ),
)
NODE_RESOURCE_TOPOLOGIES = Resource(
    group=TOPOLOGY_GROUP,
    version="v1alpha1",
    kind="NodeResourceTopology",
    plural="noderesourcetopologies",
    singular="noderesourcetopology",
    short_names=("node-res-topo",),
    namespaced=False,
    model=sigs_scheduling.NodeResourceTopology,
    custom=True,
)
NODE_RESOURCE_TOPOLOGIES_V1ALPHA2 = Resource(
    group=TOPOLOGY_GROUP,
    version="v1alpha2",
    kind="NodeResourceTopology",
    plural="noderesourcetopologies",
    singular="noderesourcetopology",
    short_names=("node-res-topo",),
    namespaced=False,
    model=sigs_scheduling.NodeResourceTopologyV1Alpha2,
    custom=True,
)

# One entry per served version; where a kind has several, the last one is stored.
CUSTOM_KINDS: tuple[Resource[Any], ...] = (
    NODE_METRICS,
    NODE_SLOS,
    DEVICES,
    RESERVATIONS,
    POD_MIGRATION_JOBS,
    CLUSTER_NETWORK_TOPOLOGIES,
    SCHEDULE_EXPLANATIONS,
    ELASTIC_QUOTAS,
    POD_GROUPS,
    ELASTIC_QUOTA_PROFILES,
    CLUSTER_COLOCATION_PROFILES,
    RECOMMENDATIONS,
    NODE_RESOURCE_TOPOLOGIES,
    NODE_RESOURCE_TOPOLOGIES_V1ALPHA2,
)

ALL_KINDS: tuple[Resource[Any], ...] = BUILTIN_KINDS + CUSTOM_KINDS
KINDS_BY_API_VERSION: dict[tuple[str, str], Resource[Any]] = {(kind.api_version, kind.kind): kind for kind in ALL_KINDS}
