"""This module holds the codecs of ElasticQuotas: settings, published status and tree, and the quota labels of pods."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations.codec import MalformedAnnotation, parse_json
from koord.api.koordinator import protocol
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.model import ResourceList
from koord.values.quantity import Quantity

DEFAULT_QUOTA_RESOURCE_KEYS = (CPU, MEMORY)


def parse_quota_resources(annotations: Mapping[str, str], key: str) -> ResourceList | MalformedAnnotation | None:
    """Parse any of the resource lists: the status keys, total-resource, unschedulable-resource, admission."""
    return parse_json(annotations, key, ResourceList, lambda v: v.values())


def quota_shared_weight(annotations: Mapping[str, str], maximum: ResourceList) -> ResourceList:
    """Return the stated weights, or spec.max when they are missing, unreadable or all zero."""
    found = parse_quota_resources(annotations, protocol.A_QUOTA_SHARED_WEIGHT)
    if (
        found is None
        or isinstance(found, MalformedAnnotation)
        or all(Quantity.parse(q).is_zero() for q in found.values())
    ):
        return maximum
    return found


def quota_namespaces(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the namespaces whose pods belong to the quota; unreadable text names none."""
    found = parse_json(annotations, protocol.A_QUOTA_NAMESPACES, tuple[str, ...])
    return () if found is None or isinstance(found, MalformedAnnotation) else found


def quota_resource_keys(annotations: Mapping[str, str]) -> tuple[str, ...] | MalformedAnnotation:
    """Return the resources of a profile's root quota."""
    found = parse_json(annotations, protocol.A_QUOTA_RESOURCE_KEYS, tuple[str, ...])
    return DEFAULT_QUOTA_RESOURCE_KEYS if found is None else found


def quota_max_strict_check_keys(annotations: Mapping[str, str]) -> tuple[str, ...] | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS, tuple[str, ...])


class QuotaLabels(msgspec.Struct, frozen=True, kw_only=True):
    """QuotaLabels is a quota's place in its tree and what it allows. `parent` is the root quota's name when the
    label is missing; the root itself has no parent.
    """

    parent: str
    is_parent: bool
    allow_lent_resource: bool
    allow_force_update: bool
    tree_id: str
    is_tree_root: bool
    ignore_default_tree: bool
    profile: str


def parse_quota_labels(labels: Mapping[str, str]) -> QuotaLabels:
    return QuotaLabels(
        parent=labels.get(protocol.L_QUOTA_PARENT) or protocol.ROOT_QUOTA,
        is_parent=labels.get(protocol.L_QUOTA_IS_PARENT) == protocol.TRUE,
        allow_lent_resource=labels.get(protocol.L_QUOTA_ALLOW_LENT_RESOURCE) != protocol.FALSE,
        allow_force_update=labels.get(protocol.L_QUOTA_ALLOW_FORCE_UPDATE) == protocol.TRUE,
        tree_id=labels.get(protocol.L_QUOTA_TREE_ID, ""),
        is_tree_root=labels.get(protocol.L_QUOTA_IS_ROOT) == protocol.TRUE,
        ignore_default_tree=labels.get(protocol.L_QUOTA_IGNORE_DEFAULT_TREE) == protocol.TRUE,
        profile=labels.get(protocol.L_QUOTA_PROFILE, ""),
    )


def pod_quota_name(labels: Mapping[str, str]) -> str | None:
    """Return the quota that a pod names; None leaves it to its namespace and then to the default quota."""
    return labels.get(protocol.L_QUOTA_NAME) or None


def is_quota_preemptible(labels: Mapping[str, str]) -> bool:
    """Return whether the pod is preemptible; non-preemptible pods are counted against the quota's min."""
    return labels.get(protocol.L_QUOTA_PREEMPTIBLE) != protocol.FALSE
