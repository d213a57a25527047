"""Why a pod may not start under its quota: the text that users know, and the numbers behind it."""

from __future__ import annotations

from typing import Literal

import msgspec

from koord.policy.quota.amount import Counts, names, text

Kind = Literal["quota", "parent", "non-preemptible", "unknown", "adrift"]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """`limit`, `used` and `requested` are those of `quota`, which is an ancestor's name when kind is parent."""

    kind: Kind
    text: str
    quota: str
    limit: Counts = {}
    used: Counts = {}
    requested: Counts = {}
    exceeded: tuple[str, ...] = ()


def unknown(quota: str) -> Refusal:
    return Refusal(kind="unknown", text=f"Could not find the specified ElasticQuota, quotaName: {quota}", quota=quota)


def adrift(quota: str, why: str) -> Refusal:
    return Refusal(kind="adrift", text=f"ElasticQuota {quota} has no place in its tree: {why}", quota=quota)


def insufficient(quota: str, limit: Counts, used: Counts, requested: Counts, exceeded: tuple[str, ...]) -> Refusal:
    said = (
        f"Insufficient quotas, quotaName: {quota}, runtime: {text(limit)}, used: {text(used)}, "
        f"pod's request: {text(requested)}, exceedDimensions: {names(exceeded)}"
    )
    return Refusal(kind="quota", text=said, quota=quota, limit=limit, used=used, requested=requested, exceeded=exceeded)


def insufficient_above(
    path: tuple[str, ...], what: str, limit: Counts, used: Counts, requested: Counts, exceeded: tuple[str, ...]
) -> Refusal:
    """`path` leads from the ancestor without room down to the pod's quota; `what` is runtime or max."""
    said = (
        f"Insufficient quotas, quotaNameTopo: {names(path)}, {what}: {text(limit)}, used: {text(used)}, "
        f"pod's request: {text(requested)}, exceedDimensions: {names(exceeded)}"
    )
    return Refusal(
        kind="parent", text=said, quota=path[0], limit=limit, used=used, requested=requested, exceeded=exceeded
    )


def insufficient_for_good(
    quota: str, limit: Counts, used: Counts, requested: Counts, exceeded: tuple[str, ...]
) -> Refusal:
    """A non-preemptible pod can never be asked to leave, so only what is guaranteed can carry it."""
    said = (
        f"Insufficient non-preemptible quotas, quotaName: {quota}, min: {text(limit)}, "
        f"nonPreemptibleUsed: {text(used)}, pod's request: {text(requested)}, exceedDimensions: {names(exceeded)}"
    )
    return Refusal(
        kind="non-preemptible", text=said, quota=quota, limit=limit, used=used, requested=requested, exceeded=exceeded
    )
