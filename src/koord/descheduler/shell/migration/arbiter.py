"""Runs arbitration periodically: passes waiting jobs as the rules allow, and fails those that are forbidden
for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from koord.api.custom import POD_MIGRATION_JOBS
from koord.api.koord_scheduling import PodMigrationJob
from koord.descheduler.migration.arbitration import Verdict, arbitrate
from koord.descheduler.migration.moves import has_passed, is_alive
from koord.descheduler.migration.status import failed
from koord.descheduler.plugins.migration_controller import MigrationController
from koord.descheduler.shell.migration.ahead import Ahead
from koord.descheduler.shell.migration.writing import Pen
from koord.descheduler.shell.view import View
from koord.descheduler.world import World
from koord.kube.noise import QuietLog
from koord.kube.outage import OUTAGE
from koord.kube.recorder import reference
from koord.kube.refused import Refused
from koord.values import duration

_LOG = logging.getLogger(__name__)


# However short an interval is asked for, others get a turn in between.
LEAST_S = 0.01


class Arbiter:
    """Holds the waiting jobs and arbitrates them each interval. `on_passed` is called for each job that may start."""

    def __init__(
        self,
        world: World,
        view: View,
        plugin: MigrationController,
        pen: Pen,
        ahead: Ahead,
        passed: Callable[[PodMigrationJob], None],
    ) -> None:
        self._world = world
        self._view = view
        self._plugin = plugin
        self._pen = pen
        self._ahead = ahead
        self._passed = passed
        self._waiting: dict[str, str] = {}  # name by uid
        self._quiet = QuietLog(_LOG, world.clock)
        self.why: dict[str, str] = {}  # by name of the job: what it waits for
        given = plugin.args.arbitration_args
        every_s = duration.parse_seconds((given.interval if given is not None else None) or "500ms")
        self._every_s = max(every_s, LEAST_S)

    def await_turn(self, job: PodMigrationJob) -> None:
        self._waiting[job.metadata.uid] = job.metadata.name

    def forget(self, job: PodMigrationJob) -> None:
        self._waiting.pop(job.metadata.uid, None)
        self.why.pop(job.metadata.name, None)

    async def run(self) -> None:
        while True:
            await self._world.clock.sleep(self._every_s)
            try:
                await self.round()
            except OUTAGE as outage:
                self._quiet.warning("arbitration is put off: %s", outage)

    async def round(self) -> None:
        jobs = self._waiting_jobs()
        if not jobs:
            return
        # Those that passed a moment ago count, whether or not the watch has shown it by now.
        snapshot = self._view.of_jobs([self._ahead.newest(job) for job in self._view.jobs.list()])
        for verdict in arbitrate(jobs, snapshot, self._plugin.protection, self._plugin.budget):
            await self._settle(verdict)

    def _waiting_jobs(self) -> list[PodMigrationJob]:
        found = []
        for uid, name in list(self._waiting.items()):
            seen = self._view.jobs.get("", name)
            job = None if seen is None else self._ahead.newest(seen)
            if job is None or job.metadata.uid != uid or not is_alive(job) or has_passed(job):
                self._waiting.pop(uid, None)
            else:
                found.append(job)
        return found

    async def _settle(self, verdict: Verdict) -> None:
        job = verdict.job
        if verdict.waits:
            self.why[job.metadata.name] = verdict.waits
            return
        if verdict.forbidden:
            ref = job.spec.pod_ref
            name = f"{ref.namespace}/{ref.name}" if ref is not None else ""
            text = f'Pod "{name}" is forbidden to migrate because it does not meet the requirements'
            answer = await self._pen.status(job, failed(job.status, "ForbiddenMigratePod", text))
            if not isinstance(answer, Refused):
                about = reference(POD_MIGRATION_JOBS, job)
                note = f"{text}: {verdict.forbidden}"
                self._world.recorder.record(about, "Warning", "ForbiddenMigratePod", note, action="Migrating")
        else:
            answer = await self._pen.passed(job)
        if isinstance(answer, Refused):
            if answer.not_found:
                self.forget(job)
            else:
                self._quiet.warning("%s stays in line: %s", job.metadata.name, answer)
            return
        self.forget(job)
        self._ahead.wrote(answer)
        if verdict.passes:
            self._passed(answer)
