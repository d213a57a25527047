"""The two core-scheduling labels: which pods may share a physical core."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed
from koord.api.protocol import L_CORE_SCHED_GROUP_ID, L_CORE_SCHED_POLICY

DEFAULT = ""
NONE = "none"
EXCLUSIVE = "exclusive"
POLICIES = (DEFAULT, NONE, EXCLUSIVE)


def parse_policy(labels: Mapping[str, str]) -> str | Malformed:
    """Parse koordinator.sh/core-sched-policy, which says with which pods a pod may share a physical core."""
    stated = labels.get(L_CORE_SCHED_POLICY, DEFAULT)
    if stated not in POLICIES:
        return Malformed(L_CORE_SCHED_POLICY, f"{stated!r} is not one of '', 'none', 'exclusive'")
    return stated


def group_id(labels: Mapping[str, str], pod_uid: str) -> str | Malformed | None:
    """Return the core-scheduling group of a pod: its own for an exclusive pod, None for one that opted out, else
    the label's.
    """
    policy = parse_policy(labels)
    if isinstance(policy, Malformed):
        return policy
    if policy == NONE:
        return None
    return pod_uid if policy == EXCLUSIVE else labels.get(L_CORE_SCHED_GROUP_ID, "")
