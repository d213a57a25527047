"""scheduling.koordinator.sh/soft-eviction: the descheduler's request to an outside operator to move a pod."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from koord.api.annotations.codec import Malformed, read, written
from koord.api.koord_scheduling import DeleteOptions
from koord.api.part import Part
from koord.api.protocol import A_SOFT_EVICTION


class SoftEviction(Part, frozen=True, kw_only=True):
    """SoftEviction is the descheduler's request to an outside operator to move a pod."""
    timestamp: datetime | None = None
    delete_options: DeleteOptions | None = None
    initiator: str = ""
    reason: str = ""


def parse(annotations: Mapping[str, str]) -> SoftEviction | Malformed | None:
    return read(annotations, A_SOFT_EVICTION, SoftEviction)


def dump(value: SoftEviction) -> str:
    """Format the request to an outside operator to move a pod. Kubernetes keeps whole seconds."""
    at = value.timestamp
    return written(value if at is None else msgspec.structs.replace(value, timestamp=at.replace(microsecond=0)))
