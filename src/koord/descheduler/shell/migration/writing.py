"""Writes to jobs and reservations, each a patch of what changed with the uid of the object that was decided
on,
and the cache of own writes that informers have not shown yet.
"""

from __future__ import annotations

from typing import Any

from koord.api.custom import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koord_scheduling import PodMigrationJob, PodMigrationJobStatus
from koord.api.model import to_dict
from koord.api.protocol import A_PASSED_ARBITRATION, DESCHEDULER_NAME
from koord.descheduler.migration.template import CREATED_BY, reservation
from koord.descheduler.wire import PODS
from koord.descheduler.world import World
from koord.kube.refused import Refused
from koord.values import duration

Written = PodMigrationJob | Refused


class Pen:
    def __init__(self, world: World) -> None:
        self._world = world
        self._drop_claims = "DisablePVCReservation" in world.gates

    async def status(self, job: PodMigrationJob, status: PodMigrationJobStatus) -> Written:
        # What became empty must be said: a merge patch keeps what it does not name.
        told = {"phase": None, "status": None, "reason": None, "message": None, **to_dict(status)}
        return await self._patch(job, {"status": told}, subresource="status")

    async def passed(self, job: PodMigrationJob) -> Written:
        """Mark the job as passed, and normalize its ttl on the way."""
        patch: dict[str, Any] = {"metadata": {"annotations": {A_PASSED_ARBITRATION: "true"}}}
        if job.spec.ttl and (tidy := duration.text(duration.parse(job.spec.ttl))) != job.spec.ttl:
            patch["spec"] = {"ttl": tidy}
        return await self._patch(job, patch)

    async def pod_uid(self, job: PodMigrationJob, uid: str) -> Written:
        return await self._patch(job, {"spec": {"podRef": {"uid": uid}}})

    async def _patch(self, job: PodMigrationJob, patch: dict[str, Any], subresource: str | None = None) -> Written:
        meta = job.metadata
        return await self._world.client.patch(
            POD_MIGRATION_JOBS, meta.name, patch, kind="merge", uid=meta.uid, subresource=subresource
        )

    # Reservations ------------------------------------------------------------------------------------------------

    async def reserve(self, job: PodMigrationJob) -> Written | str:
        """Create the reservation and name it in the job; adopt an existing one, which an earlier attempt created.

        A string that is returned says why it is not created now.
        """
        plain, ref = self._world.client.plain, job.spec.pod_ref
        assert ref is not None
        whole_job = await plain.get(POD_MIGRATION_JOBS, job.metadata.name)
        if isinstance(whole_job, Refused):
            return whole_job
        pod = await plain.get(PODS, ref.name, ref.namespace)
        if isinstance(pod, Refused):
            return "its pod is gone" if pod.not_found else pod
        if ref.uid not in ("", pod["metadata"]["uid"]):
            return "another pod has its name by now"
        now_ms = int(self._world.clock.time() * 1000)
        wanted = reservation(whole_job, pod, now_ms, drop_claims=self._drop_claims)
        made = await plain.create(RESERVATIONS, wanted)
        if isinstance(made, Refused) and not made.already_exists:
            return made
        named = {"spec": {"reservationOptions": {"reservationRef": {"name": wanted["metadata"]["name"]}}}}
        return await self._patch(job, named)

    async def tidy(self, name: str, ttl: str) -> Refused | None:
        answer = await self._world.client.patch(RESERVATIONS, name, {"spec": {"ttl": ttl}}, kind="merge")
        return answer if isinstance(answer, Refused) else None

    async def drop(self, name: str) -> Refused | None:
        """Delete a reservation that this program created; one that a person named in the job is left alone."""
        found = await self._world.client.get(RESERVATIONS, name)
        if isinstance(found, Refused):
            return None if found.not_found else found
        if found.metadata.labels.get(CREATED_BY) != DESCHEDULER_NAME:
            return None
        answer = await self._world.client.delete(RESERVATIONS, name, uid=found.metadata.uid)
        return answer if isinstance(answer, Refused) and not answer.not_found else None

    async def drop_job(self, job: PodMigrationJob) -> Refused | None:
        answer = await self._world.client.delete(POD_MIGRATION_JOBS, job.metadata.name, uid=job.metadata.uid)
        return answer if isinstance(answer, Refused) and not answer.not_found else None
