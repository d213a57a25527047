"""koordinator.sh/eviction-priority: who the koordlet evicts first, ahead of spec.priority."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.number import decimal
from koord.api.protocol import A_EVICTION_PRIORITY


def parse(annotations: Mapping[str, str]) -> int:
    """Parse the eviction priority: lower goes first; missing and unreadable are 0, as the protocol has it."""
    return decimal(annotations.get(A_EVICTION_PRIORITY, ""), bits=32) or 0


def dump(value: int) -> str:
    return str(value)
