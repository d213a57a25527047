"""The labels of an ElasticQuota: its place in a tree and what it allows. Also the quota labels of pods."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.protocol import (
    FALSE,
    L_QUOTA_ALLOW_FORCE_UPDATE,
    L_QUOTA_ALLOW_LENT_RESOURCE,
    L_QUOTA_IGNORE_DEFAULT_TREE,
    L_QUOTA_IS_PARENT,
    L_QUOTA_IS_ROOT,
    L_QUOTA_NAME,
    L_QUOTA_PARENT,
    L_QUOTA_PREEMPTIBLE,
    L_QUOTA_PROFILE,
    L_QUOTA_TREE_ID,
    ROOT_QUOTA,
    TRUE,
)


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


def parse(labels: Mapping[str, str]) -> QuotaLabels:
    return QuotaLabels(
        parent=labels.get(L_QUOTA_PARENT) or ROOT_QUOTA,
        is_parent=labels.get(L_QUOTA_IS_PARENT) == TRUE,
        allow_lent_resource=labels.get(L_QUOTA_ALLOW_LENT_RESOURCE) != FALSE,
        allow_force_update=labels.get(L_QUOTA_ALLOW_FORCE_UPDATE) == TRUE,
        tree_id=labels.get(L_QUOTA_TREE_ID, ""),
        is_tree_root=labels.get(L_QUOTA_IS_ROOT) == TRUE,
        ignore_default_tree=labels.get(L_QUOTA_IGNORE_DEFAULT_TREE) == TRUE,
        profile=labels.get(L_QUOTA_PROFILE, ""),
    )


def quota_of_pod(labels: Mapping[str, str]) -> str | None:
    """Return the quota that a pod names; None leaves it to its namespace and then to the default quota."""
    return labels.get(L_QUOTA_NAME) or None


def is_pod_preemptible(labels: Mapping[str, str]) -> bool:
    """Return whether the pod is preemptible; non-preemptible pods are counted against the quota's min."""
    return labels.get(L_QUOTA_PREEMPTIBLE) != FALSE
