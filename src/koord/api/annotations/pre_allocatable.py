"""Whether a running pod may be pre-allocated to a reservation, and in which order. The keys are configurable."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.number import finite
from koord.api.protocol import A_PRE_ALLOCATABLE_PRIORITY, L_IS_PRE_ALLOCATABLE, TRUE


def is_candidate(labels: Mapping[str, str], key: str = L_IS_PRE_ALLOCATABLE) -> bool:
    """Return whether a running pod may be pre-allocated to a reservation. The key is configurable."""
    return labels.get(key) == TRUE


def parse_priority(annotations: Mapping[str, str], key: str = A_PRE_ALLOCATABLE_PRIORITY) -> float:
    """Parse the pre-allocation priority: higher goes first; missing and unreadable are 0."""
    return finite(annotations.get(key, "")) or 0.0
