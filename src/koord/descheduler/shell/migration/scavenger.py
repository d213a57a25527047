"""Deletes jobs that are long past their ttl, each with the reservation that was made for it."""

from __future__ import annotations

import logging

from koord.api.koord_scheduling import PodMigrationJob
from koord.descheduler.shell.migration.writing import Pen
from koord.descheduler.shell.view import View
from koord.descheduler.world import World
from koord.kube.outage import OUTAGE
from koord.values import duration

_LOG = logging.getLogger(__name__)

EVERY_S = 60.0
GRACE_S = 300.0
WITHOUT_TTL_S = 1800.0


class Scavenger:
    def __init__(self, world: World, view: View, pen: Pen) -> None:
        self._world = world
        self._view = view
        self._pen = pen

    async def run(self) -> None:
        while True:
            await self._world.clock.sleep(EVERY_S)
            for job in self._view.jobs.list():
                if is_leftover(job, self._world.clock.time()):
                    await self._clear(job)

    async def _clear(self, job: PodMigrationJob) -> None:
        options = job.spec.reservation_options
        ref = options.reservation_ref if options is not None else None
        try:
            refused = (await self._pen.drop(ref.name) if ref is not None else None) or await self._pen.drop_job(job)
        except OUTAGE as outage:
            _LOG.warning("%s is not cleared away yet: %s", job.metadata.name, outage)
            return
        if refused is not None:
            _LOG.warning("%s is not cleared away yet: %s", job.metadata.name, refused)


def is_leftover(job: PodMigrationJob, now_s: float) -> bool:
    """Return whether the job is old enough to be deleted, in whatever phase."""
    ttl_s = duration.parse_seconds(job.spec.ttl) if job.spec.ttl else 0.0
    created = job.metadata.creation_timestamp
    keep_s = ttl_s + GRACE_S if ttl_s > 0 else WITHOUT_TTL_S
    return created is not None and now_s - created.timestamp() >= keep_s
