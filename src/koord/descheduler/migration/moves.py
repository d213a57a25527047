"""Which pods are on the move: the jobs that count, and what this round has proposed on top of them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.api.koord_scheduling import PENDING, RUNNING, PodMigrationJob
from koord.api.protocol import A_PASSED_ARBITRATION

ALIVE = ("", PENDING, RUNNING)


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One pod that is to leave its node."""

    namespace: str
    name: str
    uid: str = ""


def is_alive(job: PodMigrationJob) -> bool:
    return job.status.phase in ALIVE


def has_passed(job: PodMigrationJob) -> bool:
    return job.metadata.annotations.get(A_PASSED_ARBITRATION) == "true"


def counts_in_arbitration(job: PodMigrationJob) -> bool:
    """Jobs that wait like this one do not stand in its way; those that were let through do."""
    return job.status.phase == RUNNING or (is_alive(job) and has_passed(job))


def move_of(job: PodMigrationJob) -> Move | None:
    ref = job.spec.pod_ref
    return None if ref is None else Move(namespace=ref.namespace, name=ref.name, uid=ref.uid)


class Moves:
    """By pod and by namespace."""

    def __init__(self, moves: Iterable[Move] = ()) -> None:
        self._by_name: dict[tuple[str, str], Move] = {}
        self._uids: set[str] = set()
        self._in_namespace: dict[str, dict[tuple[str, str], Move]] = {}
        for move in moves:
            self.add(move)

    def add(self, move: Move) -> None:
        key = (move.namespace, move.name)
        self._by_name[key] = move
        self._in_namespace.setdefault(move.namespace, {})[key] = move
        if move.uid:
            self._uids.add(move.uid)

    def has(self, namespace: str, name: str, uid: str) -> bool:
        """By uid where the job knows it: a new pod of the same name is not the one on the move."""
        if uid in self._uids:
            return True
        found = self._by_name.get((namespace, name))
        return found is not None and not found.uid

    def others(self, namespace: str, name: str, *, inside: str | None = None) -> list[Move]:
        """All but the pod's own; of one namespace if named."""
        held = self._by_name if inside is None else self._in_namespace.get(inside, {})
        return [move for key, move in held.items() if key != (namespace, name)]
