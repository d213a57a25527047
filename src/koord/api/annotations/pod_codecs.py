"""This module holds the codecs of pods that webhooks, the scheduler and `koord top` read: profiles, batch
resources, resource replacement, scheduling hints, load estimation, sub-priority and interference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from koord.api.annotations.codec import MalformedAnnotation, dump_json, parse_json
from koord.api.koordinator.protocol import (
    A_EXTENDED_RESOURCE_SPEC,
    A_LOAD_ESTIMATED_SCALING_FACTORS,
    A_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED,
    A_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED,
    A_REPLACE_RESOURCES,
    A_SCHEDULING_HINT,
    A_SCHEDULING_HINT_DEPRECATED,
    A_SKIP_UPDATE_RESOURCES,
    L_CONTROLLER_MANAGED,
    L_PRIORITY,
    TRUE,
)
from koord.api.model import QuantityText, ResourceList, Submodel
from koord.values.go_strconv import parse_any_base_int, parse_decimal_int


def skips_resource_update(annotations: Mapping[str, str]) -> bool:
    """Return whether cpu and memory are kept from being rewritten to a tier. The key alone counts, whatever its
    value.
    """
    return A_SKIP_UPDATE_RESOURCES in annotations


def is_controller_managed(labels: Mapping[str, str]) -> bool:
    """Return whether the controller applies the profile to pods that exist already."""
    return labels.get(L_CONTROLLER_MANAGED) == TRUE


class ExtendedResources(Submodel, frozen=True, kw_only=True):
    limits: ResourceList = {}
    requests: ResourceList = {}


class ExtendedResourceSpec(Submodel, frozen=True, kw_only=True):
    """ExtendedResourceSpec is batch and mid resources by container, for runtimes that see no others."""

    containers: dict[str, ExtendedResources] = {}


def parse_extended_resource_spec(annotations: Mapping[str, str]) -> ExtendedResourceSpec | MalformedAnnotation | None:
    return parse_json(annotations, A_EXTENDED_RESOURCE_SPEC, ExtendedResourceSpec, _amounts)


def _amounts(value: ExtendedResourceSpec) -> Iterator[QuantityText]:
    for container in value.containers.values():
        yield from container.limits.values()
        yield from container.requests.values()


def dump_extended_resource_spec(value: ExtendedResourceSpec) -> str:
    return dump_json(value)


ERASED = ""


def parse_replace_resources(annotations: Mapping[str, str]) -> dict[str, str]:
    """Parse `from:to,erased:` to source and target names, in order; an empty target erases. Malformed items are
    skipped.
    """
    found: dict[str, str] = {}
    for item in annotations.get(A_REPLACE_RESOURCES, "").split(","):
        parts = [part.strip() for part in item.split(":")]
        if len(parts) == 2 and parts[0]:
            found[parts[0]] = parts[1]
    return found


def dump_replace_resources(replacements: Mapping[str, str]) -> str:
    return ",".join(f"{source}:{target}" for source, target in replacements.items())


class PodSchedulingHint(Submodel, frozen=True, kw_only=True):
    """PodSchedulingHint hints at nodes: `node_names` bounds the search; `preferred_node_names` are tried first, in
    order.
    """

    node_names: tuple[str, ...] = ()
    preferred_node_names: tuple[str, ...] = ()
    extensions: dict[str, Any] = {}


def parse_scheduling_hint(annotations: Mapping[str, str]) -> PodSchedulingHint | MalformedAnnotation | None:
    """Parse the hint under the internal key, else under the deprecated public one; empty text is ignored."""
    key = next((k for k in (A_SCHEDULING_HINT, A_SCHEDULING_HINT_DEPRECATED) if annotations.get(k)), None)
    return None if key is None else parse_json(annotations, key, PodSchedulingHint)


def dump_scheduling_hint(value: PodSchedulingHint) -> str:
    return dump_json(value)


def estimated_scaling_factors(annotations: Mapping[str, str]) -> dict[str, int]:
    """Return the percent by resource; empty means that the plugin's factors apply."""
    found = parse_json(annotations, A_LOAD_ESTIMATED_SCALING_FACTORS, dict[str, int])
    return {} if found is None or isinstance(found, MalformedAnnotation) else found


def dump_estimated_scaling_factors(value: Mapping[str, int]) -> str:
    return dump_json(value)


def estimated_seconds_after_scheduled(annotations: Mapping[str, str]) -> int | None:
    """Return the pod's own setting, honoured when the plugin allows it. Unreadable text counts as missing."""
    return _seconds(annotations.get(A_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED))


def estimated_seconds_after_initialized(annotations: Mapping[str, str]) -> int | None:
    return _seconds(annotations.get(A_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED))


def _seconds(text: str | None) -> int | None:
    """Parse seconds. Upstream says -1 for unset, so a negative number is unset too."""
    value = parse_decimal_int(text) if text is not None else None
    return value if value is not None and value >= 0 else None


def parse_sub_priority(labels: Mapping[str, str]) -> int | MalformedAnnotation | None:
    """Parse koordinator.sh/priority, the order inside one priority class.

    Missing is None: callers treat it as 0, the webhook compares it as text.
    """
    text = labels.get(L_PRIORITY)
    if text is None:
        return None
    value = parse_any_base_int(text, bits=32)
    return MalformedAnnotation(L_PRIORITY, f"{text!r} is not a 32-bit integer") if value is None else value


def dump_sub_priority(value: int) -> str:
    return str(value)


A_INTERFERENCE = "node.koordinator.sh/interference"


class MetricInterference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """MetricInterference says that `now` lies `score` spreads above the pod's own `baseline`, since a moment in
    unix seconds.

    The annotation is koord's own; Koordinator has no such.
    """

    baseline: float
    spread: float
    now: float
    score: float
    since_s: int


def parse_interference(annotations: Mapping[str, str]) -> dict[str, MetricInterference] | MalformedAnnotation | None:
    return parse_json(annotations, A_INTERFERENCE, dict[str, MetricInterference])


def dump_interference(value: Mapping[str, MetricInterference]) -> str:
    return dump_json(value)
