"""koordinator.sh/eviction-policy: the koordlet features that may evict this pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.api.annotations.codec import Malformed, read, written
from koord.api.protocol import A_EVICTION_POLICY


def parse(annotations: Mapping[str, str]) -> tuple[str, ...] | Malformed | None:
    """Parse koordinator.sh/eviction-policy: the koordlet features that may evict this pod."""
    return read(annotations, A_EVICTION_POLICY, tuple[str, ...])


def dump(features: Sequence[str]) -> str:
    return written(features)


def allows(annotations: Mapping[str, str], feature: str) -> bool:
    """Return whether a koordlet feature may evict the pod.

    Without annotation every feature may; with a malformed one none may, which is the safe side for the pod.
    """
    allowed = parse(annotations)
    if allowed is None:
        return True
    return not isinstance(allowed, Malformed) and feature in allowed
