"""node.koordinator.sh/interference: what disturbs a pod at present, by metric. Koord's own; Koordinator has no such."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations.codec import Malformed, read, written

A_INTERFERENCE = "node.koordinator.sh/interference"


class Disturbance(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """MetricInterference says that `now` lies `score` spreads above the pod's own `baseline`, since a moment in
    unix seconds.

    The annotation is koord's own; Koordinator has no such.
    """

    baseline: float
    spread: float
    now: float
    score: float
    since_s: int


def parse(annotations: Mapping[str, str]) -> dict[str, Disturbance] | Malformed | None:
    return read(annotations, A_INTERFERENCE, dict[str, Disturbance])


def dump(value: Mapping[str, Disturbance]) -> str:
    return written(value)
