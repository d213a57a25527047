"""This module holds the codecs of pods that webhooks, the scheduler, the evictors and `koord top` read: profiles, batch
resources, resource replacement, scheduling hints, load estimation, sub-priority, interference, and eviction and
preemption (costs, priorities, policies, reasons, soft evictions).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from koord.api.annotations.codec import MalformedAnnotation, dump_json, parse_json
from koord.api.koordinator import protocol
from koord.api.kubernetes.meta import DeleteOptions
from koord.api.model import QuantityText, ResourceList, Submodel
from koord.values.go_format import parse_any_base_int, parse_decimal_int


def skips_resource_update(annotations: Mapping[str, str]) -> bool:
    """Return whether cpu and memory are not rewritten to a tier. The key alone counts, whatever its value."""
    return protocol.A_SKIP_UPDATE_RESOURCES in annotations


def is_controller_managed(labels: Mapping[str, str]) -> bool:
    """Return whether the controller applies the profile to pods that exist already."""
    return labels.get(protocol.L_CONTROLLER_MANAGED) == protocol.TRUE


class ExtendedResources(Submodel, frozen=True, kw_only=True):
    limits: ResourceList = {}
    requests: ResourceList = {}


class ExtendedResourceSpec(Submodel, frozen=True, kw_only=True):
    """ExtendedResourceSpec is batch and mid resources by container, for runtimes that see no others."""

    containers: dict[str, ExtendedResources] = {}


def parse_extended_resource_spec(annotations: Mapping[str, str]) -> ExtendedResourceSpec | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_EXTENDED_RESOURCE_SPEC, ExtendedResourceSpec, _amounts)


def _amounts(value: ExtendedResourceSpec) -> Iterator[QuantityText]:
    for container in value.containers.values():
        yield from container.limits.values()
        yield from container.requests.values()


ERASED = ""


def parse_replace_resources(annotations: Mapping[str, str]) -> dict[str, str]:
    """Parse `from:to,erased:` to names in order; an empty target erases. Malformed ones are skipped."""
    found: dict[str, str] = {}
    for item in annotations.get(protocol.A_REPLACE_RESOURCES, "").split(","):
        parts = [part.strip() for part in item.split(":")]
        if len(parts) == 2 and parts[0]:
            found[parts[0]] = parts[1]
    return found


def dump_replace_resources(replacements: Mapping[str, str]) -> str:
    return ",".join(f"{source}:{target}" for source, target in replacements.items())


class PodSchedulingHint(Submodel, frozen=True, kw_only=True):
    """PodSchedulingHint hints at nodes: `node_names` bound the search; `preferred_node_names` come first, in order."""

    node_names: tuple[str, ...] = ()
    preferred_node_names: tuple[str, ...] = ()
    extensions: dict[str, Any] = {}


def parse_scheduling_hint(annotations: Mapping[str, str]) -> PodSchedulingHint | MalformedAnnotation | None:
    """Parse the hint under the internal key, else under the deprecated public one; empty text is ignored."""
    key = next(
        (k for k in (protocol.A_SCHEDULING_HINT, protocol.A_SCHEDULING_HINT_DEPRECATED) if annotations.get(k)), None
    )
    return None if key is None else parse_json(annotations, key, PodSchedulingHint)


def estimated_scaling_factors(annotations: Mapping[str, str]) -> dict[str, int]:
    """Return the percent by resource; empty means that the plugin's factors apply."""
    found = parse_json(annotations, protocol.A_LOAD_ESTIMATED_SCALING_FACTORS, dict[str, int])
    return {} if found is None or isinstance(found, MalformedAnnotation) else found


def estimated_seconds_after_scheduled(annotations: Mapping[str, str]) -> int | None:
    """Return the pod's own setting, honoured when the plugin allows it. Unreadable text counts as missing."""
    return _seconds(annotations.get(protocol.A_LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED))


def estimated_seconds_after_initialized(annotations: Mapping[str, str]) -> int | None:
    return _seconds(annotations.get(protocol.A_LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED))


def _seconds(text: str | None) -> int | None:
    """Parse seconds. Upstream says -1 for unset, so a negative number is unset too."""
    value = parse_decimal_int(text) if text is not None else None
    return value if value is not None and value >= 0 else None


def parse_sub_priority(labels: Mapping[str, str]) -> int | MalformedAnnotation | None:
    """Parse koordinator.sh/priority, the order inside one priority class.

    Missing is None: callers treat it as 0, the webhook compares it as text.
    """
    text = labels.get(protocol.L_PRIORITY)
    if text is None:
        return None
    value = parse_any_base_int(text, bits=32)
    return MalformedAnnotation(protocol.L_PRIORITY, f"{text!r} is not a 32-bit integer") if value is None else value


