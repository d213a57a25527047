"""This module holds the codecs of eviction and preemption: costs, priorities, policies, reasons, soft
evictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from koord.api.annotations.codec import MalformedAnnotation, dump_json, parse_json
from koord.api.koordinator.protocol import (
    A_EVICT_REASON,
    A_EVICT_TRIGGER,
    A_EVICTION_COST,
    A_EVICTION_POLICY,
    A_EVICTION_PRIORITY,
    A_SOFT_EVICTION,
    EVICT_REASON_NOT_SET,
    L_DISABLE_PREEMPTIBLE,
    L_PREEMPTION_POLICY,
    TRUE,
)
from koord.api.kubernetes.meta import DeleteOptions
from koord.api.model import Submodel
from koord.values.go_strconv import parse_decimal_int


def parse_evict_reason(annotations: Mapping[str, str]) -> str:
    """Return why a migration job exists: the stated reason, else the plugin that asked, else NotSet."""
    return annotations.get(A_EVICT_REASON) or annotations.get(A_EVICT_TRIGGER) or EVICT_REASON_NOT_SET


NEVER_EVICT_COST = 2**31 - 1


def parse_eviction_cost(annotations: Mapping[str, str]) -> int | MalformedAnnotation:
    """Parse the eviction cost: lower goes first, missing is 0.

    A plus sign and leading zeros are malformed, so that equal costs have one text.
    """
    text = annotations.get(A_EVICTION_COST)
    if text is None:
        return 0
    if text == "0" or (text and text[0] in "-123456789"):
        value = parse_decimal_int(text, bits=32)
        if value is not None:
            return value
    return MalformedAnnotation(A_EVICTION_COST, f"{text!r} is not a 32-bit integer without plus sign and leading zeros")


def dump_eviction_cost(value: int) -> str:
    return str(value)


def eviction_cost_or_zero(annotations: Mapping[str, str]) -> int:
    """Return the eviction cost for sorting, where a malformed one counts as 0."""
    value = parse_eviction_cost(annotations)
    return 0 if isinstance(value, MalformedAnnotation) else value


def parse_eviction_policy(annotations: Mapping[str, str]) -> tuple[str, ...] | MalformedAnnotation | None:
    """Parse koordinator.sh/eviction-policy: the koordlet features that may evict this pod."""
    return parse_json(annotations, A_EVICTION_POLICY, tuple[str, ...])


def dump_eviction_policy(features: Sequence[str]) -> str:
    return dump_json(features)


def allows_eviction_by(annotations: Mapping[str, str], feature: str) -> bool:
    """Return whether a koordlet feature may evict the pod.

    Without annotation every feature may; with a malformed one none may, which is the safe side for the pod.
    """
    allowed = parse_eviction_policy(annotations)
    if allowed is None:
        return True
    return not isinstance(allowed, MalformedAnnotation) and feature in allowed


def parse_eviction_priority(annotations: Mapping[str, str]) -> int:
    """Parse the eviction priority: lower goes first; missing and unreadable are 0, as the protocol has it."""
    return parse_decimal_int(annotations.get(A_EVICTION_PRIORITY, ""), bits=32) or 0


def dump_eviction_priority(value: int) -> str:
    return str(value)


class SoftEviction(Submodel, frozen=True, kw_only=True):
    """SoftEviction is the descheduler's request to an outside operator to move a pod."""

    timestamp: datetime | None = None
    delete_options: DeleteOptions | None = None
    initiator: str = ""
    reason: str = ""


def parse_soft_eviction(annotations: Mapping[str, str]) -> SoftEviction | MalformedAnnotation | None:
    return parse_json(annotations, A_SOFT_EVICTION, SoftEviction)


def dump_soft_eviction(value: SoftEviction) -> str:
    """Format the request to an outside operator to move a pod. Kubernetes keeps whole seconds."""
    at = value.timestamp
    return dump_json(value if at is None else msgspec.structs.replace(value, timestamp=at.replace(microsecond=0)))


PREEMPT_NEVER = "Never"
PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"


def pod_preemption_policy(labels: Mapping[str, str]) -> str:
    """Return what the transformer writes into spec.preemptionPolicy: a known value, else Never."""
    stated = labels.get(L_PREEMPTION_POLICY)
    return stated if stated in (PREEMPT_NEVER, PREEMPT_LOWER_PRIORITY) else PREEMPT_NEVER


def is_preemptible(labels: Mapping[str, str]) -> bool:
    """Return whether reservations and gangs may take this pod as a victim."""
    return labels.get(L_DISABLE_PREEMPTIBLE) != TRUE
