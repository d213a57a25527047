"""This module holds the codecs of eviction and preemption: costs, priorities, policies, reasons, soft
evictions.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.protocol import A_EVICT_REASON, A_EVICT_TRIGGER, EVICT_REASON_NOT_SET


def parse(annotations: Mapping[str, str]) -> str:
    """Return why a migration job exists: the stated reason, else the plugin that asked, else NotSet."""
    return annotations.get(A_EVICT_REASON) or annotations.get(A_EVICT_TRIGGER) or EVICT_REASON_NOT_SET
