"""Represent a pod in the scheduler's cache."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import cast

import msgspec

from koord.api import pod as api_pod
from koord.api.meta import OwnerReference
from koord.api.pod_resources import pod_requests
from koord.api.protocol import A_RESERVE_POD
from koord.scheduler.state.peers import Peers
from koord.scheduler.state.shape import Shape
from koord.scheduler.state.wire import Pod

_NO_LABELS: Mapping[str, str] = {}


class Held(msgspec.Struct, frozen=True):
    """Hold what a pod takes of its node where that is less than its requests, because a part is counted for others
    already.
    """

    requests: dict[str, int]
    nonzero_cpu: int = 0
    nonzero_memory: int = 0


class PodInfo:
    """Hold one pod; immutable by convention: a changed pod is a new PodInfo.

    Requests of a placed pod include a resize in progress.
    """

    __slots__ = (
        "annotations",
        "claims",
        "created",
        "daemon",
        "deleting",
        "gates",
        "held",
        "initialized_at",
        "key",
        "labels",
        "name",
        "namespace",
        "node_name",
        "nominated_node",
        "owner",
        "owners",
        "peers",
        "preempted",
        "requests",
        "reserve",
        "revision",
        "scheduled_at",
        "scheduler",
        "shape",
        "started",
        "uid",
    )

    def __init__(self, pod: Pod, shape: Shape, peers: Peers) -> None:
        meta = pod.metadata
        self.uid = meta.uid
        self.namespace = meta.namespace
        self.name = meta.name
        self.key = f"{meta.namespace}/{meta.name}"
        self.revision = meta.resource_version
        self.peers = peers
        self.labels: Mapping[str, str] = peers.labels
        self.annotations: Mapping[str, str] = meta.annotations or _NO_LABELS
        self.reserve = A_RESERVE_POD in self.annotations  # it stands for a Reservation; no server has it
        self.owners: tuple[OwnerReference, ...] = meta.owner_references
        self.owner: OwnerReference | None = next((o for o in meta.owner_references if o.controller), None)
        self.daemon = any(o.kind == "DaemonSet" for o in meta.owner_references)
        self.created: datetime | None = meta.creation_timestamp
        self.deleting = meta.deletion_timestamp is not None
        self.preempted = self.deleting and _by_preemption(pod)  # it is on its way out, to make room
        self.started: datetime | None = pod.status.start_time
        self.scheduled_at, self.initialized_at = _came_true(pod)
        self.node_name = pod.spec.node_name
        self.nominated_node = pod.status.nominated_node_name
        self.scheduler = shape.spec.scheduler_name
        self.gates: tuple[str, ...] = tuple(gate.name for gate in pod.spec.scheduling_gates)
        self.claims = pod.status.resource_claim_statuses  # which ResourceClaims were made for it
        self.shape = shape
        self.requests: dict[str, int] = shape.requests
        self.held: Held | None = None
        statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
        if any(status.resources is not None for status in statuses):
            resized = pod_requests(cast(api_pod.PodSpec, pod.spec), cast(api_pod.PodStatus, pod.status))
            self.requests = {name: n for name, n in resized.items() if n}

    @property
    def priority(self) -> int:
        return self.shape.priority

    def placed_on(self, node_name: str) -> PodInfo:
        """Return the same pod as if it were bound to that node."""
        other = self._copy()
        other.node_name = node_name
        return other

    def holding(self, held: Held | None) -> PodInfo:
        """Return the same pod, counted on its node with another amount; None for its requests."""
        other = self._copy()
        other.held = held
        return other

    def _copy(self) -> PodInfo:
        other = object.__new__(PodInfo)
        for slot in PodInfo.__slots__:
            setattr(other, slot, getattr(self, slot))
        return other

    def __repr__(self) -> str:
        return f"PodInfo({self.key})"


def _came_true(pod: Pod) -> tuple[float | None, float | None]:
    """Return when the pod was scheduled and initialized, in seconds since 1970; None while it was not."""
    scheduled = initialized = None
    for condition in pod.status.conditions:
        if condition.status == "True" and condition.last_transition_time is not None:
            if condition.type == "PodScheduled":
                scheduled = condition.last_transition_time.timestamp()
            elif condition.type == "Initialized":
                initialized = condition.last_transition_time.timestamp()
    return scheduled, initialized


def _by_preemption(pod: Pod) -> bool:
    target = next((c for c in pod.status.conditions if c.type == "DisruptionTarget"), None)
    return target is not None and target.status == "True" and target.reason == "PreemptionByScheduler"
