"""The migration budget: why a pod must not be moved now, by how many others are migrating or unavailable."""

from __future__ import annotations

from koord.api.config.descheduler.migration import MigrationControllerArgs
from koord.descheduler.migration.moves import Move, Moves, leaving
from koord.descheduler.migration.protection import EVICT
from koord.descheduler.migration.scaling import at_most
from koord.descheduler.snapshot import Snapshot
from koord.descheduler.wire import Pod


class Budget:
    """Limits concurrent migrations globally, per node, namespace and workload (upstream's retryable filter)."""
    def __init__(self, args: MigrationControllerArgs) -> None:
        self._args = args
        self._skips = frozenset(args.skip_eviction_gates)

    def refuses(self, pod: Pod, snapshot: Snapshot, moves: Moves) -> str | None:
        if EVICT in pod.metadata.annotations:
            return None
        own = leaving(pod)
        return (
            self._globally(own, moves)
            or self._on_node(own, moves)
            or self._in_namespace(own, moves)
            or self._of_workload(own, snapshot, moves)
        )

    def _limit(self, gate: str, given: int | None) -> int:
        """Return the limit of a gate; 0 is no limit."""
        return 0 if gate in self._skips else max(given or 0, 0)

    def _globally(self, own: Move, moves: Moves) -> str | None:
        limit = self._limit("MaxMigratingGlobally", self._args.max_migrating_globally)
        others = moves.others(own)
        return f"{others} pods are migrating, and {limit} may" if limit and others >= limit else None

    def _on_node(self, own: Move, moves: Moves) -> str | None:
        limit = self._limit("MaxMigratingPerNode", self._args.max_migrating_per_node)
        others = moves.others_on_node(own) if own.node else 0
        return f"{others} pods of node {own.node} are migrating, and {limit} may" if limit and others >= limit else None

    def _in_namespace(self, own: Move, moves: Moves) -> str | None:
        limit = self._limit("MaxMigratingPerNamespace", self._args.max_migrating_per_namespace)
        others = moves.others_in_namespace(own)
        if not limit or others < limit:
            return None
        return f"{others} pods of namespace {own.namespace} are migrating, and {limit} may"

    def _of_workload(self, own: Move, snapshot: Snapshot, moves: Moves) -> str | None:
        if not own.owner:
            return None
        workload = snapshot.workloads.get(own.owner)
        if workload is None:
            return "the size of its workload is not known"
        moving = moves.uids_of(workload.controllers or (own.owner,)) - {own.uid}
        limit = at_most(workload.replicas, self._args.max_migrating_per_workload)
        if "MaxMigratingPerWorkload" not in self._skips and moving and len(moving) >= limit:
            return f"{len(moving)} pods of {workload.kind} {workload.name} are migrating, and {limit} may"
        if "MaxUnavailablePerWorkload" in self._skips:
            return None
        limit = at_most(workload.replicas, self._args.max_unavailable_per_workload)
        away = (moving | snapshot.unavailable(workload, own.owner)) - {own.uid}
        if away and len(away) >= limit:
            return f"{len(away)} pods of {workload.kind} {workload.name} are migrating or not ready, and {limit} may"
        return None
