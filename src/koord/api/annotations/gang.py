"""This module holds the codecs of gangs: which one a pod is in, the settings that pods or a PodGroup state for
it, and its network topology.
"""

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
    """Return the name of a pod's gang; the pod's namespace completes its id."""
    return labels.get(L_POD_GROUP) or labels.get(L_POD_GROUP_NAME_DEPRECATED) or annotations.get(A_GANG_NAME) or None


def is_from_pod_group(labels: Mapping[str, str]) -> bool:
    """Return whether the gang takes all its settings from a PodGroup object and exists only once that does."""
    return bool(labels.get(L_POD_GROUP))


def gang_id(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


def min_available(labels: Mapping[str, str], annotations: Mapping[str, str]) -> int | Malformed | None:
    """Return how many members must fit at once. None and MalformedAnnotation alike leave the gang waiting for a
    pod that states it.
    """
    key, text = L_POD_GROUP_MIN_AVAILABLE_DEPRECATED, labels.get(L_POD_GROUP_MIN_AVAILABLE_DEPRECATED)
    if not text:
        key, text = A_GANG_MIN_AVAILABLE, annotations.get(A_GANG_MIN_AVAILABLE)
    if text is None:
        return None
    value = decimal(text, bits=32)
    return Malformed(key, f"{text!r} is not a 32-bit integer") if value is None else value


def total_number(annotations: Mapping[str, str], minimum: int) -> int:
    """Return the expected number of members, never below the minimum."""
    return max(decimal(annotations.get(A_GANG_TOTAL_NUMBER, ""), bits=32) or 0, minimum)


def mode(annotations: Mapping[str, str]) -> str:
    """Return the gang's mode: Strict unless NonStrict is spelled out."""
    return NON_STRICT if annotations.get(A_GANG_MODE) == NON_STRICT else STRICT


def match_policy(annotations: Mapping[str, str], default: str = ONCE_SATISFIED) -> str:
    """Return the match policy of the first key that is not empty, if it is a known one."""
    stated = annotations.get(A_GANG_MATCH_POLICY) or annotations.get(A_POD_GROUP_MATCH_POLICY_ALIAS)
    return stated if stated in MATCH_POLICIES else default


def groups(annotations: Mapping[str, str], own_id: str) -> tuple[str, ...]:
    """Return the ids of the gangs that are scheduled together, sorted; the own id alone when nothing readable is
    stated.
    """
    found = read(annotations, A_GANG_GROUPS, tuple[str, ...])
    return (own_id,) if not found or isinstance(found, Malformed) else tuple(sorted(found))


def dump_groups(ids: Sequence[str]) -> str:
    return written(ids)


def group_id(ids: Sequence[str]) -> str:
    return ",".join(sorted(ids))


def waiting_time(annotations: Mapping[str, str]) -> int | None:
    """Return the permit timeout in nanoseconds; None, which means the default, when missing, unreadable or not
    positive.
    """
    try:
        stated = duration.parse(annotations.get(A_GANG_WAITING_TIME, ""))
    except duration.DurationError:
        return None
    return stated if stated > 0 else None
