"""Why a pod must not be moved just now: how many others are on the move or away."""

from __future__ import annotations

from koord.api.config.descheduler.migration import MigrationControllerArgs
from koord.descheduler.migration.moves import Moves
from koord.descheduler.migration.protection import EVICT, controller_uid
from koord.descheduler.migration.scaling import at_most
from koord.descheduler.snapshot import ENDED, Snapshot
from koord.descheduler.wire import Pod


class Budget:
    def __init__(self, args: MigrationControllerArgs) -> None:
        self._args = args
        self._skips = frozenset(args.skip_eviction_gates)

    def refuses(self, pod: Pod, snapshot: Snapshot, moves: Moves) -> str | None:
        if EVICT in pod.metadata.annotations:
            return None
        return (
            self._globally(pod, moves)
            or self._on_node(pod, snapshot, moves)
            or self._in_namespace(pod, moves)
            or self._of_workload(pod, snapshot, moves)
        )

    def _limit(self, gate: str, given: int | None) -> int:
        """0 is none."""
        return 0 if gate in self._skips else max(given or 0, 0)

    def _globally(self, pod: Pod, moves: Moves) -> str | None:
        limit = self._limit("MaxMigratingGlobally", self._args.max_migrating_globally)
        others = len(moves.others(pod.metadata.namespace, pod.metadata.name)) if limit else 0
        return f"{others} pods are migrating, and {limit} may" if limit and others >= limit else None

    def _on_node(self, pod: Pod, snapshot: Snapshot, moves: Moves) -> str | None:
        limit = self._limit("MaxMigratingPerNode", self._args.max_migrating_per_node)
        node = pod.spec.node_name
        if not limit or not node:
            return None
        uid = pod.metadata.uid
        others = sum(
            1
            for other in snapshot.by_node.get(node, ())
            if other.metadata.uid != uid
            and moves.has(other.metadata.namespace, other.metadata.name, other.metadata.uid)
        )
        return f"{others} pods of node {node} are migrating, and {limit} may" if others >= limit else None

    def _in_namespace(self, pod: Pod, moves: Moves) -> str | None:
        limit = self._limit("MaxMigratingPerNamespace", self._args.max_migrating_per_namespace)
        namespace = pod.metadata.namespace
        others = len(moves.others(namespace, pod.metadata.name, inside=namespace)) if limit else 0
        return (
            f"{others} pods of namespace {namespace} are migrating, and {limit} may"
            if limit and others >= limit
            else None
        )

    def _of_workload(self, pod: Pod, snapshot: Snapshot, moves: Moves) -> str | None:
        owner = controller_uid(pod)
        if not owner:
            return None
        workload = snapshot.workloads.get(owner)
        if workload is None:
            return "the size of its workload is not known"
        members = [
            other
            for controller in workload.controllers or (owner,)
            for other in snapshot.by_owner.get(controller, ())
            if other.metadata.uid != pod.metadata.uid
        ]
        moving = {
            other.metadata.uid
            for other in members
            if moves.has(other.metadata.namespace, other.metadata.name, other.metadata.uid)
        }
        limit = at_most(workload.replicas, self._args.max_migrating_per_workload)
        if "MaxMigratingPerWorkload" not in self._skips and moving and len(moving) >= limit:
            return f"{len(moving)} pods of {workload.kind} {workload.name} are migrating, and {limit} may"
        limit = at_most(workload.replicas, self._args.max_unavailable_per_workload)
        away = moving | {other.metadata.uid for other in members if not is_available(other)}
        if "MaxUnavailablePerWorkload" not in self._skips and away and len(away) >= limit:
            return f"{len(away)} pods of {workload.kind} {workload.name} are migrating or not ready, and {limit} may"
        return None


def is_available(pod: Pod) -> bool:
    """Active and ready."""
    if pod.status.phase in ENDED or pod.metadata.deletion_timestamp is not None:
        return False
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
