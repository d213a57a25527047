"""Deletes jobs that are long past their ttl, each with the reservation that was made for it."""

from __future__ import annotations

import logging

from koord.api.koordinator.scheduling import PodMigrationJob
from koord.descheduler.context import DeschedulerContext
from koord.descheduler.migration.writer import MigrationWriter
from koord.descheduler.snapshot_source import SnapshotSource
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.values import duration

_LOG = logging.getLogger(__name__)

GC_INTERVAL_S = 60.0
GRACE_AFTER_TTL_S = 300.0
MAX_AGE_WITHOUT_TTL_S = 1800.0


class JobGarbageCollector:
    def __init__(self, context: DeschedulerContext, snapshot_source: SnapshotSource, writer: MigrationWriter) -> None:
        self._context = context
        self._snapshot_source = snapshot_source
        self._writer = writer

    async def run(self) -> None:
        while True:
            await self._context.clock.sleep(GC_INTERVAL_S)
            for job in self._snapshot_source.jobs.list():
                if is_garbage(job, self._context.clock.time()):
                    await self._delete_job(job)

    async def _delete_job(self, job: PodMigrationJob) -> None:
        options = job.spec.reservation_options
        ref = options.reservation_ref if options is not None else None
        try:
            refused = (
                await self._writer.delete_reservation(ref.name) if ref is not None else None
            ) or await self._writer.delete_job(job)
        except TRANSIENT_ERRORS as outage:
            _LOG.warning("%s is not cleared away yet: %s", job.metadata.name, outage)
            return
        if refused is not None:
            _LOG.warning("%s is not cleared away yet: %s", job.metadata.name, refused)


def is_garbage(job: PodMigrationJob, now_s: float) -> bool:
    """Return whether the job is old enough to be deleted, in whatever phase."""
    ttl_s = duration.parse_seconds(job.spec.ttl) if job.spec.ttl else 0.0
    created = job.metadata.creation_timestamp
    keep_s = ttl_s + GRACE_AFTER_TTL_S if ttl_s > 0 else MAX_AGE_WITHOUT_TTL_S
    return created is not None and now_s - created.timestamp() >= keep_s
