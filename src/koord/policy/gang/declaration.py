"""Gang specs as pods and PodGroups declare them. Unreadable values count as absent, as in Koordinator."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import gang, network_topology
from koord.api.annotations.codec import Malformed
from koord.api.annotations.gang import NON_STRICT, ONCE_SATISFIED
from koord.api.annotations.network_topology import NetworkTopologySpec
from koord.api.sigs_scheduling import PodGroup

_NANO = 1_000_000_000


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    minimum: int
    total: int
    strict: bool = True
    policy: str | None = None  # None: whatever the profile's default is
    wait_s: float | None = None
    group: tuple[str, ...] = ()  # ids of the gangs that are scheduled together, sorted, this one's included
    topology: NetworkTopologySpec | None = None

    @property
    def group_id(self) -> str:
        return ",".join(self.group)


class Defaults(msgspec.Struct, frozen=True):
    """Defaults from a profile's arguments for what a gang does not state."""

    wait_s: float = 600.0
    policy: str = ONCE_SATISFIED


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a gang as the API server shows it."""

    uid: str
    key: str  # namespace/name
    gang: str  # namespace/name
    labelled: bool = False  # it names a PodGroup, and only that can state the gang's spec
    stated: Settings | None = None  # by its own annotations
    created: float = 0.0
    node: str = ""
    free: bool = True  # neither held back by a scheduling gate nor being deleted
    ended: bool = False
    index: int | None = None  # its place among the members, where it matters

    @property
    def order(self) -> tuple[bool, int, str]:
        return network_topology.order(self.index, self.key)


def gang_of(namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    """Return the id of the pod's gang."""
    name = gang.name_of_pod(labels, annotations)
    return gang.gang_id(namespace, name) if name else None


def stated_by_pod(own_id: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Settings | None:
    """Return the spec of the pod's annotations; None when the pod does not say how many must start together."""
    minimum = gang.min_available(labels, annotations)
    if minimum is None or isinstance(minimum, Malformed):
        return None
    wait_ns = gang.waiting_time(annotations)
    return _settings(own_id, annotations, minimum, None if wait_ns is None else wait_ns / _NANO)


def stated_by_pod_group(pod_group: PodGroup) -> Settings:
    meta, spec = pod_group.metadata, pod_group.spec
    seconds = spec.schedule_timeout_seconds or 0
    own_id = gang.gang_id(meta.namespace, meta.name)
    return _settings(own_id, meta.annotations or {}, spec.min_member, float(seconds) if seconds > 0 else None)


def _settings(own_id: str, annotations: Mapping[str, str], minimum: int, wait_s: float | None) -> Settings:
    topology = network_topology.parse_spec(annotations)
    return Settings(
        minimum=minimum,
        total=gang.total_number(annotations, minimum),
        strict=gang.mode(annotations) != NON_STRICT,
        policy=gang.match_policy(annotations, "") or None,
        wait_s=wait_s,
        group=tuple(sorted({own_id, *gang.groups(annotations, own_id)})),  # nobody is in a group without itself
        topology=None if isinstance(topology, Malformed) else topology,
    )
