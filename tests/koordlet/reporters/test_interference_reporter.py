"""Events tell of disturbed and throttled pods once; the annotation is written only when asked for, and goes again."""

from __future__ import annotations

import json

import msgspec
import pytest

from koord.api.annotations.pod_codecs import A_INTERFERENCE
from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, NAMESPACES, PODS
from koord.koordlet.agent_status import InterferenceRecord, Suspect
from koord.koordlet.reporters.interference_reporter import InterferenceReporter, InterferenceReporterSettings
from koord.koordlet.strategies.interference_view import CPI, InterferenceState, MetricTrack
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock
from tests.koordlet.reporters import cluster_fixture


def record(uid: str) -> InterferenceRecord:
    return InterferenceRecord(
        number=1,
        namespace="work",
        pod="a",
        uid=uid,
        container="one",
        metric=CPI,
        value=3.0,
        mean=1.0,
        deviation=0.25,
        threshold=1.5,
        samples=60,
        since="2026-01-01T00:00:00Z",
        suspects=(Suspect(namespace="work", pod="b", uid="u", score=0.5, cores=2.0),),
        culprit="work/b",
        action="report",
    )


@pytest.mark.parametrize("annotate", [True, False], ids=["asked", "not-asked"])
def test_the_pod_is_annotated_only_when_asked(annotate: bool) -> None:
    async def main(client: Client, informers: InformerFactory, clock: LoopClock) -> None:
        unwrap(await client.create(NAMESPACES, {"metadata": {"name": "work"}}))
        body = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "one", "image": "i"}]}}
        uid = unwrap(await client.create(PODS, body, "work")).metadata.uid
        key = (uid, "one", CPI)
        calm = InterferenceState(started_s=0.0)
        bad = InterferenceState(
            started_s=0.0, tracks={key: MetricTrack(since_s=60.0)}, incidents={key: record(uid)}, last_number=1
        )
        over = msgspec.structs.replace(
            bad, incidents={}, ended=(msgspec.structs.replace(record(uid), ended="2026-01-01T00:05:00Z", value=1.1),)
        )
        states: list[object] = [None, calm, bad]
        recorder = EventRecorder(client, clock, controller="koordlet", instance="koordlet-node-1")
        recorder.start()
        settings = InterferenceReporterSettings(annotate=annotate)
        reporter = InterferenceReporter(client, clock, recorder, lambda: states[-1], settings)
        for number in range(1, 4):
            reporter_states, states[:] = list(states), states[:number]
            told = await reporter.sync()
            assert [one.reason for one in told] == (["InterferenceDetected"] if number == 3 else [])
            states[:] = reporter_states
        assert await reporter.sync() == [], "nothing is told twice"
        await clock.sleep(5)
        text = unwrap(await client.get(PODS, "a", "work")).metadata.annotations.get(A_INTERFERENCE)
        (event,) = unwrap(await client.list(EVENTS_EVENTS)).items
        assert (event.reason, event.type, event.regarding.name) == ("InterferenceDetected", "Warning", "a")
        assert "the CPU use of work/b follows it" in event.note
        if annotate:
            assert text is not None
            assert json.loads(text)[CPI] == {
                "baseline": 1.0,
                "spread": 0.25,
                "now": 3.0,
                "score": 8.0,
                "sinceS": 60,
                "culprit": "work/b",
            }
        else:
            assert text is None
        states.append(over)
        assert [one.reason for one in await reporter.sync()] == ["InterferenceOver"]
        assert A_INTERFERENCE not in unwrap(await client.get(PODS, "a", "work")).metadata.annotations
        await recorder.stop()

    cluster_fixture.run(main)