A_INTERFERENCE = "node.koordinator.sh/interference"
A_INTERFERENCE_EXEMPT = "node.koordinator.sh/interference-exempt"


def is_interference_exempt(annotations: Mapping[str, str]) -> bool:
    """Return whether the pod is neither throttled nor evicted for what it does to others."""
    return annotations.get(A_INTERFERENCE_EXEMPT) == protocol.TRUE


class MetricInterference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """MetricInterference says that `now` lies `score` standard deviations (`spread`) above the pod's own `baseline`,
    since a moment in unix seconds, and which batch pod is the culprit, where one is known.

    The annotation is koord's own; Koordinator has no such.
    """

    baseline: float
    spread: float
    now: float
    score: float
    since_s: int
    culprit: str = ""  # NAMESPACE/POD


def parse_interference(annotations: Mapping[str, str]) -> dict[str, MetricInterference] | MalformedAnnotation | None:
    return parse_json(annotations, A_INTERFERENCE, dict[str, MetricInterference])


def dump_interference(value: Mapping[str, MetricInterference]) -> str:
    return dump_json(value)


def parse_evict_reason(annotations: Mapping[str, str]) -> str:
    """Return why a migration job exists: the stated reason, else the plugin that asked, else NotSet."""
    return (
        annotations.get(protocol.A_EVICT_REASON)
        or annotations.get(protocol.A_EVICT_TRIGGER)
        or protocol.EVICT_REASON_NOT_SET
    )


NEVER_EVICT_COST = 2**31 - 1


def parse_eviction_cost(annotations: Mapping[str, str]) -> int | MalformedAnnotation:
    """Parse the eviction cost: lower goes first, missing is 0. Plus signs and leading zeros are malformed."""
    text = annotations.get(protocol.A_EVICTION_COST)
    if text is None:
        return 0
    if text == "0" or (text and text[0] in "-123456789"):
        value = parse_decimal_int(text, bits=32)
        if value is not None:
            return value
    return MalformedAnnotation(
        protocol.A_EVICTION_COST, f"{text!r} is not a 32-bit integer without plus sign and leading zeros"
    )


def eviction_cost_or_zero(annotations: Mapping[str, str]) -> int:
    """Return the eviction cost for sorting, where a malformed one counts as 0."""
    value = parse_eviction_cost(annotations)
    return 0 if isinstance(value, MalformedAnnotation) else value


def parse_eviction_policy(annotations: Mapping[str, str]) -> tuple[str, ...] | MalformedAnnotation | None:
    """Parse koordinator.sh/eviction-policy: the koordlet features that may evict this pod."""
    return parse_json(annotations, protocol.A_EVICTION_POLICY, tuple[str, ...])


def allows_eviction_by(annotations: Mapping[str, str], feature: str) -> bool:
    """Return whether a koordlet feature may evict the pod.

    Without annotation every feature may; with a malformed one none may, which is the safe side for the pod.
    """
    allowed = parse_eviction_policy(annotations)
    if allowed is None:
        return True
    return not isinstance(allowed, MalformedAnnotation) and feature in allowed


def parse_eviction_priority(annotations: Mapping[str, str]) -> int:
    """Parse the eviction priority: lower goes first; missing and unreadable are 0, as the protocol has it."""
    return parse_decimal_int(annotations.get(protocol.A_EVICTION_PRIORITY, ""), bits=32) or 0


class SoftEviction(Submodel, frozen=True, kw_only=True):
    """SoftEviction is the descheduler's request to an outside operator to move a pod."""

    timestamp: datetime | None = None
    delete_options: DeleteOptions | None = None
    initiator: str = ""
    reason: str = ""


def parse_soft_eviction(annotations: Mapping[str, str]) -> SoftEviction | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_SOFT_EVICTION, SoftEviction)


def dump_soft_eviction(value: SoftEviction) -> str:
    """Format the request to an outside operator to move a pod. Kubernetes keeps whole seconds."""
    at = value.timestamp
    return dump_json(value if at is None else msgspec.structs.replace(value, timestamp=at.replace(microsecond=0)))


PREEMPT_NEVER = "Never"
PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"


def pod_preemption_policy(labels: Mapping[str, str]) -> str:
    """Return what the transformer writes into spec.preemptionPolicy: a known value, else Never."""
    stated = labels.get(protocol.L_PREEMPTION_POLICY)
    return stated if stated in (PREEMPT_NEVER, PREEMPT_LOWER_PRIORITY) else PREEMPT_NEVER


def is_preemptible(labels: Mapping[str, str]) -> bool:
    """Return whether reservations and gangs may take this pod as a victim."""
    return labels.get(protocol.L_DISABLE_PREEMPTIBLE) != protocol.TRUE
