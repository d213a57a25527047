"""Write the PodScheduled condition and the nominated node of pods that were not placed.

Written only when they change, and behind the decisions: each pod has at most one update waiting, the newest, and a few
writers take them in turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

import msgspec

from koord.api.kubernetes.rbac import RbacRule
from koord.kube.client.typed_client import Client
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.scheduler.cache.pod_model import PODS, Pod
from koord.telemetry.clock import Clock, now
from koord.values import timestamp

_LOG = logging.getLogger(__name__)

POD_SCHEDULED = "PodScheduled"
WRITERS = 8
WRITE_TRIES = 3
# A condition is for people. The reasons of a huge and odd cluster can be endless; the head of them says enough.
MESSAGE_BYTES = 8192


class PodStatusUpdate(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str
    reason: str = ""  # "" leaves the condition as it is
    message: str = ""
    nominate: str | None = None  # None leaves the nominated node as it is


class PodStatusWriter:
    """Write status updates of pods; `latest` finds a pod as the watch last showed it, to write nothing twice."""

    rights: ClassVar[tuple[RbacRule, ...]] = (RbacRule("", ("pods/status",), ("patch",)),)

    def __init__(self, client: Client, clock: Clock, latest: Callable[[str, str], Pod | None]) -> None:
        self._client = client
        self._clock = clock
        self._latest = latest
        self._waiting: dict[str, PodStatusUpdate] = {}
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._quiet = RateLimitedLog(_LOG, clock)
        self.writes = 0

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._write_all(), name=f"report-{n}") for n in range(WRITERS)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def submit(self, report: PodStatusUpdate) -> None:
        before = self._waiting.pop(report.uid, None)
        if before is not None and report.nominate is None:
            report = msgspec.structs.replace(report, nominate=before.nominate)
        if before is not None and not report.reason:
            report = msgspec.structs.replace(report, reason=before.reason, message=before.message)
        self._waiting[report.uid] = report
        self._work.set()

    def drop(self, uid: str) -> None:
        """Discard the waiting update of a pod that is bound or gone."""
        self._waiting.pop(uid, None)

    async def _write_all(self) -> None:
        while True:
            while self._waiting:
                report = self._waiting.pop(next(iter(self._waiting)))
                await self._write(report)
            self._work.clear()
            await self._work.wait()

    async def _write(self, report: PodStatusUpdate) -> None:
        for _ in range(WRITE_TRIES):
            pod = self._latest(report.namespace, report.name)
            if pod is None or pod.metadata.uid != report.uid or pod.spec.node_name:
                return
            status = pod_status_patch(pod, report, now(self._clock))
            if not status:
                return
            try:
                answer = await self._client.patch(
                    PODS,
                    report.name,
                    {"status": status},
                    report.namespace,
                    kind="strategic",
                    subresource="status",
                    uid=report.uid,
                )
            except TRANSIENT_ERRORS as outage:
                self._quiet.warning("the condition of %s/%s is not written: %s", report.namespace, report.name, outage)
                return  # the next attempt writes it again
            if not isinstance(answer, ApiError):
                self.writes += 1
                return
            if answer.not_found or answer.conflict:
                return
            if not answer.too_many and answer.code < 500:
                self._quiet.warning("the condition of %s/%s is refused: %s", report.namespace, report.name, answer)
                return
            await self._clock.sleep(answer.retry_after_s or 1.0)


def pod_status_patch(pod: Pod, report: PodStatusUpdate, at: datetime) -> dict[str, Any]:
    """Return a strategic merge patch of the pod's status; empty when the status already says all of it."""
    patch: dict[str, Any] = {}
    message = truncate_message(report.message)
    known = next((c for c in pod.status.conditions if c.type == POD_SCHEDULED), None)
    generation = pod.metadata.generation
    current = (known.status, known.reason, known.message, known.observed_generation) if known is not None else None
    if report.reason and current != ("False", report.reason, message, generation):
        condition: dict[str, Any] = {
            "type": POD_SCHEDULED,
            "status": "False",
            "reason": report.reason,
            "message": message,
            "lastProbeTime": None,
        }
        if generation:
            condition["observedGeneration"] = generation
        if known is None or known.status != "False":
            condition["lastTransitionTime"] = timestamp.text(at)
        patch["conditions"] = [condition]
    if report.nominate is not None and report.nominate != pod.status.nominated_node_name:
        patch["nominatedNodeName"] = report.nominate or None
    return patch


def truncate_message(message: str) -> str:
    raw = message.encode()
    if len(raw) <= MESSAGE_BYTES:
        return message
    return raw[: MESSAGE_BYTES - 4].decode(errors="ignore") + " ..."
