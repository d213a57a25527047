"""Decide what of a node koord-manager and its webhooks have written and nobody else has, so that it can be removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import (
    A_CPU_NORMALIZATION_RATIO,
    A_ORIGIN_EXTENDED_ALLOCATABLE,
    A_RAW_ALLOCATABLE,
    A_RESOURCE_AMPLIFICATION_RATIO,
    A_THIRD_PARTY_ALLOCATIONS,
)
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koord.api.koordinator.yarn import ALLOCATION_NAME
from koord.api.kubernetes.node import Node
from koord.manager.colocation.device_resources import GPU_LABELS, GPU_NAMES, RDMA_NAMES

RESOURCES = (BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY, *GPU_NAMES, *RDMA_NAMES)
# The ratio of amplification may be an administrator's own, who then has no use for it without koord's webhook.
ANNOTATIONS = (
    A_CPU_NORMALIZATION_RATIO,
    A_ORIGIN_EXTENDED_ALLOCATABLE,
    A_RAW_ALLOCATABLE,
    A_RESOURCE_AMPLIFICATION_RATIO,
)


def decide_node_removal(node: Node) -> dict[str, Any]:
    """Return the merge patch of the node's status that removes what is there of it; empty when nothing is."""
    annotations: tuple[str, ...] = ANNOTATIONS
    if _is_yarns_alone(node.metadata.annotations):
        annotations = (*ANNOTATIONS, A_THIRD_PARTY_ALLOCATIONS)
    metadata = {
        "annotations": _nulls(node.metadata.annotations, annotations),
        "labels": _nulls(node.metadata.labels, GPU_LABELS),
    }
    status = {
        "capacity": _nulls(node.status.capacity, RESOURCES),
        "allocatable": _nulls(node.status.allocatable, RESOURCES),
    }
    parts = {"metadata": _filled(metadata), "status": _filled(status)}
    return _filled(parts)


def _is_yarns_alone(annotations: Mapping[str, str]) -> bool:
    """Return whether nobody but koord-yarn-operator says there what it holds."""
    listed = node_codecs.parse_third_party_allocations(annotations)
    if listed is None or isinstance(listed, MalformedAnnotation):
        return False
    return {one.name for one in listed.allocations} == {ALLOCATION_NAME}


def _nulls(present: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, None]:
    return {name: None for name in names if name in present}


def _filled(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if part}
