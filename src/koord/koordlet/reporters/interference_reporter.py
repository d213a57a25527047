"""Report disturbed pods, when enabled: an annotation on the pod that says what was measured, and an event.

`koord.koordlet.reporters.builders.interference` detects them; nothing is evicted or throttled here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from koord.api.annotations.pod_codecs import A_INTERFERENCE, MetricInterference, dump_interference
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.model import ObjectReference
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.reporters.builders.interference import (
    InterferenceDetector,
    InterferenceFinding,
    InterferenceSettings,
)
from koord.koordlet.series.store import SeriesStore
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

REASON_BEGIN, REASON_END = "InterferenceDetected", "InterferenceOver"


class InterferenceReporterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Without `publish` nothing is written to the cluster; findings are only kept in `disturbed`."""

    every_s: float = 10.0
    publish: bool = False
    detector: InterferenceSettings = InterferenceSettings()


class InterferenceReporter:
    """Run it in a task. `pods` returns None until they are known."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        store: SeriesStore,
        recorder: EventRecorder,
        pods: Callable[[], tuple[PodMeta, ...] | None],
        settings: InterferenceReporterSettings = InterferenceReporterSettings(),  # noqa: B008 - a frozen value
    ) -> None:
        self._client = client
        self._clock = clock
        self._store = store
        self._recorder = recorder
        self._pods = pods
        self._settings = settings
        self._detector = InterferenceDetector(settings.detector)
        self._health = ProblemLog(
            _LOG, "pods cannot be told of interference", "pods are told of interference", begins_unknown=True
        )

    @property
    def disturbed(self) -> tuple[InterferenceFinding, ...]:
        return self._detector.disturbed

    async def run(self) -> None:
        while True:
            await self.sync()
            await self._clock.sleep(self._settings.every_s)

    async def sync(self) -> list[InterferenceFinding]:
        """Detect once, log what changed, and publish it if enabled."""
        pods = self._pods()
        if pods is None:
            return []
        found = self._detector.detect(self._clock.time(), pods, self._store)
        for finding in found:
            _LOG.info("pod %s/%s %s: %s", finding.namespace, finding.pod, _state(finding), finding.why)
            if self._settings.publish:
                await self._publish(finding)
        return found

    async def _publish(self, finding: InterferenceFinding) -> None:
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
        except TRANSIENT_ERRORS as failure:
            self._health.fails(str(failure))
            return
        if isinstance(answer, ApiError) and not (answer.not_found or answer.conflict):  # it is gone, or another one
            self._health.fails(str(answer))
        else:
            self._health.works()

    def _text(self, uid: str) -> str | None:
        """Return the annotation with all present findings of the pod; None removes the annotation."""
        notes = {
            one.metric: MetricInterference(
                baseline=round(one.baseline, 4),
                spread=round(one.spread, 4),
                now=round(one.now, 4),
                score=round(one.score, 2),
                since_s=int(one.since_s),
            )
            for one in self._detector.disturbed
            if one.uid == uid
        }
        return dump_interference(notes) if notes else None


def _state(finding: InterferenceFinding) -> str:
    return "is not disturbed any more" if finding.over else "is disturbed"
