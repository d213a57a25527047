"""This module holds the codecs of ElasticQuotas: settings and published status in annotations, the tree in
labels, and the quota labels of pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import QuantityText, ResourceList
from koord.api.protocol import (
    A_QUOTA_ALLOCATED,
    A_QUOTA_CHILD_REQUEST,
    A_QUOTA_GUARANTEED,
    A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS,
    A_QUOTA_NAMESPACES,
    A_QUOTA_NON_PREEMPTIBLE_REQUEST,
    A_QUOTA_NON_PREEMPTIBLE_USED,
    A_QUOTA_REQUEST,
    A_QUOTA_RESOURCE_KEYS,
    A_QUOTA_RUNTIME,
    A_QUOTA_SHARED_WEIGHT,
)
from koord.api.resource_name import CPU, MEMORY
from koord.values.quantity import Quantity

# Written by the scheduler, in the order in which it publishes them.
STATUS_KEYS = (
    A_QUOTA_RUNTIME,
    A_QUOTA_REQUEST,
    A_QUOTA_CHILD_REQUEST,
    A_QUOTA_ALLOCATED,
    A_QUOTA_GUARANTEED,
    A_QUOTA_NON_PREEMPTIBLE_REQUEST,
    A_QUOTA_NON_PREEMPTIBLE_USED,
)
DEFAULT_RESOURCE_KEYS = (CPU, MEMORY)


def parse(annotations: Mapping[str, str], key: str) -> ResourceList | Malformed | None:
    """Parse any of the resource lists: the status keys, total-resource, unschedulable-resource, admission."""
    return read(annotations, key, ResourceList, lambda v: v.values())


def dump(value: Mapping[str, QuantityText]) -> str:
    return written(value)


def shared_weight(annotations: Mapping[str, str], maximum: ResourceList) -> ResourceList:
    """Return the stated weights, or spec.max when they are missing, unreadable or all zero."""
    found = parse(annotations, A_QUOTA_SHARED_WEIGHT)
    if found is None or isinstance(found, Malformed) or all(Quantity.parse(q).is_zero() for q in found.values()):
        return maximum
    return found


def namespaces(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the namespaces whose pods belong to the quota; unreadable text names none."""
    found = read(annotations, A_QUOTA_NAMESPACES, tuple[str, ...])
    return () if found is None or isinstance(found, Malformed) else found


def resource_keys(annotations: Mapping[str, str]) -> tuple[str, ...] | Malformed:
    """Return the resources of a profile's root quota."""
    found = read(annotations, A_QUOTA_RESOURCE_KEYS, tuple[str, ...])
    return DEFAULT_RESOURCE_KEYS if found is None else found


def max_strict_check_keys(annotations: Mapping[str, str]) -> tuple[str, ...] | Malformed | None:
    return read(annotations, A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS, tuple[str, ...])


def dump_names(names: Sequence[str]) -> str:
    return written(names)
