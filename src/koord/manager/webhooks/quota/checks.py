"""The checks of an ElasticQuota: by itself, and in its place in the topology, in the words that users know.

Topology checks expect the topology before the change; the quota is passed as it shall become.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS, A_QUOTA_SHARED_WEIGHT, ROOT_QUOTA
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.manager.webhooks.quota.topology import QuotaInfo, QuotaTopology
from koord.values import resources as vector
from koord.values.quantity import Quantity
from koord.values.resources import Resources


def spec_fault(quota: ElasticQuota, info: QuotaInfo) -> str | None:
    """Return the first fault of the quota by itself: negative amounts, min above max, max below used; or None."""
    return (
        _negative_fault(f"{info.name} quota.Spec.Max's value < 0, in dimensions :", info.max)
        or _negative_fault(f"{info.name} quota.Spec.Min's value < 0, in dimensions :", info.min)
        or _weight_fault(quota)
        or _min_fault(info)
        or _used_fault(quota, info)
    )


def _negative_fault(words: str, amounts: Resources) -> str | None:
    names = sorted(vector.negative_names(amounts))
    return f"{words}[{' '.join(names)}]" if names else None


def _weight_fault(quota: ElasticQuota) -> str | None:
    meta = quota.metadata
    if not meta.annotations.get(A_QUOTA_SHARED_WEIGHT):
        return None
    weights = quota_codecs.parse_quota_resources(meta.annotations, A_QUOTA_SHARED_WEIGHT)
    if isinstance(weights, MalformedAnnotation):
        return weights.reason
    words = f"{meta.name} quota.Annotation[{A_QUOTA_SHARED_WEIGHT}]'s value < 0, in dimension :"
    return _negative_fault(words, vector.parse(weights or {}))


def _min_fault(info: QuotaInfo) -> str | None:
    for key, least in sorted(info.min.items()):
        most = info.max.get(key)
        if most is None:
            return f"resourceKey {key} of quota {info.name} is included in min, which is not included in max"
        if least > most:
            low, high = _format_pair(least, most)
            return f"resourceKey {key} of quota {info.name} min {low} > max {high}"
    return None


def _used_fault(quota: ElasticQuota, info: QuotaInfo) -> str | None:
    annotations = quota.metadata.annotations
    if not annotations.get(A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS):
        return None
    keys = quota_codecs.quota_max_strict_check_keys(annotations)
    if isinstance(keys, MalformedAnnotation):
        return (
            f"{info.name} quota.Annotation[{A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS}]'s value is invalid: {keys.reason}"
        )
    used = vector.parse(quota.status.used)
    for key in keys or ():
        if key not in used:
            continue
        most = info.max.get(key)
        if most is None:
            return (
                f"resourceKey {key} of quota {info.name} is included in used,"
                " which is not included in max but should check max >= used"
            )
        if most < used[key]:
            high, taken = _format_pair(most, used[key])
            return f"resourceKey {key} of quota {info.name} max {high} < used {taken}"
    return None


def _format_pair(one: Quantity, other: Quantity) -> tuple[str, str]:
    """Format whole units, as these messages always had; exact where rounding would make the two look equal."""
    whole = one.value(), other.value()
    return (str(whole[0]), str(whole[1])) if whole[0] != whole[1] else (str(one), str(other))


_KEY_FAULT_PREFIX = "failed to check sub and parent group quotaKey, err: checkSubAndParentGroupQuotaKey failed: "


class QuotaCheckGates(msgspec.Struct, frozen=True, kw_only=True):
    guarantee_usage: bool = False  # ElasticQuotaGuaranteeUsage
    update_resource_key: bool = False  # ElasticQuotaEnableUpdateResourceKey


def topology_fault(
    quota: QuotaInfo, old: QuotaInfo | None, tree: QuotaTopology, rules: QuotaCheckGates, has_pods: Callable[[], bool]
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
    quota: QuotaInfo, old: QuotaInfo | None, tree: QuotaTopology, has_pods: Callable[[], bool]
) -> str | None:
    if old is None or old.is_parent == quota.is_parent:
        return None
    if not quota.is_parent and tree.children(quota.name):
        return f"quota has children, isParent is forbidden to modify as false, quotaName:{quota.name}"
    if quota.is_parent and has_pods():
        return f"quota has bound pods, isParent is forbidden to modify as true, quotaName: {quota.name}"
    return None


def _tree_id_fault(quota: QuotaInfo, old: QuotaInfo | None, tree: QuotaTopology) -> str | None:
    name, mine = quota.name, quota.tree
    if old is not None and old.tree != mine:
        return f"{name} tree id changed [{old.tree}] vs [{mine}]"
    parent = tree.get(quota.parent) if quota.parent != ROOT_QUOTA else None
    if parent is not None and parent.tree != mine:
        return f"{name} tree id is different from parent {parent.name}, [{mine}] vs [{parent.tree}]"
    for child in tree.children(name):
        if child.tree != mine:
            return f"{name} tree id is different from child {child.name}, [{mine}] vs [{child.tree}]"
    return None


def _parent_fault(quota: QuotaInfo, tree: QuotaTopology) -> str | None:
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


def _key_fault(quota: QuotaInfo, tree: QuotaTopology, rules: QuotaCheckGates) -> str | None:
    parents = () if quota.parent == ROOT_QUOTA else (tree.quotas[quota.parent],)
    for other in (*parents, *tree.children(quota.name)):
        upper, lower = (other, quota) if other in parents else (quota, other)
        if rules.update_resource_key:
            if not lower.max.keys() <= upper.max.keys():
                return f"{_KEY_FAULT_PREFIX}{lower.name}'s max keys are not all included in {upper.name}'s"
        elif lower.max.keys() != upper.max.keys():
            return f"{_KEY_FAULT_PREFIX}{other.name}'s max keys are not the same with {quota.name}'s"
        if not lower.min.keys() <= upper.min.keys():
            return f"{_KEY_FAULT_PREFIX}{lower.name}'s min keys are not all included in {upper.name}'s"
    return None


def _min_sum_fault(quota: QuotaInfo, tree: QuotaTopology) -> str | None:
    if quota.allow_force_update or quota.is_tree_root:
        return None
    if quota.parent != ROOT_QUOTA:
        siblings = [other.min for other in tree.children(quota.parent) if other.name != quota.name]
        if _exceeds(vector.total([quota.min, *siblings]), tree.quotas[quota.parent].min):
            return f"checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: {quota.parent}"
    if _exceeds(vector.total(child.min for child in tree.children(quota.name)), quota.min):
        return f"checkMinQuotaSum all children's MinQuota > current MinQuota, current: {quota.name}"
    return None


def _guarantee_fault(quota: QuotaInfo, tree: QuotaTopology) -> str | None:
    """Climb until some ancestor already guarantees what the whole level below it would then need."""
    if quota.allow_force_update or not quota.tree or quota.is_tree_root or not _exceeds(quota.min, quota.guaranteed):
        return None
    need = vector.maximum(quota.min, quota.guaranteed)
    below, parent_name = quota.name, quota.parent
    for _ in range(len(tree.quotas) + 1):  # a circle that was let in elsewhere must not hold us
        parent = tree.get(parent_name)
        if parent is None:
            return f"parent {parent_name} not found"
        others = (child.guaranteed for child in tree.children(parent_name) if child.name != below)
        need = vector.maximum(parent.min, vector.total([need, *others]))
        if not _exceeds(need, parent.guaranteed):
            return None
        if parent.is_tree_root or parent.parent in ("", ROOT_QUOTA):
            return f"tree root quota {parent.name} can't guarantee for min {quota.name}"
        below, parent_name = parent.name, parent.parent
    return f"parent {parent_name} not found"


def _exceeds(a: Resources, b: Resources) -> bool:
    """Return whether any resource of a - b is positive; what b lacks counts as zero."""
    return any(amount.sign() > 0 for amount in vector.subtract(a, b).values())
