"""Report disturbed pods, when enabled: an annotation on the pod that says what was measured, and an event.

`koord.koordlet.interference.detector` detects them; nothing is evicted or throttled here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from koord.api.annotations.interference import A_INTERFERENCE, Disturbance, dump
from koord.api.builtin import PODS
from koord.api.part import ObjectReference
from koord.koordlet.interference.detector import Detector, Finding
from koord.koordlet.interference.detector import Settings as DetectorSettings
from koord.koordlet.pod import PodView
from koord.koordlet.reporting.standing import Standing
from koord.koordlet.series.store import Store
from koord.kube.client import Client
from koord.kube.outage import OUTAGE
from koord.kube.recorder import Recorder
from koord.kube.refused import Refused
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

REASON_BEGIN, REASON_END = "InterferenceDetected", "InterferenceOver"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Without `publish` nothing is written to the cluster; findings are only kept in `disturbed`."""

    every_s: float = 10.0
    tell: bool = False
    detector: DetectorSettings = DetectorSettings()


class InterferenceReporter:
    """Run it in a task. `pods` returns None until they are known."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        store: Store,
        recorder: Recorder,
        pods: Callable[[], tuple[PodView, ...] | None],
        settings: Settings = Settings(),  # noqa: B008 - a frozen value
    ) -> None:
        self._client = client
        self._clock = clock
        self._store = store
        self._recorder = recorder
        self._pods = pods
        self._settings = settings
        self._detector = Detector(settings.detector)
        self._standing = Standing(_LOG, "pods are told of interference", "pods cannot be told of interference")

    @property
    def disturbed(self) -> tuple[Finding, ...]:
        return self._detector.disturbed

    async def run(self) -> None:
        """Sync periodically until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(self._settings.every_s)

    async def look(self) -> list[Finding]:
        """Detect once, log what changed, and publish it if enabled."""
        pods = self._pods()
        if pods is None:
            return []
        found = self._detector.look(self._clock.time(), pods, self._store)
        for finding in found:
            _LOG.info("pod %s/%s %s: %s", finding.namespace, finding.pod, _state(finding), finding.why)
            if self._settings.tell:
                await self._tell(finding)
        return found

    async def _tell(self, finding: Finding) -> None:
        reference = ObjectReference(
            api_version="v1", kind="Pod", namespace=finding.namespace, name=finding.pod, uid=finding.uid
        )
        reason = REASON_END if finding.over else REASON_BEGIN
        self._recorder.record(reference, "Normal" if finding.over else "Warning", reason, finding.why)
        patch = {"metadata": {"annotations": {A_INTERFERENCE: self._text(finding.uid)}}}
        try:
            answer = await self._client.patch(
                PODS, finding.pod, patch, finding.namespace, kind="merge", uid=finding.uid
            )
        except OUTAGE as failure:
            self._standing.fails(str(failure))
            return
        if isinstance(answer, Refused) and not (answer.not_found or answer.conflict):  # it is gone, or another one
            self._standing.fails(str(answer))
        else:
            self._standing.works()

    def _text(self, uid: str) -> str | None:
        """Return the annotation with all present findings of the pod; None removes the annotation."""
        notes = {
            one.metric: Disturbance(
                baseline=round(one.baseline, 4),
                spread=round(one.spread, 4),
                now=round(one.now, 4),
                score=round(one.score, 2),
                since_s=int(one.since_s),
            )
            for one in self._detector.disturbed
            if one.uid == uid
        }
        return dump(notes) if notes else None


def _state(finding: Finding) -> str:
    return "is not disturbed any more" if finding.over else "is disturbed"
