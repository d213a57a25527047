"""The two labels about preemption: what a pod may do to others, and whether others may do it to the pod."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.protocol import L_DISABLE_PREEMPTIBLE, L_PREEMPTION_POLICY, TRUE

NEVER = "Never"
PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"


def policy(labels: Mapping[str, str]) -> str:
    """Return what the transformer writes into spec.preemptionPolicy: a known value, else Never."""
    stated = labels.get(L_PREEMPTION_POLICY)
    return stated if stated in (NEVER, PREEMPT_LOWER_PRIORITY) else NEVER


def is_preemptible(labels: Mapping[str, str]) -> bool:
    """Return whether reservations and gangs may take this pod as a victim."""
    return labels.get(L_DISABLE_PREEMPTIBLE) != TRUE
