"""Runs arbitration periodically: passes waiting jobs as the rules allow, and fails those that are forbidden."""

from __future__ import annotations

import logging
from collections.abc import Callable

from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS
from koord.api.koordinator.scheduling import PodMigrationJob
from koord.descheduler.context import DeschedulerContext
from koord.descheduler.migration.arbitration import ArbitrationResult, arbitrate
from koord.descheduler.migration.job import failed_status, has_passed_arbitration, is_active
from koord.descheduler.migration.plugin import MigrationControllerPlugin
from koord.descheduler.migration.writer import JobWriteCache, MigrationWriter
from koord.descheduler.snapshot_source import SnapshotSource
from koord.kube.events.recorder import object_reference
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.values import duration

_LOG = logging.getLogger(__name__)


# However short an interval is asked for, others get a turn in between.
MIN_INTERVAL_S = 0.01


class MigrationArbiter:
    """Holds the waiting jobs and arbitrates them each interval. `on_passed` is called for each job that may start."""

    def __init__(
        self,
        context: DeschedulerContext,
        snapshot_source: SnapshotSource,
        plugin: MigrationControllerPlugin,
        writer: MigrationWriter,
        write_cache: JobWriteCache,
        on_passed: Callable[[PodMigrationJob], None],
    ) -> None:
        self._context = context
        self._snapshot_source = snapshot_source
        self._plugin = plugin
        self._writer = writer
        self._write_cache = write_cache
        self._on_passed = on_passed
        self._waiting: dict[str, str] = {}  # name by uid
        self._quiet = RateLimitedLog(_LOG, context.clock)
        self.wait_reasons: dict[str, str] = {}  # by name of the job: what it waits for
        given = plugin.args.arbitration_args
        every_s = duration.parse_seconds((given.interval if given is not None else None) or "500ms")
        self._interval_s = max(every_s, MIN_INTERVAL_S)

    def enqueue(self, job: PodMigrationJob) -> None:
        self._waiting[job.metadata.uid] = job.metadata.name

    def forget(self, job: PodMigrationJob) -> None:
        self._waiting.pop(job.metadata.uid, None)
        self.wait_reasons.pop(job.metadata.name, None)

    async def run(self) -> None:
        while True:
            await self._context.clock.sleep(self._interval_s)
            try:
                await self.run_round()
            except TRANSIENT_ERRORS as outage:
                self._quiet.warning("arbitration is put off: %s", outage)

    async def run_round(self) -> None:
        jobs = self._waiting_jobs()
        if not jobs:
            return
        # Those that passed a moment ago count, whether or not the watch has shown it by now.
        snapshot = self._snapshot_source.snapshot_for_jobs(
            [self._write_cache.newest(job) for job in self._snapshot_source.jobs.list()]
        )
        for result in arbitrate(jobs, snapshot, self._plugin.protection, self._plugin.budget):
            await self._apply_result(result)

    def _waiting_jobs(self) -> list[PodMigrationJob]:
        found = []
        for uid, name in list(self._waiting.items()):
            seen = self._snapshot_source.jobs.get("", name)
            job = None if seen is None else self._write_cache.newest(seen)
            if job is None or job.metadata.uid != uid or not is_active(job) or has_passed_arbitration(job):
                self._waiting.pop(uid, None)
            else:
                found.append(job)
        return found

    async def _apply_result(self, result: ArbitrationResult) -> None:
        job = result.job
        if result.waits:
            self.wait_reasons[job.metadata.name] = result.waits
            return
        if result.forbidden:
            ref = job.spec.pod_ref
            name = f"{ref.namespace}/{ref.name}" if ref is not None else ""
            text = f'Pod "{name}" is forbidden to migrate because it does not meet the requirements'
            answer = await self._writer.patch_status(job, failed_status(job.status, "ForbiddenMigratePod", text))
            if not isinstance(answer, ApiError):
                about = object_reference(POD_MIGRATION_JOBS, job)
                note = f"{text}: {result.forbidden}"
                self._context.recorder.record(about, "Warning", "ForbiddenMigratePod", note, action="Migrating")
        else:
            answer = await self._writer.mark_passed(job)
        if isinstance(answer, ApiError):
            if answer.not_found:
                self.forget(job)
            else:
                self._quiet.warning("%s stays in line: %s", job.metadata.name, answer)
            return
        self.forget(job)
        self._write_cache.record_write(answer)
        if result.passes:
            self._on_passed(answer)
