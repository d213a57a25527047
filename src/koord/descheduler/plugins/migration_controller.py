"""MigrationController as a plugin: the evictor that turns evictions into PodMigrationJobs, and its filter
rules.
"""

from __future__ import annotations

from typing import ClassVar

from koord.api.config.descheduler.migration import MigrationControllerArgs
from koord.api.koord_scheduling import RESERVATION_FIRST
from koord.descheduler.framework.effect import Evict
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Sight
from koord.descheduler.migration.budget import Budget
from koord.descheduler.migration.limiter import Limiter
from koord.descheduler.migration.moves import Moves, is_alive, leaving, move_of
from koord.descheduler.migration.protection import Protection
from koord.descheduler.plugins.node_fit import Elsewhere
from koord.descheduler.wire import Pod
from koord.values.selector import EVERYTHING, Selector


class MigrationController(Plugin):
    name: ClassVar[str] = "MigrationController"

    def __init__(self, args: MigrationControllerArgs) -> None:
        """Take defaulted and validated arguments."""
        self.args = args
        self.protection = Protection(args)
        self.budget = Budget(args)
        self.limiter = Limiter(args)
        self._nodes = Selector.parse(args.node_selector) if args.node_selector else EVERYTHING
        self._seen: _Seen | None = None
        self._elsewhere: Elsewhere | None = None

    def refuses(self, pod: Pod, sight: Sight) -> str | None:
        meta, args = pod.metadata, self.args
        seen = self._up_to_date(sight)
        if seen.moves.has_name(meta.namespace, meta.name):
            return "it is being migrated already"
        if meta.uid in seen.arriving:
            return "it has just arrived from another node"
        if args.default_job_mode == RESERVATION_FIRST and pod.spec.scheduler_name not in args.scheduler_names:
            return f"its scheduler {pod.spec.scheduler_name!r} knows no reservations"
        snapshot = sight.snapshot
        if meta.uid not in seen.protected:  # asked of every candidate several times, and it does not change in a round
            seen.protected[meta.uid] = self.protection.refuses(pod, snapshot)
        return seen.protected[meta.uid] or self.budget.refuses(pod, snapshot, seen.moves)

    def refuses_now(self, pod: Pod, sight: Sight) -> str | None:
        if not self.args.node_fit or "NodeFit" in self.args.skip_eviction_gates:
            return None
        if self._elsewhere is None or self._elsewhere.snapshot is not sight.snapshot:
            self._elsewhere = Elsewhere(sight.snapshot, self._nodes)
        return None if self._elsewhere.fits(pod) else "it fits no other node"

    def evicts(self, proposal: Evict, sight: Sight) -> str | None:
        pod = proposal.pod
        return self.refuses(pod, sight) or self.limiter.refuses(pod, sight.snapshot.now_s)

    def _up_to_date(self, sight: Sight) -> _Seen:
        if self._seen is None or self._seen.sight is not sight:
            self._seen = _Seen(sight)
        self._seen.look()
        return self._seen


class _Seen:
    """The migrations of one round so far: those of active jobs, and those that the round has proposed."""

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        snapshot = sight.snapshot
        alive = [job for job in snapshot.jobs if is_alive(job)]
        self.moves = Moves(move for job in alive if (move := move_of(job, snapshot)) is not None)
        self.arriving = frozenset(job.status.pod_ref.uid for job in alive if job.status.pod_ref is not None)
        self.protected: dict[str, str | None] = {}  # by uid of the pod: why it must not be moved at all
        self._count = 0

    def look(self) -> None:
        for proposal in self.sight.proposed[self._count :]:
            self.moves.add(leaving(proposal.pod))
        self._count = len(self.sight.proposed)
