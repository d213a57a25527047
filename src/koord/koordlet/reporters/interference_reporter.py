"""Report what the strategy Interference finds: Events about pods, and an annotation on disturbed ones if enabled."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from koord.api.annotations.pod_codecs import A_INTERFERENCE, dump_interference
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.model import ObjectReference
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.strategies.interference_report import (
    REASON_BEGIN,
    REASON_END,
    InterferenceNews,
    interference_news,
    metric_notes,
)
from koord.koordlet.strategies.interference_view import InterferenceState
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)


class InterferenceReporterSettings(msgspec.Struct, frozen=True, kw_only=True):
    every_s: float = 5.0
    annotate: bool = False  # disturbed pods; needs the right to patch pods


class InterferenceReporter:
    """Run it in a task. `state` returns what the strategy's last plan left."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        recorder: EventRecorder,
        state: Callable[[], object],
        settings: InterferenceReporterSettings = InterferenceReporterSettings(),  # noqa: B008 - a frozen value
    ) -> None:
        self._client = client
        self._clock = clock
        self._recorder = recorder
        self._state = state
        self._settings = settings
        self._told: InterferenceState | None = None
        self._health = ProblemLog(
            _LOG, "pods cannot be told of interference", "pods are told of interference", begins_unknown=True
        )

    async def run(self) -> None:
        while True:
            await self.sync()
            await self._clock.sleep(self._settings.every_s)

    async def sync(self) -> list[InterferenceNews]:
        """Tell what changed since the last call."""
        state = self._state()
        if not isinstance(state, InterferenceState) or state is self._told:
            return []
        news, self._told = interference_news(self._told, state), state
        for one in news:
            _LOG.info("pod %s/%s: %s: %s", one.namespace, one.pod, one.reason, one.message)
            record_news(self._recorder, one)
        if self._settings.annotate:
            disturbed = {one.uid: one for one in news if one.reason in (REASON_BEGIN, REASON_END)}
            for one in disturbed.values():
                await self._annotate(one, state)
        return news

    async def _annotate(self, news: InterferenceNews, state: InterferenceState) -> None:
        """Write the annotation with all present incidents of the pod, or remove it."""
        notes = metric_notes(state, news.uid)
        patch = {"metadata": {"annotations": {A_INTERFERENCE: dump_interference(notes) if notes else None}}}
        try:
            answer = await self._client.patch(PODS, news.pod, patch, news.namespace, kind="merge", uid=news.uid)
        except TRANSIENT_ERRORS as failure:
            self._health.fails(str(failure))
            return
        if isinstance(answer, ApiError) and not (answer.not_found or answer.conflict):  # it is gone, or another one
            self._health.fails(str(answer))
        else:
            self._health.works()


def record_news(recorder: EventRecorder, news: InterferenceNews) -> None:
    """Record one piece of news as an Event about its pod."""
    reference = ObjectReference(api_version="v1", kind="Pod", namespace=news.namespace, name=news.pod, uid=news.uid)
    recorder.record(reference, news.type, news.reason, news.message)
