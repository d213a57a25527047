"""Gangs: which one a pod is in, and the settings that pods or a PodGroup state for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.api.annotations.codec import Malformed, read, written
from koord.api.annotations.number import decimal
from koord.api.protocol import (
    A_GANG_GROUPS,
    A_GANG_MATCH_POLICY,
    A_GANG_MIN_AVAILABLE,
    A_GANG_MODE,
    A_GANG_NAME,
    A_GANG_TOTAL_NUMBER,
    A_GANG_WAITING_TIME,
    A_POD_GROUP_MATCH_POLICY_ALIAS,
    L_POD_GROUP,
    L_POD_GROUP_MIN_AVAILABLE_DEPRECATED,
    L_POD_GROUP_NAME_DEPRECATED,
)
from koord.values import duration

STRICT = "Strict"
NON_STRICT = "NonStrict"

ONLY_WAITING = "only-waiting"
WAITING_AND_RUNNING = "waiting-and-running"
ONCE_SATISFIED = "once-satisfied"
MATCH_POLICIES = (ONLY_WAITING, WAITING_AND_RUNNING, ONCE_SATISFIED)


def name_of_pod(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    """The gang's name; the pod's namespace completes its id."""
    return labels.get(L_POD_GROUP) or labels.get(L_POD_GROUP_NAME_DEPRECATED) or annotations.get(A_GANG_NAME) or None


def is_from_pod_group(labels: Mapping[str, str]) -> bool:
    """Such a gang takes all its settings from a PodGroup object and exists only once that does."""
    return bool(labels.get(L_POD_GROUP))


def gang_id(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


def min_available(labels: Mapping[str, str], annotations: Mapping[str, str]) -> int | Malformed | None:
    """How many members must fit at once. None and Malformed alike leave the gang waiting for a pod that knows."""
    key, text = L_POD_GROUP_MIN_AVAILABLE_DEPRECATED, labels.get(L_POD_GROUP_MIN_AVAILABLE_DEPRECATED)
    if not text:
        key, text = A_GANG_MIN_AVAILABLE, annotations.get(A_GANG_MIN_AVAILABLE)
    if text is None:
        return None
    value = decimal(text, bits=32)
    return Malformed(key, f"{text!r} is not a 32-bit integer") if value is None else value


def total_number(annotations: Mapping[str, str], minimum: int) -> int:
    """The expected number of members, never below the minimum."""
    return max(decimal(annotations.get(A_GANG_TOTAL_NUMBER, ""), bits=32) or 0, minimum)


def mode(annotations: Mapping[str, str]) -> str:
    """Strict unless NonStrict is spelled out."""
    return NON_STRICT if annotations.get(A_GANG_MODE) == NON_STRICT else STRICT


def match_policy(annotations: Mapping[str, str], default: str = ONCE_SATISFIED) -> str:
    """The policy of the first key that is not empty, if it is a known one."""
    stated = annotations.get(A_GANG_MATCH_POLICY) or annotations.get(A_POD_GROUP_MATCH_POLICY_ALIAS)
    return stated if stated in MATCH_POLICIES else default


def groups(annotations: Mapping[str, str], own_id: str) -> tuple[str, ...]:
    """The gangs that stand and fall together, sorted; alone when nothing readable is stated."""
    found = read(annotations, A_GANG_GROUPS, tuple[str, ...])
    return (own_id,) if not found or isinstance(found, Malformed) else tuple(sorted(found))


def dump_groups(ids: Sequence[str]) -> str:
    return written(ids)


def group_id(ids: Sequence[str]) -> str:
    return ",".join(sorted(ids))


def waiting_time(annotations: Mapping[str, str]) -> int | None:
    """The permit timeout in nanoseconds. Missing, unreadable or not above zero is None: the default holds."""
    try:
        stated = duration.parse(annotations.get(A_GANG_WAITING_TIME, ""))
    except duration.DurationError:
        return None
    return stated if stated > 0 else None
