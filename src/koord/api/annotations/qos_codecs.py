"""This module holds the codecs of a pod's own QoS settings, which override the strategies of the node's
NodeSLO: CPU burst, cpuQOS, memoryQOS, networkQOS, blkioQOS, resctrl and oom_score_adj.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from koord.api.annotations.codec import MalformedAnnotation, parse_json
from koord.api.koordinator import protocol
from koord.api.koordinator.slo import BlkIOQOS, CPUBurst, CPUQOSConfig, MemoryQOS
from koord.api.model import Submodel
from koord.values.go_format import parse_decimal_int


def parse_blkio_qos(annotations: Mapping[str, str]) -> BlkIOQOS | MalformedAnnotation | None:
    """Parse koordinator.sh/blkioQOS: one pod's own disk limits, by volume. Pods without it are left alone."""
    return parse_json(annotations, protocol.A_BLKIO_QOS, BlkIOQOS)


def parse_cpu_burst(annotations: Mapping[str, str]) -> CPUBurst | MalformedAnnotation | None:
    """Parse koordinator.sh/cpuBurst: one pod's override of the node's CPU burst strategy."""
    return parse_json(annotations, protocol.A_CPU_BURST, CPUBurst)


MIN_GROUP_IDENTITY, MAX_GROUP_IDENTITY = -1, 2


def parse_cpu_qos(annotations: Mapping[str, str]) -> CPUQOSConfig | MalformedAnnotation | None:
    """Parse a pod's override of its group identity. A value out of range makes the whole annotation malformed."""
    found = parse_json(annotations, protocol.A_CPU_QOS, CPUQOSConfig)
    if isinstance(found, CPUQOSConfig) and found.group_identity is not None:
        identity = found.group_identity
        if not MIN_GROUP_IDENTITY <= identity <= MAX_GROUP_IDENTITY:
            return MalformedAnnotation(
                protocol.A_CPU_QOS, f"groupIdentity {identity} is not from {MIN_GROUP_IDENTITY} to {MAX_GROUP_IDENTITY}"
            )
    return found


MEMORY_QOS_DEFAULT = "default"  # the node's settings
MEMORY_QOS_NONE = "none"  # nothing for this pod
MEMORY_QOS_AUTO = "auto"  # the built-in settings of the pod's QoS class


class PodMemoryQOS(MemoryQOS, frozen=True, kw_only=True):
    """PodMemoryQOS is koordinator.sh/memoryQOS: one pod's override of the node's memory strategy."""

    policy: str = ""

    @property
    def effective_policy(self) -> str:
        return self.policy or MEMORY_QOS_DEFAULT


def parse_memory_qos(annotations: Mapping[str, str]) -> PodMemoryQOS | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_MEMORY_QOS, PodMemoryQOS)


class PodNetworkQOS(Submodel, frozen=True, kw_only=True):
    """PodNetworkQOS holds quantities as text; the terway hook requires both, the tc hook takes a missing one as 0."""

    ingress_limit: str = ""
    egress_limit: str = ""


def parse_network_qos(annotations: Mapping[str, str]) -> PodNetworkQOS | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_NETWORK_QOS, PodNetworkQOS, _amounts)


def _amounts(value: PodNetworkQOS) -> list[str]:
    return [limit for limit in (value.ingress_limit, value.egress_limit) if limit]


class ResctrlSchemata(Submodel, frozen=True, kw_only=True):
    """ResctrlSchemata: `range` is [start, end] in percent of cache ways, `percent` a share of memory bandwidth."""

    percent: int = 0
    range: tuple[int, ...] = ()


class ResctrlCacheSchemata(Submodel, frozen=True, kw_only=True):
    cache_id: int = field(default_factory=lambda: 0, name="cacheID")
    percent: int = 0
    range: tuple[int, ...] = ()


class ResctrlAllocation(Submodel, frozen=True, kw_only=True):
    schemata: ResctrlSchemata = ResctrlSchemata()
    schemata_per_cache: tuple[ResctrlCacheSchemata, ...] = ()


class PodResctrl(Submodel, frozen=True, kw_only=True):
    """PodResctrl is node.koordinator.sh/resctrl: cache ways and memory bandwidth of one pod."""

    llc: ResctrlAllocation = ResctrlAllocation()
    mb: ResctrlAllocation = ResctrlAllocation()


def parse_resctrl(annotations: Mapping[str, str]) -> PodResctrl | MalformedAnnotation | None:
    return parse_json(annotations, protocol.A_RESCTRL, PodResctrl)


MIN_OOM_SCORE_ADJ, MAX_OOM_SCORE_ADJ = -1000, 1000


def parse_oom_score_adj(annotations: Mapping[str, str]) -> int | MalformedAnnotation | None:
    """Parse the pod's own oom_score_adj."""
    text = annotations.get(protocol.A_OOM_SCORE_ADJ)
    if text is None:
        return None
    value = parse_decimal_int(text)
    if value is None or not MIN_OOM_SCORE_ADJ <= value <= MAX_OOM_SCORE_ADJ:
        return MalformedAnnotation(
            protocol.A_OOM_SCORE_ADJ, f"{text!r} is not an integer from {MIN_OOM_SCORE_ADJ} to {MAX_OOM_SCORE_ADJ}"
        )
    return value


def parse_container_oom_score_adjs(annotations: Mapping[str, str]) -> dict[str, int] | MalformedAnnotation | None:
    """Parse the values by container; each overrides the pod's."""
    return parse_json(annotations, protocol.A_OOM_SCORE_ADJ_SPEC, dict[str, int])


def container_oom_score_adj(annotations: Mapping[str, str], container: str) -> int | MalformedAnnotation | None:
    """Return the value of one container: its own entry, else the pod's value."""
    own = parse_container_oom_score_adjs(annotations)
    if isinstance(own, MalformedAnnotation):
        return own
    if own is None or container not in own:
        return parse_oom_score_adj(annotations)
    value = own[container]
    if not MIN_OOM_SCORE_ADJ <= value <= MAX_OOM_SCORE_ADJ:
        return MalformedAnnotation(
            protocol.A_OOM_SCORE_ADJ_SPEC,
            f"{container}: {value} is not from {MIN_OOM_SCORE_ADJ} to {MAX_OOM_SCORE_ADJ}",
        )
    return value
