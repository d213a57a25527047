"""This module holds the codecs of gangs: which one a pod is in, its settings, and its network topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koord.api.annotations.codec import MalformedAnnotation, parse_json
from koord.api.koordinator import protocol
from koord.api.model import Submodel
from koord.api.schema_markers import never_omitted
from koord.values import duration
from koord.values.go_format import parse_decimal_int

GANG_MODE_STRICT = "Strict"
GANG_MODE_NON_STRICT = "NonStrict"

ONLY_WAITING = "only-waiting"
WAITING_AND_RUNNING = "waiting-and-running"
ONCE_SATISFIED = "once-satisfied"
GANG_MATCH_POLICIES = (ONLY_WAITING, WAITING_AND_RUNNING, ONCE_SATISFIED)


def gang_name_of_pod(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    """Return the name of a pod's gang; the pod's namespace completes its id."""
    return (
        labels.get(protocol.L_POD_GROUP)
        or labels.get(protocol.L_POD_GROUP_NAME_DEPRECATED)
        or annotations.get(protocol.A_GANG_NAME)
        or None
    )


def is_defined_by_pod_group(labels: Mapping[str, str]) -> bool:
    """Return whether the gang takes all its settings from a PodGroup object and exists only once that does."""
    return bool(labels.get(protocol.L_POD_GROUP))


def gang_id(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


def gang_min_available(labels: Mapping[str, str], annotations: Mapping[str, str]) -> int | MalformedAnnotation | None:
    """Return how many members must fit at once; with None or MalformedAnnotation the gang waits for a pod that says."""
    key, text = protocol.L_POD_GROUP_MIN_AVAILABLE_DEPRECATED, labels.get(protocol.L_POD_GROUP_MIN_AVAILABLE_DEPRECATED)
    if not text:
        key, text = protocol.A_GANG_MIN_AVAILABLE, annotations.get(protocol.A_GANG_MIN_AVAILABLE)
    if text is None:
        return None
    value = parse_decimal_int(text, bits=32)
    return MalformedAnnotation(key, f"{text!r} is not a 32-bit integer") if value is None else value


def gang_total_number(annotations: Mapping[str, str], minimum: int) -> int:
    """Return the expected number of members, never below the minimum."""
    return max(parse_decimal_int(annotations.get(protocol.A_GANG_TOTAL_NUMBER, ""), bits=32) or 0, minimum)


def gang_mode(annotations: Mapping[str, str]) -> str:
    """Return the gang's mode: Strict unless NonStrict is spelled out."""
    return GANG_MODE_NON_STRICT if annotations.get(protocol.A_GANG_MODE) == GANG_MODE_NON_STRICT else GANG_MODE_STRICT


def gang_match_policy(annotations: Mapping[str, str], default: str = ONCE_SATISFIED) -> str:
    """Return the match policy of the first key that is not empty, if it is a known one."""
    stated = annotations.get(protocol.A_GANG_MATCH_POLICY) or annotations.get(protocol.A_POD_GROUP_MATCH_POLICY_ALIAS)
    return stated if stated in GANG_MATCH_POLICIES else default


def gang_groups(annotations: Mapping[str, str], own_id: str) -> tuple[str, ...]:
    """Return the ids of the gangs that are scheduled together, sorted; its own id alone when none is readable."""
    found = parse_json(annotations, protocol.A_GANG_GROUPS, tuple[str, ...])
    return (own_id,) if not found or isinstance(found, MalformedAnnotation) else tuple(sorted(found))


def gang_group_id(ids: Sequence[str]) -> str:
    return ",".join(sorted(ids))


def gang_waiting_time_ns(annotations: Mapping[str, str]) -> int | None:
    """Return the permit timeout in nanoseconds; None (the default) when missing, unreadable or not positive."""
    try:
        stated = duration.parse(annotations.get(protocol.A_GANG_WAITING_TIME, ""))
    except duration.DurationError:
        return None
    return stated if stated > 0 else None


MUST_GATHER = "MustGather"


class GatherStrategy(Submodel, frozen=True, kw_only=True):
    layer: str = never_omitted("")
    strategy: str = never_omitted("")
    pod_count_multiple: int = 0


class NetworkTopologySpec(Submodel, frozen=True, kw_only=True):
    """NetworkTopologySpec is the layers of the network in which a gang is gathered."""

    gather_strategy: tuple[GatherStrategy, ...] = ()


def parse_network_topology_spec(annotations: Mapping[str, str]) -> NetworkTopologySpec | MalformedAnnotation | None:
    """Parse the layers to gather in. A gang with a malformed spec is scheduled as one without."""
    return parse_json(annotations, protocol.A_GANG_NETWORK_TOPOLOGY_SPEC, NetworkTopologySpec)


def parse_network_topology_index(annotations: Mapping[str, str]) -> int | MalformedAnnotation | None:
    text = annotations.get(protocol.A_GANG_NETWORK_TOPOLOGY_INDEX)
    if text is None:
        return None
    value = parse_decimal_int(text)
    if value is None:
        return MalformedAnnotation(protocol.A_GANG_NETWORK_TOPOLOGY_INDEX, f"{text!r} is not an integer")
    return value if value >= 0 else None


def network_topology_sort_key(index: int | None, name: str) -> tuple[bool, int, str]:
    """Return a sort key: members with an index first, by index, then by name."""
    return (index is None, index or 0, name)


def network_topology_selector(annotations: Mapping[str, str]) -> str:
    return annotations.get(protocol.A_NETWORK_TOPOLOGY_SELECTOR, "")
