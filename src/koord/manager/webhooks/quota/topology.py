"""The quota topology (which quotas exist, their parents and children, and the namespaces that they claim), and the
checks of an ElasticQuota by itself and in its place in it, in the words that users know.

The state is a function of two things only: the live objects, and the admitted writes that are not yet observed.
`handle` is the only mutator, and leaves at every step what a rebuild from those two would give. An admitted write hides
the live object until that object shows it, or until it expires: it may have failed after admission.

Topology checks expect the topology before the change; the quota is passed as it shall become.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.quota_codecs import pod_quota_name
from koord.api.koordinator.protocol import (
    A_QUOTA_ALLOCATED,
    A_QUOTA_GUARANTEED,
    A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS,
    A_QUOTA_SHARED_WEIGHT,
    ROOT_QUOTA,
)
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.policy.quota import NOT_CREATED, QuotaIndex, QuotaRecord, record_fields
from koord.values import resources as vector
from koord.values.quantity import Quantity
from koord.values.resources import Resources


class QuotaInfo(QuotaRecord, frozen=True, kw_only=True):
    """One ElasticQuota in the topology, with exact amounts, which messages show."""

    allow_force_update: bool = False
    min: Resources = {}
    max: Resources = {}
    guaranteed: Resources = {}
    allocated: Resources = {}

    @staticmethod
    def from_quota(quota: ElasticQuota) -> QuotaInfo:
        """Build it from the object. Raise QuantityError when min or max holds no quantity."""
        labels = quota_codecs.parse_quota_labels(quota.metadata.labels)
        return QuotaInfo(
            **record_fields(quota, labels),
            allow_force_update=labels.allow_force_update,
            min=vector.parse(quota.spec.min),
            max=vector.parse(quota.spec.max),
            guaranteed=_parse_published(quota, A_QUOTA_GUARANTEED),
            allocated=_parse_published(quota, A_QUOTA_ALLOCATED),
        )

    def has_same_spec(self, other: QuotaInfo) -> bool:
        """Return whether users asked for the same: the scheduler's figures and the object's age do not count."""
        return self._spec_only() == other._spec_only()

    def _spec_only(self) -> QuotaInfo:
        return msgspec.structs.replace(self, created=NOT_CREATED, guaranteed={}, allocated={})


def _parse_published(quota: ElasticQuota, key: str) -> Resources:
    """Parse the scheduler's figures; unwritten or unreadable ones are empty."""
    found = quota_codecs.parse_quota_resources(quota.metadata.annotations, key)
    return {} if found is None or isinstance(found, MalformedAnnotation) else vector.parse(found)


# Long enough for a slow watch, short enough that a write that failed elsewhere does not block a name for good.
PENDING_WRITE_TTL_S = 30.0


class QuotaObserved(msgspec.Struct, frozen=True):
    quota: QuotaInfo


class QuotaObjectDeleted(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class QuotaWriteAdmitted(msgspec.Struct, frozen=True):
    """A create or update passed validation at this time."""

    quota: QuotaInfo
    at: float


class QuotaDeleteAdmitted(msgspec.Struct, frozen=True):
    name: str
    at: float


class TimeElapsed(msgspec.Struct, frozen=True):
    now: float


TopologyEvent = QuotaObserved | QuotaObjectDeleted | QuotaWriteAdmitted | QuotaDeleteAdmitted | TimeElapsed


class _PendingWrite(msgspec.Struct, frozen=True):
    quota: QuotaInfo | None  # None: to be deleted
    until: float


class QuotaTopology(QuotaIndex[QuotaInfo]):
    def __init__(self) -> None:
        super().__init__()
        self._pending: dict[str, _PendingWrite] = {}

    @staticmethod
    def build(
        live: Iterable[QuotaInfo], admitted: Iterable[QuotaWriteAdmitted | QuotaDeleteAdmitted] = ()
    ) -> QuotaTopology:
        """Build the state from these objects and these open admissions."""
        topology = QuotaTopology()
        for quota in live:
            topology.handle(QuotaObserved(quota))
        for event in admitted:
            topology.handle(event)
        return topology

    # -- reading

    def ancestors(self, name: str) -> Iterator[QuotaInfo]:
        """Iterate from the parent upwards, as far as it is known; a cycle is walked once."""
        met = {name}
        quota = self._quotas.get(name)
        while quota is not None and quota.parent not in met:
            met.add(quota.parent)
            quota = self._quotas.get(quota.parent)
            if quota is not None:
                yield quota

    def quota_of(self, labels: Mapping[str, str], namespace: str, *, default: bool = True) -> str:
        """Return the name of a pod's quota, which need not exist. Without `default` only the label counts."""
        return self.quota_for((pod_quota_name(labels) or "", namespace), default=default)

    def is_parent(self, name: str) -> bool:
        quota = self._quotas.get(name)
        return quota is not None and quota.is_parent

    def tree_id(self, name: str) -> str:
        """Return the tree id; empty for quotas outside every tree and for unknown ones."""
        quota = self._quotas.get(name)
        return quota.tree if quota is not None else ""

    def to_json(self) -> dict[str, Any]:
        known = sorted({ROOT_QUOTA, *self._quotas, *self._children})
        return {
            "quotaInfoMap": {name: _quota_json(self._quotas[name]) for name in sorted(self._quotas)},
            "quotaHierarchyInfo": {name: sorted(self._children.get(name, ())) for name in known},
        }

    # -- changing

    def handle(self, event: TopologyEvent) -> None:
        match event:
            case QuotaObserved(quota):
                pending = self._pending.get(quota.name)
                if pending is not None and pending.quota is not None and pending.quota.has_same_spec(quota):
                    del self._pending[quota.name]
                self.upsert(quota)
            case QuotaObjectDeleted(namespace, name):
                self.remove(namespace, name)
                pending = self._pending.get(name)
                if pending is not None and pending.quota is None and name not in self._objects:
                    del self._pending[name]
                    self._refresh(name)
            case QuotaWriteAdmitted(quota, at):
                self._pending[quota.name] = _PendingWrite(quota, at + PENDING_WRITE_TTL_S)
                self._refresh(quota.name)
            case QuotaDeleteAdmitted(name, at):
                self._pending[name] = _PendingWrite(None, at + PENDING_WRITE_TTL_S)
                self._refresh(name)
            case TimeElapsed(now):
                for name in [name for name, pending in self._pending.items() if pending.until <= now]:
                    del self._pending[name]
                    self._refresh(name)

    def _effective_quota(self, name: str) -> QuotaInfo | None:
        pending = self._pending.get(name)
        return pending.quota if pending is not None else super()._effective_quota(name)


def _quota_json(quota: QuotaInfo) -> dict[str, Any]:
    return {
        "name": quota.name,
        "parentName": quota.parent,
        "isParent": quota.is_parent,
        "allowLentResource": quota.lends,
        "max": vector.to_wire(quota.max),
        "min": vector.to_wire(quota.min),
    }


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
