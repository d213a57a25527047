"""MigrationController: the evictor that turns evictions into PodMigrationJobs, and the filter that keeps its rules."""

from __future__ import annotations

from typing import ClassVar

from koord.api.config.descheduler.migration import MigrationControllerArgs
from koord.api.koord_scheduling import RESERVATION_FIRST
from koord.descheduler.framework.effect import Evict
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Sight
from koord.descheduler.migration.budget import Budget
from koord.descheduler.migration.limiter import Limiter
from koord.descheduler.migration.moves import Move, Moves, is_alive, move_of
from koord.descheduler.migration.protection import Protection
from koord.descheduler.plugins.node_fit import Fitting
from koord.descheduler.wire import Pod
from koord.values.selector import EVERYTHING, Selector


class MigrationController(Plugin):
    name: ClassVar[str] = "MigrationController"

    def __init__(self, args: MigrationControllerArgs) -> None:
        """Of defaulted and validated arguments."""
        self.args = args
        self.protection = Protection(args)
        self.budget = Budget(args)
        self.limiter = Limiter(args)
        self._nodes = Selector.parse(args.node_selector) if args.node_selector else EVERYTHING
        self._seen: _Seen | None = None

    def refuses(self, pod: Pod, sight: Sight) -> str | None:
        meta, args = pod.metadata, self.args
        moves = self._moves(sight)
        if moves.has(meta.namespace, meta.name, meta.uid):
            return "it is being migrated already"
        if args.default_job_mode == RESERVATION_FIRST and pod.spec.scheduler_name not in args.scheduler_names:
            return f"its scheduler {pod.spec.scheduler_name!r} knows no reservations"
        snapshot = sight.snapshot
        return self.protection.refuses(pod, snapshot) or self.budget.refuses(pod, snapshot, moves)

    def refuses_now(self, pod: Pod, sight: Sight) -> str | None:
        if not self.args.node_fit or "NodeFit" in self.args.skip_eviction_gates:
            return None
        snapshot = sight.snapshot
        nodes = [node for node in snapshot.nodes.values() if self._nodes.matches(node.metadata.labels)]
        return None if Fitting(snapshot).elsewhere(pod, nodes) is not None else "it fits no other node"

    def evicts(self, proposal: Evict, sight: Sight) -> str | None:
        pod = proposal.pod
        return self.refuses(pod, sight) or self.limiter.refuses(pod, sight.snapshot.now_s)

    def _moves(self, sight: Sight) -> Moves:
        """Of the jobs there are, and of those that this round will make."""
        if self._seen is None or self._seen.sight is not sight:
            jobs = (move_of(job) for job in sight.snapshot.jobs if is_alive(job))
            self._seen = _Seen(sight, Moves(move for move in jobs if move is not None))
        return self._seen.brought_up_to_date()


class _Seen:
    """What was gathered for one round so far."""

    def __init__(self, sight: Sight, moves: Moves) -> None:
        self.sight = sight
        self._moves = moves
        self._count = 0

    def brought_up_to_date(self) -> Moves:
        for proposal in self.sight.proposed[self._count :]:
            meta = proposal.pod.metadata
            self._moves.add(Move(namespace=meta.namespace, name=meta.name, uid=meta.uid))
        self._count = len(self.sight.proposed)
        return self._moves
