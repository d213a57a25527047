"""MigrationController as a plugin: the evictor that turns evictions into PodMigrationJobs, and its filter rules."""

from __future__ import annotations

from typing import ClassVar

from koord.api.config.descheduler.migration_args import MigrationControllerArgs
from koord.api.koordinator.scheduling import RESERVATION_FIRST
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictionProposal, RoundState
from koord.descheduler.framework.snapshot import OtherNodeFitChecker
from koord.descheduler.migration import protection
from koord.descheduler.migration.job import is_active
from koord.descheduler.migration.protection import MigrationProtection
from koord.values.selector import EVERYTHING, Selector


class MigrationControllerPlugin(DeschedulerPlugin):
    name: ClassVar[str] = "MigrationController"

    def __init__(self, args: MigrationControllerArgs) -> None:
        """Take defaulted and validated arguments."""
        self.args = args
        self.protection = MigrationProtection(args)
        self.budget = protection.MigrationBudget(args)
        self.limiter = protection.EvictionRateLimiter(args)
        self._nodes = Selector.parse(args.node_selector) if args.node_selector else EVERYTHING
        self._round_migrations: _RoundMigrations | None = None
        self._other_node_fit: OtherNodeFitChecker | None = None

    def filter(self, pod: Pod, round_state: RoundState) -> str | None:
        meta, args = pod.metadata, self.args
        seen = self._current_migrations(round_state)
        if seen.in_flight.has_pod_named(meta.namespace, meta.name):
            return "it is being migrated already"
        if meta.uid in seen.arrived_uids:
            return "it has just arrived from another node"
        if args.default_job_mode == RESERVATION_FIRST and pod.spec.scheduler_name not in args.scheduler_names:
            return f"its scheduler {pod.spec.scheduler_name!r} knows no reservations"
        snapshot = round_state.snapshot
        if (
            meta.uid not in seen.protection_reasons
        ):  # asked of every candidate several times, and it does not change in a round
            seen.protection_reasons[meta.uid] = self.protection.rejection_reason(pod, snapshot)
        return seen.protection_reasons[meta.uid] or self.budget.rejection_reason(pod, snapshot, seen.in_flight)

    def pre_eviction_filter(self, pod: Pod, round_state: RoundState) -> str | None:
        if not self.args.node_fit or "NodeFit" in self.args.skip_eviction_gates:
            return None
        if self._other_node_fit is None or self._other_node_fit.snapshot is not round_state.snapshot:
            self._other_node_fit = OtherNodeFitChecker(round_state.snapshot, self._nodes)
        return None if self._other_node_fit.fits(pod) else "it fits no other node"

    def evict(self, proposal: EvictionProposal, round_state: RoundState) -> str | None:
        pod = proposal.pod
        return self.filter(pod, round_state) or self.limiter.rejection_reason(pod, round_state.snapshot.now_s)

    def _current_migrations(self, round_state: RoundState) -> _RoundMigrations:
        if self._round_migrations is None or self._round_migrations.round_state is not round_state:
            self._round_migrations = _RoundMigrations(round_state)
        self._round_migrations.update()
        return self._round_migrations


class _RoundMigrations:
    """The migrations of one round so far: those of active jobs, and those that the round has proposed."""

    def __init__(self, round_state: RoundState) -> None:
        self.round_state = round_state
        snapshot = round_state.snapshot
        alive = [job for job in snapshot.jobs if is_active(job)]
        self.in_flight = protection.InFlightMigrations(
            migration for job in alive if (migration := protection.migration_of_job(job, snapshot)) is not None
        )
        self.arrived_uids = frozenset(job.status.pod_ref.uid for job in alive if job.status.pod_ref is not None)
        self.protection_reasons: dict[str, str | None] = {}  # by uid of the pod: why it must not be moved at all
        self._count = 0

    def update(self) -> None:
        for proposal in self.round_state.proposed[self._count :]:
            self.in_flight.add(protection.migration_of_pod(proposal.pod))
        self._count = len(self.round_state.proposed)
