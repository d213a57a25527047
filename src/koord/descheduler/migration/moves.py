"""Migrations in flight: which pods are being moved, and the budget that limits how many may be at a time."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.api.koord_scheduling import PENDING, RUNNING, PodMigrationJob
from koord.api.protocol import A_PASSED_ARBITRATION
from koord.descheduler.migration.protection import controller_uid
from koord.descheduler.snapshot import Snapshot
from koord.descheduler.wire import Pod
from koord.values import duration

ALIVE = ("", PENDING, RUNNING)


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One pod that is to leave its node. Of a pod that no longer exists only name and uid are known."""

    namespace: str
    name: str
    uid: str = ""
    node: str = ""
    owner: str = ""  # the uid of its controller


def is_alive(job: PodMigrationJob) -> bool:
    return job.status.phase in ALIVE


def is_late(job: PodMigrationJob, now_s: float) -> bool:
    ttl_s = duration.parse_seconds(job.spec.ttl) if job.spec.ttl else 0.0
    created = job.metadata.creation_timestamp
    return ttl_s > 0 and created is not None and now_s - created.timestamp() >= ttl_s


def has_passed(job: PodMigrationJob) -> bool:
    return job.metadata.annotations.get(A_PASSED_ARBITRATION) == "true"


def counts_in_arbitration(job: PodMigrationJob) -> bool:
    """Return whether a job counts against others: running or passed ones do, waiting ones do not."""
    return job.status.phase == RUNNING or (is_alive(job) and has_passed(job))


def pod_of(job: PodMigrationJob, snapshot: Snapshot) -> Pod | None:
    """Return the pod that the job refers to; a newer pod of the same name is not it."""
    ref = job.spec.pod_ref
    pod = None if ref is None else snapshot.by_name.get((ref.namespace, ref.name))
    return pod if pod is not None and ref is not None and ref.uid in ("", pod.metadata.uid) else None


def move_of(job: PodMigrationJob, snapshot: Snapshot) -> Move | None:
    ref, pod = job.spec.pod_ref, pod_of(job, snapshot)
    if pod is not None:
        return leaving(pod)
    return None if ref is None else Move(namespace=ref.namespace, name=ref.name, uid=ref.uid)


def leaving(pod: Pod) -> Move:
    meta = pod.metadata
    return Move(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        node=pod.spec.node_name,
        owner=controller_uid(pod),
    )


class Moves:
    """The migrations in flight, counted by namespace, node and owner as they are added, so that lookups are cheap."""

    def __init__(self, moves: Iterable[Move] = ()) -> None:
        self._all: set[Move] = set()
        self._names: set[tuple[str, str]] = set()
        self._in_namespace: dict[str, set[Move]] = {}
        self._on_node: dict[str, set[Move]] = {}
        self._of_owner: dict[str, set[Move]] = {}
        for move in moves:
            self.add(move)

    def add(self, move: Move) -> None:
        self._all.add(move)
        self._names.add((move.namespace, move.name))
        self._in_namespace.setdefault(move.namespace, set()).add(move)
        if move.node:
            self._on_node.setdefault(move.node, set()).add(move)
        if move.owner:
            self._of_owner.setdefault(move.owner, set()).add(move)

    def has_name(self, namespace: str, name: str) -> bool:
        """Return whether a pod of this name is in flight, whatever its uid: the successor may have the same name."""
        return (namespace, name) in self._names

    # A pod's own moves never count against it.

    def others(self, own: Move) -> int:
        return len(self._all) - (own in self._all)

    def others_in_namespace(self, own: Move) -> int:
        return _without(self._in_namespace.get(own.namespace), own)

    def others_on_node(self, own: Move) -> int:
        return _without(self._on_node.get(own.node), own)

    def uids_of(self, owners: Iterable[str]) -> set[str]:
        """Return the uids of the in-flight pods that these owners control."""
        return {move.uid for owner in owners for move in self._of_owner.get(owner, ())}


def _without(moves: set[Move] | None, own: Move) -> int:
    return 0 if moves is None else len(moves) - (own in moves)
