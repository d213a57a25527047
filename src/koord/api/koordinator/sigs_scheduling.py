"""This module holds what Koordinator shares with scheduler-plugins: scheduling.sigs.k8s.io/v1alpha1, and
topology.node.k8s.io v1alpha1 and v1alpha2 (NUMA zones of a node, an API without spec and status).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from koord.api.kubernetes.meta import Object
from koord.api.model import Submodel
from koord.api.schema_markers import NULLABLE, REQUIRED, Int32, Quantity, ResourceList, never_omitted


class ElasticQuotaSpec(Submodel, frozen=True, kw_only=True):
    min: ResourceList = {}
    max: ResourceList = {}


class ElasticQuotaStatus(Submodel, frozen=True, kw_only=True):
    used: ResourceList = {}


class ElasticQuota(Object, frozen=True, kw_only=True):
    """A share of the cluster with a guarantee and a ceiling. Its tree and its runtime sit in labels and annotations."""

    spec: ElasticQuotaSpec = ElasticQuotaSpec()
    status: ElasticQuotaStatus = ElasticQuotaStatus()


class PodGroupSpec(Submodel, frozen=True, kw_only=True):
    min_member: Int32 = 0
    min_resources: ResourceList = {}
    schedule_timeout_seconds: Int32 | None = None


class PodGroupStatus(Submodel, frozen=True, kw_only=True):
    """Go clients write scheduleStartTime as null when it is not set."""

    phase: str = ""
    occupied_by: str = ""
    scheduled: Int32 = 0
    running: Int32 = 0
    succeeded: Int32 = 0
    failed: Int32 = 0
    schedule_start_time: Annotated[datetime, NULLABLE] | None = None


class PodGroup(Object, frozen=True, kw_only=True):
    """Pods that start together or not at all."""

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


ZONE_TYPE_NODE = "Node"
ZONE_NAME_PREFIX = "node-"  # and the NUMA node's number

# kubelet topology manager policy × scope


class AttributeInfo(Submodel, frozen=True, kw_only=True):
    name: Annotated[str, REQUIRED] = never_omitted("")
    value: Annotated[str, REQUIRED] = never_omitted("")


class CostInfo(Submodel, frozen=True, kw_only=True):
    name: Annotated[str, REQUIRED] = never_omitted("")
    value: Annotated[int, REQUIRED] = never_omitted(0)


class ResourceInfo(Submodel, frozen=True, kw_only=True):
    name: Annotated[str, REQUIRED] = never_omitted("")
    capacity: Annotated[Quantity, REQUIRED] = never_omitted("0")
    allocatable: Annotated[Quantity, REQUIRED] = never_omitted("0")
    available: Annotated[Quantity, REQUIRED] = never_omitted("0")


class Zone(Submodel, frozen=True, kw_only=True):
    name: Annotated[str, REQUIRED] = never_omitted("")
    type: Annotated[str, REQUIRED] = never_omitted("")
    parent: str = ""
    costs: tuple[CostInfo, ...] = ()
    attributes: tuple[AttributeInfo, ...] = ()
    resources: tuple[ResourceInfo, ...] = ()


class NodeResourceTopology(Object, frozen=True, kw_only=True):
    """v1alpha1, the version that the koordlet and the manager use. Named as the node."""

    topology_policies: Annotated[tuple[str, ...], REQUIRED] = never_omitted(())
    zones: Annotated[tuple[Zone, ...], REQUIRED] = never_omitted(())


class NodeResourceTopologyV1Alpha2(Object, frozen=True, kw_only=True):
    """The stored version: policies became optional, attributes came."""

    topology_policies: tuple[str, ...] = ()
    zones: Annotated[tuple[Zone, ...], REQUIRED] = never_omitted(())
    attributes: tuple[AttributeInfo, ...] = ()
