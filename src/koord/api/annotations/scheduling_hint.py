"""Node hints for the scheduler, under an internal key and, read second, under a deprecated public one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_SCHEDULING_HINT, A_SCHEDULING_HINT_DEPRECATED


class SchedulingHint(Part, frozen=True, kw_only=True):
    """PodSchedulingHint hints at nodes: `node_names` bounds the search; `preferred_node_names` are tried first, in
    order.
    """

    node_names: tuple[str, ...] = ()
    preferred_node_names: tuple[str, ...] = ()
    extensions: dict[str, Any] = {}


def parse(annotations: Mapping[str, str]) -> SchedulingHint | Malformed | None:
    """Parse the hint under the internal key, else under the deprecated public one; empty text is ignored."""
    key = next((k for k in (A_SCHEDULING_HINT, A_SCHEDULING_HINT_DEPRECATED) if annotations.get(k)), None)
    return None if key is None else read(annotations, key, SchedulingHint)


def dump(value: SchedulingHint) -> str:
    return written(value)
