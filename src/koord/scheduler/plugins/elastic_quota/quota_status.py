"""The published status of an ElasticQuota, and whether it has to be written again."""

from __future__ import annotations

from typing import Any

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import (
    A_QUOTA_ALLOCATED,
    A_QUOTA_CHILD_REQUEST,
    A_QUOTA_GUARANTEED,
    A_QUOTA_NON_PREEMPTIBLE_REQUEST,
    A_QUOTA_NON_PREEMPTIBLE_USED,
    A_QUOTA_REQUEST,
    A_QUOTA_RUNTIME,
    ROOT_QUOTA,
)
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from koord.scheduler.plugins.elastic_quota.tree import QuotaNode
from koord.values.amounts import Amounts, Counts, nonzero, to_resource_list


def quota_figures(manager: GroupQuotaManager, quota: str) -> tuple[dict[str, Amounts], Amounts] | None:
    """Return the amounts by annotation, and what is used; None for a quota that does not exist."""
    trees = manager.trees
    root = trees.trees[""].root
    quota_node: QuotaNode | None = root if quota == ROOT_QUOTA else trees.node(quota)
    if quota_node is None:
        return None
    if quota_node is root:
        runtime: Counts = trees.trees[""].total
    else:
        runtime = (
            {} if quota in trees.builtin_nodes else manager.runtime(quota)
        )  # built-in groups have a max and no runtime
    annotations = {
        A_QUOTA_RUNTIME: dict(runtime),
        A_QUOTA_REQUEST: dict(quota_node.request),
        A_QUOTA_CHILD_REQUEST: dict(quota_node.child_request),
        A_QUOTA_ALLOCATED: dict(quota_node.allocated),
        A_QUOTA_GUARANTEED: dict(quota_node.guaranteed),
        A_QUOTA_NON_PREEMPTIBLE_REQUEST: dict(quota_node.non_preemptible_request),
        A_QUOTA_NON_PREEMPTIBLE_USED: dict(quota_node.non_preemptible_used),
    }
    return annotations, dict(quota_node.used)


def decide_status_patch(live: ElasticQuota, manager: GroupQuotaManager) -> dict[str, Any] | MalformedAnnotation | None:
    """Return the merge patch that brings an object up to date; None when it is.

    A zero equals an absent value, so an idle quota is never written. Figures that cannot be parsed belong to
    another writer: the object is left alone.
    """
    found = quota_figures(manager, live.metadata.name)
    if found is None:
        return None
    annotations, used = found
    patch: dict[str, Any] = {}
    for key, now in annotations.items():
        shown = quota_codecs.parse_quota_resources(live.metadata.annotations, key)
        if isinstance(shown, MalformedAnnotation):
            return shown
        before = resource_amounts(shown or {})
        if nonzero(before) != nonzero(now):
            patch.setdefault("metadata", {}).setdefault("annotations", {})[key] = quota_codecs.dump_quota_resources(
                to_resource_list(dict.fromkeys(before, 0) | now)
            )
    before = resource_amounts(live.status.used)
    if nonzero(before) != nonzero(used):
        patch["status"] = {"used": to_resource_list(dict.fromkeys(before, 0) | used)}
    return patch or None
