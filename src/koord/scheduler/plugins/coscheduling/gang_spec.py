"""Gang specs as pods and PodGroups declare them. Unreadable values count as absent, as in Koordinator."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import gang_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.gang_codecs import GANG_MODE_NON_STRICT, ONCE_SATISFIED, NetworkTopologySpec
from koord.api.koordinator.sigs_scheduling import PodGroup

_NANO = 1_000_000_000


class GangSpec(msgspec.Struct, frozen=True, kw_only=True):
    min_members: int
    total_members: int
    strict: bool = True
    match_policy: str | None = None  # None: whatever the profile's default is
    wait_time_s: float | None = None
    gang_group: tuple[str, ...] = ()  # ids of the gangs that are scheduled together, sorted, this one's included
    network_topology: NetworkTopologySpec | None = None


class GangDefaults(msgspec.Struct, frozen=True):
    """Defaults from a profile's arguments for what a gang does not state."""

    wait_time_s: float = 600.0
    match_policy: str = ONCE_SATISFIED


class GangMember(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a gang as the API server shows it."""

    uid: str
    key: str  # namespace/name
    gang: str  # namespace/name
    names_pod_group: bool = False  # it names a PodGroup, and only that can state the gang's spec
    spec: GangSpec | None = None  # by its own annotations
    created: float = 0.0
    node: str = ""
    is_schedulable: bool = True  # neither held back by a scheduling gate nor being deleted
    ended: bool = False
    index: int | None = None  # its place among the members, where it matters

    @property
    def order(self) -> tuple[bool, int, str]:
        return gang_codecs.network_topology_sort_key(self.index, self.key)


def gang_id_of_pod(namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    """Return the id of the pod's gang."""
    name = gang_codecs.gang_name_of_pod(labels, annotations)
    return gang_codecs.gang_id(namespace, name) if name else None


def gang_spec_of_pod(own_id: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> GangSpec | None:
    """Return the spec of the pod's annotations; None when the pod does not say how many must start together."""
    minimum = gang_codecs.gang_min_available(labels, annotations)
    if minimum is None or isinstance(minimum, MalformedAnnotation):
        return None
    wait_ns = gang_codecs.gang_waiting_time_ns(annotations)
    return _build_spec(own_id, annotations, minimum, None if wait_ns is None else wait_ns / _NANO)


def gang_spec_of_pod_group(pod_group: PodGroup) -> GangSpec:
    meta, spec = pod_group.metadata, pod_group.spec
    seconds = spec.schedule_timeout_seconds or 0
    own_id = gang_codecs.gang_id(meta.namespace, meta.name)
    return _build_spec(own_id, meta.annotations or {}, spec.min_member, float(seconds) if seconds > 0 else None)


def _build_spec(own_id: str, annotations: Mapping[str, str], minimum: int, wait_s: float | None) -> GangSpec:
    topology = gang_codecs.parse_network_topology_spec(annotations)
    return GangSpec(
        min_members=minimum,
        total_members=gang_codecs.gang_total_number(annotations, minimum),
        strict=gang_codecs.gang_mode(annotations) != GANG_MODE_NON_STRICT,
        match_policy=gang_codecs.gang_match_policy(annotations, "") or None,
        wait_time_s=wait_s,
        # Nobody is in a group without itself.
        gang_group=tuple(sorted({own_id, *gang_codecs.gang_groups(annotations, own_id)})),
        network_topology=None if isinstance(topology, MalformedAnnotation) else topology,
    )
