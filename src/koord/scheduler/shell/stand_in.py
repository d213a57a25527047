"""Bind a reserve pod by writing the metadata and then the status of the object that it stands for."""

from __future__ import annotations

from typing import Any

from koord.kube.client import Client
from koord.kube.outage import OUTAGE
from koord.kube.refused import Refused
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.framework.work import Mark, Stand
from koord.telemetry.clock import Clock

_TRIES = 5
_PAUSE_S, _LONGEST_S = 0.5, 10.0


class StandIns:
    """Write a `StatusBinding`: the pod patch to the object's metadata, then its new status in place of a binding.

    After a conflict the status is computed anew from what the server has. An answer that never came is not a failure:
    the server is asked until it says whether the object shows the status.
    """
    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def write(self, stand: Stand, marks: Mark | None) -> Fault | None:
        if marks is not None and (marks.annotations or marks.labels):
            fault = await self._mark(stand, marks)
            if fault is not None:
                return fault
        said = ""
        for _ in range(_TRIES):
            there = await self._latest(stand)
            if isinstance(there, Fault):
                return there
            status = stand.change(there)
            if isinstance(status, Fault):
                return status
            patch = {"metadata": {"resourceVersion": there.metadata.resource_version}, "status": status}
            try:
                answer = await self._client.patch(
                    stand.resource,
                    stand.name,
                    patch,
                    stand.namespace or None,
                    kind="merge",
                    subresource="status",
                    uid=stand.uid,
                )
            except OUTAGE as outage:
                return await self._truth(stand, str(outage))
            if not isinstance(answer, Refused):
                return None
            said = answer.message
            if answer.code >= 500:  # it may be done all the same
                return await self._truth(stand, said)
            if not answer.conflict:
                return Fault(said)
        return Fault(said)

    async def _mark(self, stand: Stand, marks: Mark) -> Fault | None:
        metadata: dict[str, Any] = {"annotations": dict(marks.annotations), "labels": dict(marks.labels)}
        patch = {"metadata": {field: values for field, values in metadata.items() if values}}
        try:
            answer = await self._client.patch(
                stand.resource, stand.name, patch, stand.namespace or None, kind="merge", uid=stand.uid
            )
        except OUTAGE as outage:
            return Fault(str(outage))
        return Fault(answer.message) if isinstance(answer, Refused) else None

    async def _latest(self, stand: Stand) -> Any:
        """Return the object as the server has it, or a fault that says why it cannot be written."""
        try:
            there = await self._client.get(stand.resource, stand.name, stand.namespace or None)
        except OUTAGE as outage:
            return Fault(str(outage))
        if isinstance(there, Refused):
            return Fault(there.message)
        return there if there.metadata.uid == stand.uid else Fault(f"{stand.name} is another object now")

    async def _truth(self, stand: Stand, message: str) -> Fault | None:
        pause = _PAUSE_S
        while True:
            try:
                there = await self._client.get(stand.resource, stand.name, stand.namespace or None)
            except OUTAGE:
                there = None
            if isinstance(there, Refused) and there.not_found:
                return Fault(message)
            if there is not None and not isinstance(there, Refused):
                shown = there.metadata.uid == stand.uid and stand.done(there)
                return None if shown else Fault(message)
            await self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)
