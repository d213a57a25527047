"""Check whether a pod may start under its quota; a refusal carries the numbers and Koordinator's text.

The refusal is one of the events that change quotas, which are defined here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal, TypeAlias

import msgspec

from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition, QuotaPod, QuotaRules
from koord.scheduler.plugins.elastic_quota.tree import QuotaNode, QuotaPath
from koord.values.resources import (
    Amounts,
    Counts,
    add_amounts,
    exceeded_resources,
    format_amounts,
    format_names,
    keep_resources,
)

QuotaRefusalKind = Literal["quota", "parent", "non-preemptible", "unknown", "adrift"]


class QuotaRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """A refused pod. `limit` and `used` are those of `quota`: for kind parent an ancestor of the pod's quota.

    A non-preemptible pod can never be evicted, so only guaranteed amounts can carry it: its limit is min.
    """

    kind: QuotaRefusalKind
    quota: str
    limit: Counts = {}
    used: Counts = {}
    requested: Counts = {}
    exceeded: tuple[str, ...] = ()
    path: tuple[str, ...] = ()  # from the exceeded ancestor down to the pod's quota
    limited_by: Literal["runtime", "max"] = "runtime"
    why: str = ""

    @property
    def message(self) -> str:
        match self.kind:
            case "unknown":
                return f"Could not find the specified ElasticQuota, quotaName: {self.quota}"
            case "adrift":
                return f"ElasticQuota {self.quota} has no place in its tree: {self.why}"
            case "non-preemptible":
                start = (
                    f"Insufficient non-preemptible quotas, quotaName: {self.quota}, min: {format_amounts(self.limit)}"
                )
                used = f"nonPreemptibleUsed: {format_amounts(self.used)}"
            case "parent":
                start = (
                    f"Insufficient quotas, quotaNameTopo: {format_names(self.path)}, "
                    f"{self.limited_by}: {format_amounts(self.limit)}"
                )
                used = f"used: {format_amounts(self.used)}"
            case "quota":
                start = f"Insufficient quotas, quotaName: {self.quota}, runtime: {format_amounts(self.limit)}"
                used = f"used: {format_amounts(self.used)}"
        wanted = f"pod's request: {format_amounts(self.requested)}, exceedDimensions: {format_names(self.exceeded)}"
        return f"{start}, {used}, {wanted}"


UsedBy = Callable[[QuotaNode], Amounts]


def check_admission(
    rules: QuotaRules,
    home_node: QuotaNode,
    levels: QuotaPath,
    requested: Amounts,
    used_by: UsedBy,
    fixed: Callable[[], Amounts] | None = None,
) -> QuotaRefusal | None:
    """Check the pod. `levels` lead to its quota and are empty for built-in groups, whose limit is their max.

    `fixed` is what non-preemptible pods of the quota use; None for a preemptible pod.
    """
    quota = home_node.definition
    limit: Counts = levels[-1][1] if rules.limits_by_runtime and levels else quota.max
    used = used_by(home_node)
    exceeded = exceeded_resources(add_amounts(used, requested), limit)
    if exceeded:
        return QuotaRefusal(
            kind="quota", quota=home_node.name, limit=limit, used=used, requested=requested, exceeded=exceeded
        )
    if fixed is not None:
        held = fixed()
        exceeded = exceeded_resources(add_amounts(held, requested), quota.min)
        if exceeded:
            return QuotaRefusal(
                kind="non-preemptible",
                quota=home_node.name,
                limit=quota.min,
                used=held,
                requested=requested,
                exceeded=exceeded,
            )
    if len(levels) < 2:
        return None
    if rules.check_parents:
        return _check_ancestors(
            rules, levels, "runtime" if rules.limits_by_runtime else "max", requested, requested, used_by
        )
    # What is within min is promised, even when a sibling took more than its share. What is borrowed is not, and must
    # not lift an ancestor over its max.
    borrowed = [name for name, amount in requested.items() if used.get(name, 0) + amount > quota.min.get(name, 0)]
    return _check_ancestors(rules, levels, "max", requested, borrowed, used_by)


def _check_ancestors(
    rules: QuotaRules,
    levels: QuotaPath,
    what: Literal["runtime", "max"],
    requested: Amounts,
    names: Collection[str],
    used_by: UsedBy,
) -> QuotaRefusal | None:
    """Return the refusal of the nearest ancestor without room for these resources of the request."""
    for depth in range(len(levels) - 2, -1, -1) if names else ():
        above, entitled = levels[depth]
        limit = keep_resources(entitled if what == "runtime" else above.definition.max, names)
        used = keep_resources(used_by(above), requested)
        exceeded = exceeded_resources(add_amounts(used, requested), limit)
        if exceeded:
            return QuotaRefusal(
                kind="parent",
                quota=above.name,
                path=tuple(quota_node.name for quota_node, _ in levels[depth:]),
                limited_by="runtime" if rules.check_parents else "max",  # upstream's word for either is runtime
                limit=limit,
                used=used,
                requested=requested,
                exceeded=exceeded,
            )
    return None


class QuotaUpdated(msgspec.Struct, frozen=True):
    """The watch shows the quota, new or changed."""

    quota: QuotaDefinition


class QuotaDeleted(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class QuotaPodUpdated(msgspec.Struct, frozen=True):
    """The pod exists, new or changed. A pod that has ended is removed instead."""

    pod: QuotaPod


class QuotaPodAssumed(msgspec.Struct, frozen=True):
    """A node was chosen for the pod and no API server confirmed it yet (assume)."""

    uid: str


class QuotaPodForgotten(msgspec.Struct, frozen=True):
    """The assumed node was given up again (forget)."""

    uid: str


class QuotaPodRemoved(msgspec.Struct, frozen=True):
    """The pod ended or was deleted."""

    uid: str


class ClusterTotalChanged(msgspec.Struct, frozen=True):
    """The total of all nodes changed."""

    total: Counts


class QuotaPodRefused(msgspec.Struct, frozen=True):
    """A pod was refused. It is only remembered, for the quota's report."""

    pod: str  # namespace/name
    quota: str
    refusal: QuotaRefusal
    at: float


QuotaEvent: TypeAlias = (
    QuotaUpdated
    | QuotaDeleted
    | QuotaPodUpdated
    | QuotaPodAssumed
    | QuotaPodForgotten
    | QuotaPodRemoved
    | ClusterTotalChanged
    | QuotaPodRefused
)
