"""The checks of an ElasticQuota: by itself, and in its place in the topology, in the words that users know.

Topology checks expect the topology before the change; the quota is passed as it shall become.
"""

from __future__ import annotations

from koord.api.annotations import quota_resources
from koord.api.annotations.codec import Malformed
from koord.api.protocol import A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS, A_QUOTA_SHARED_WEIGHT
from koord.api.sigs_scheduling import ElasticQuota
from koord.manager.webhooks.quota.info import QuotaInfo
from koord.values import resources as vector
from koord.values.quantity import Quantity
from koord.values.resources import Resources


def fault_of(quota: ElasticQuota, info: QuotaInfo) -> str | None:
    """Return the first fault of the quota by itself: negative amounts, min above max, max below used; or None."""
    return (
        _negative(f"{info.name} quota.Spec.Max's value < 0, in dimensions :", info.max)
        or _negative(f"{info.name} quota.Spec.Min's value < 0, in dimensions :", info.min)
        or _weight_fault(quota)
        or _min_fault(info)
        or _used_fault(quota, info)
    )


def _negative(words: str, amounts: Resources) -> str | None:
    names = sorted(vector.negative_names(amounts))
    return f"{words}[{' '.join(names)}]" if names else None


def _weight_fault(quota: ElasticQuota) -> str | None:
    meta = quota.metadata
    if not meta.annotations.get(A_QUOTA_SHARED_WEIGHT):
        return None
    weights = quota_resources.parse(meta.annotations, A_QUOTA_SHARED_WEIGHT)
    if isinstance(weights, Malformed):
        return weights.reason
    words = f"{meta.name} quota.Annotation[{A_QUOTA_SHARED_WEIGHT}]'s value < 0, in dimension :"
    return _negative(words, vector.parse(weights or {}))


def _min_fault(info: QuotaInfo) -> str | None:
    for key, least in sorted(info.min.items()):
        most = info.max.get(key)
        if most is None:
            return f"resourceKey {key} of quota {info.name} is included in min, which is not included in max"
        if least > most:
            low, high = _pair(least, most)
            return f"resourceKey {key} of quota {info.name} min {low} > max {high}"
    return None


def _used_fault(quota: ElasticQuota, info: QuotaInfo) -> str | None:
    annotations = quota.metadata.annotations
    if not annotations.get(A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS):
        return None
    keys = quota_resources.max_strict_check_keys(annotations)
    if isinstance(keys, Malformed):
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
            high, taken = _pair(most, used[key])
            return f"resourceKey {key} of quota {info.name} max {high} < used {taken}"
    return None


def _pair(one: Quantity, other: Quantity) -> tuple[str, str]:
    """Format whole units, as these messages always had; exact where rounding would make the two look equal."""
    whole = one.value(), other.value()
    return (str(whole[0]), str(whole[1])) if whole[0] != whole[1] else (str(one), str(other))
