"""This module holds topology.node.k8s.io v1alpha1 and v1alpha2: NUMA zones of a node, a third-party API
without spec and status.
"""

from __future__ import annotations

from typing import Annotated

from koord.api.marker import REQUIRED, Quantity, always
from koord.api.meta import Object
from koord.api.part import Part

ZONE_TYPE_NODE = "Node"
ZONE_NAME_PREFIX = "node-"  # and the NUMA node's number

# kubelet topology manager policy × scope
POLICIES = (
    "None",
    "BestEffort",
    "BestEffortContainerLevel",
    "BestEffortPodLevel",
    "Restricted",
    "RestrictedContainerLevel",
    "RestrictedPodLevel",
    "SingleNUMANodeContainerLevel",
    "SingleNUMANodePodLevel",
)


class AttributeInfo(Part, frozen=True, kw_only=True):
    name: Annotated[str, REQUIRED] = always("")
    value: Annotated[str, REQUIRED] = always("")


class CostInfo(Part, frozen=True, kw_only=True):
    name: Annotated[str, REQUIRED] = always("")
    value: Annotated[int, REQUIRED] = always(0)


class ResourceInfo(Part, frozen=True, kw_only=True):
    name: Annotated[str, REQUIRED] = always("")
    capacity: Annotated[Quantity, REQUIRED] = always("0")
    allocatable: Annotated[Quantity, REQUIRED] = always("0")
    available: Annotated[Quantity, REQUIRED] = always("0")


class Zone(Part, frozen=True, kw_only=True):
    name: Annotated[str, REQUIRED] = always("")
    type: Annotated[str, REQUIRED] = always("")
    parent: str = ""
    costs: tuple[CostInfo, ...] = ()
    attributes: tuple[AttributeInfo, ...] = ()
    resources: tuple[ResourceInfo, ...] = ()


class NodeResourceTopology(Object, frozen=True, kw_only=True):
    """v1alpha1, the version that the koordlet and the manager use. Named as the node."""

    topology_policies: Annotated[tuple[str, ...], REQUIRED] = always(())
    zones: Annotated[tuple[Zone, ...], REQUIRED] = always(())


class NodeResourceTopologyV1Alpha2(Object, frozen=True, kw_only=True):
    """The stored version: policies became optional, attributes came."""

    topology_policies: tuple[str, ...] = ()
    zones: Annotated[tuple[Zone, ...], REQUIRED] = always(())
    attributes: tuple[AttributeInfo, ...] = ()
