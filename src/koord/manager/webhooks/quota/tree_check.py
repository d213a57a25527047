"""Whether a quota fits its place: parent, tree, resource keys, and the sums of guarantees above and below it.

Expects what the topology knew before the change; the quota itself is passed as it shall become. Messages are the ones
that users know, in the order in which they are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from koord.api.protocol import ROOT_QUOTA
from koord.manager.webhooks.quota.info import QuotaInfo
from koord.manager.webhooks.quota.topology import Topology
from koord.values import resources as vector
from koord.values.quantity import Quantity
from koord.values.resources import Resources

_KEYS = "failed to check sub and parent group quotaKey, err: checkSubAndParentGroupQuotaKey failed: "


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The feature gates that the checks read."""

    guarantee_usage: bool = False  # ElasticQuotaGuaranteeUsage
    update_resource_key: bool = False  # ElasticQuotaEnableUpdateResourceKey


def fault_of(
    quota: QuotaInfo, old: QuotaInfo | None, tree: Topology, rules: Rules, has_pods: Callable[[], bool]
) -> str | None:
    """Return the first fault of the quota's place: parent, tree, resource keys and sums of guarantees; or None.

    `old` is None for a new quota; `has_pods` is only called when a quota becomes a parent.
    """
    if quota.name == ROOT_QUOTA:
        return None
    fault = _parenthood_fault(quota, old, tree, has_pods) or _tree_id_fault(quota, old, tree)
    if fault:
        return fault
    if quota.parent == ROOT_QUOTA and not quota.is_parent:
        return None
    return (
        _parent_fault(quota, tree)
        or _key_fault(quota, tree, rules)
        or _min_sum_fault(quota, tree)
        or (_guarantee_fault(quota, tree) if rules.guarantee_usage else None)
    )


def _parenthood_fault(
    quota: QuotaInfo, old: QuotaInfo | None, tree: Topology, has_pods: Callable[[], bool]
) -> str | None:
    if old is None or old.is_parent == quota.is_parent:
        return None
    if not quota.is_parent and tree.children(quota.name):
        return f"quota has children, isParent is forbidden to modify as false, quotaName:{quota.name}"
    if quota.is_parent and has_pods():
        return f"quota has bound pods, isParent is forbidden to modify as true, quotaName: {quota.name}"
    return None


def _tree_id_fault(quota: QuotaInfo, old: QuotaInfo | None, tree: Topology) -> str | None:
    name, mine = quota.name, quota.tree_id
    if old is not None and old.tree_id != mine:
        return f"{name} tree id changed [{old.tree_id}] vs [{mine}]"
    parent = tree.get(quota.parent) if quota.parent != ROOT_QUOTA else None
    if parent is not None and parent.tree_id != mine:
        return f"{name} tree id is different from parent {parent.name}, [{mine}] vs [{parent.tree_id}]"
    for child in tree.children(name):
        if child.tree_id != mine:
            return f"{name} tree id is different from child {child.name}, [{mine}] vs [{child.tree_id}]"
    return None


def _parent_fault(quota: QuotaInfo, tree: Topology) -> str | None:
    if quota.parent == ROOT_QUOTA:
        return None
    parent = tree.get(quota.parent)
    if parent is None:
        return f"{quota.name} has parentName {quota.parent} but not find parentInfo in quotaInfoMap"
    if not parent.is_parent:
        return f"{quota.name} has parentName {quota.parent} but the parentQuotaInfo's IsParent is false"
    if parent.name == quota.name or any(above.name == quota.name for above in tree.ancestors(parent.name)):
        # Upstream lets a circle in; whatever walks up the tree would then never arrive.
        return f"{quota.name} has parentName {quota.parent} but {quota.parent} is {quota.name} itself or below it"
    return None


def _key_fault(quota: QuotaInfo, tree: Topology, rules: Rules) -> str | None:
    parents = () if quota.parent == ROOT_QUOTA else (tree.quotas[quota.parent],)
    for other in (*parents, *tree.children(quota.name)):
        upper, lower = (other, quota) if other in parents else (quota, other)
        if rules.update_resource_key:
            if not lower.max.keys() <= upper.max.keys():
                return f"{_KEYS}{lower.name}'s max keys are not all included in {upper.name}'s"
        elif lower.max.keys() != upper.max.keys():
            return f"{_KEYS}{other.name}'s max keys are not the same with {quota.name}'s"
        if not lower.min.keys() <= upper.min.keys():
            return f"{_KEYS}{lower.name}'s min keys are not all included in {upper.name}'s"
    return None


def _min_sum_fault(quota: QuotaInfo, tree: Topology) -> str | None:
    if quota.allow_force_update or quota.is_tree_root:
        return None
    if quota.parent != ROOT_QUOTA:
        siblings = [other.min for other in tree.children(quota.parent) if other.name != quota.name]
        if _above(_sum([quota.min, *siblings]), tree.quotas[quota.parent].min):
            return f"checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: {quota.parent}"
    if _above(_sum(child.min for child in tree.children(quota.name)), quota.min):
        return f"checkMinQuotaSum all children's MinQuota > current MinQuota, current: {quota.name}"
    return None


def _guarantee_fault(quota: QuotaInfo, tree: Topology) -> str | None:
    """Climb until some ancestor already guarantees what the whole level below it would then need."""
    if quota.allow_force_update or not quota.tree_id or quota.is_tree_root or not _above(quota.min, quota.guaranteed):
        return None
    need = vector.maximum(quota.min, quota.guaranteed)
    below, parent_name = quota.name, quota.parent
    for _ in range(len(tree.quotas) + 1):  # a circle that was let in elsewhere must not hold us
        parent = tree.get(parent_name)
        if parent is None:
            return f"parent {parent_name} not found"
        others = (child.guaranteed for child in tree.children(parent_name) if child.name != below)
        need = vector.maximum(parent.min, _sum([need, *others]))
        if not _above(need, parent.guaranteed):
            return None
        if parent.is_tree_root or parent.parent in ("", ROOT_QUOTA):
            return f"tree root quota {parent.name} can't guarantee for min {quota.name}"
        below, parent_name = parent.name, parent.parent
    return f"parent {parent_name} not found"


def _sum(vectors: Iterable[Resources]) -> Resources:
    total: dict[str, Quantity] = {}
    for one in vectors:
        total = vector.add(total, one)
    return total


def _above(a: Resources, b: Resources) -> bool:
    """Return whether any resource of a - b is positive; what b lacks counts as zero."""
    return any(amount.sign() > 0 for amount in vector.subtract(a, b).values())
