"""Disturbed pods are found against their own past, reported once, and forgotten when they are gone."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations.pod_codecs import A_INTERFERENCE
from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, NAMESPACES, PODS
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.reporters.builders.interference import (
    CPI,
    CPU_PSI,
    MIN_SAMPLES,
    InterferenceDetector,
    InterferenceFinding,
    MetricBaseline,
)
from koord.koordlet.reporters.interference_reporter import InterferenceReporter, InterferenceReporterSettings
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import VIRTUAL_EPOCH, LoopClock
from tests.koordlet.reporters import cluster_fixture

LS = {"koordinator.sh/qosClass": "LS"}
BE = {"koordinator.sh/qosClass": "BE"}


def pod(uid: str, labels: dict[str, str] | None = None) -> PodMeta:
    containers = tuple(ContainerMeta(name=name, id=f"{uid}-{name}") for name in ("one", "two"))
    return PodMeta(uid=uid, name=uid, namespace="work", labels=LS if labels is None else labels, containers=containers)


class Bench:
    """A detector with samples every ten seconds."""

    def __init__(self, *pods: PodMeta) -> None:
        self.store = SeriesStore(metric_kind.retention_s())
        self.detector = InterferenceDetector()
        self.pods = pods
        self.now_s = VIRTUAL_EPOCH
        self.chance = random.Random(1)

    def cpi(self, uid: str, value: float, count: int = 1, instructions: float = 1e9) -> list[InterferenceFinding]:
        found: list[InterferenceFinding] = []
        for _ in range(count):
            self.now_s += 60
            noise = 1 + self.chance.uniform(-0.02, 0.02)
            for name in ("one", "two"):
                self.store.add(
                    (metric_kind.CONTAINER_CPI, f"{uid}-{name}", "cycle"), self.now_s, value * noise * instructions
                )
                self.store.add((metric_kind.CONTAINER_CPI, f"{uid}-{name}", "instruction"), self.now_s, instructions)
            found += self.detector.detect(self.now_s, self.pods, self.store)
        return found

    def psi(self, uid: str, value: float, count: int = 1) -> list[InterferenceFinding]:
        found: list[InterferenceFinding] = []
        for _ in range(count):
            self.now_s += 10
            self.store.add((metric_kind.POD_PSI, uid, "cpu", "10", "some"), self.now_s, value)
            found += self.detector.detect(self.now_s, self.pods, self.store)
        return found


class TestDetector:
    def test_a_pod_that_runs_as_ever_is_not_disturbed(self) -> None:
        bench = Bench(pod("a"))
        assert bench.cpi("a", 1.2, 200) == []

    def test_more_cycles_per_instruction_are_found_and_their_end_too(self) -> None:
        bench = Bench(pod("a"))
        bench.cpi("a", 1.0, 30)
        began = bench.cpi("a", 2.0, 2)
        assert began == [], "two bad samples may be chance"
        (finding,) = bench.cpi("a", 2.0, 10)
        assert (finding.uid, finding.metric, finding.over) == ("a", CPI, False)
        assert finding.baseline == pytest.approx(1.0, abs=0.2)
        assert finding.now == pytest.approx(2.0, abs=0.1)
        assert finding.score > 3
        assert "spreads above" in finding.why
        assert bench.detector.disturbed[0].metric == CPI
        (ended,) = bench.cpi("a", 1.0, 5)
        assert ended.over
        assert ended.since_s == finding.since_s
        assert bench.detector.disturbed == ()

    def test_stalls_are_found_by_their_own_past(self) -> None:
        bench = Bench(pod("calm"), pod("wild"))
        bench.psi("calm", 0.5, 30)
        bench.psi("wild", 30.0, 30)
        assert bench.psi("wild", 31.0, 5) == [], "as ever, for this one"
        (finding,) = bench.psi("calm", 31.0, 5)
        assert (finding.uid, finding.metric) == ("calm", CPU_PSI)

    def test_a_new_pod_has_no_past(self) -> None:
        bench = Bench(pod("a"))
        assert bench.psi("a", 0.0, MIN_SAMPLES - 2) == []
        assert bench.psi("a", 90.0, 1) == []

    def test_only_latency_sensitive_pods_are_looked_at(self) -> None:
        bench = Bench(pod("b", BE))
        bench.psi("b", 1.0, 30)
        assert bench.psi("b", 90.0, 10) == []
        assert len(bench.detector) == 0

    def test_idle_containers_say_nothing(self) -> None:
        bench = Bench(pod("a"))
        bench.cpi("a", 1.0, 30)
        assert bench.cpi("a", 50.0, 10, instructions=100.0) == []

    def test_a_sample_is_judged_once(self) -> None:
        bench = Bench(pod("a"))
        bench.psi("a", 1.0, 30)
        bench.psi("a", 90.0, 1)
        for _ in range(20):
            assert bench.detector.detect(bench.now_s + 1, bench.pods, bench.store) == []

    def test_better_than_ever_is_no_disturbance(self) -> None:
        bench = Bench(pod("a"))
        bench.cpi("a", 3.0, 30)
        assert bench.cpi("a", 0.5, 10) == []

    def test_what_lasts_becomes_normal(self) -> None:
        bench = Bench(pod("a"))
        bench.cpi("a", 1.0, 30)
        found = bench.cpi("a", 1.6, 600)
        assert [finding.over for finding in found] == [False, True], "a new version may just need more"

    def test_pods_that_are_gone_are_forgotten(self) -> None:
        bench = Bench(pod("a"))
        bench.psi("a", 1.0, 30)
        bench.pods = ()
        bench.detector.detect(bench.now_s, bench.pods, bench.store)
        assert len(bench.detector) == 0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_a_baseline_stays_within_what_it_was_told(values: list[float]) -> None:
    baseline = MetricBaseline(floor=0.1)
    for number, value in enumerate(values):
        baseline.add(number * 60.0, value, edge=3.0)
    assert min(values) - 1e-6 <= baseline.mean <= max(values) + 1e-6
    assert baseline.spread >= 0.1


@pytest.mark.parametrize("tell", [True, False], ids=["asked", "not-asked"])
def test_the_pod_is_told_only_when_asked(tell: bool) -> None:
    async def main(client: Client, informers: InformerFactory, clock: LoopClock) -> None:
        unwrap(await client.create(NAMESPACES, {"metadata": {"name": "work"}}))
        body = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "one", "image": "i"}]}}
        made = unwrap(await client.create(PODS, body, "work"))
        uid = made.metadata.uid
        view = PodMeta(uid=uid, name="a", namespace="work", labels=LS)
        store = SeriesStore(metric_kind.retention_s())
        recorder = EventRecorder(client, clock, controller="koordlet", instance="koordlet-node-1")
        recorder.start()
        reporter = InterferenceReporter(
            client, clock, store, recorder, lambda: (view,), InterferenceReporterSettings(publish=tell)
        )
        task = asyncio.create_task(reporter.run())

        async def stall(value: float, seconds: int) -> None:
            for _ in range(seconds // 10):
                store.add((metric_kind.POD_PSI, uid, "cpu", "10", "some"), clock.time(), value)
                await asyncio.sleep(10)

        await stall(1.0, 300)
        await stall(80.0, 60)
        assert len(reporter.disturbed) == 1
        text = unwrap(await client.get(PODS, "a", "work")).metadata.annotations.get(A_INTERFERENCE)
        events = [event.reason for event in unwrap(await client.list(EVENTS_EVENTS)).items]
        if tell:
            assert text is not None
            assert json.loads(text)[CPU_PSI]["now"] == 80.0
            assert events == ["InterferenceDetected"]
        else:
            assert text is None
            assert events == []
        await stall(1.0, 60)
        assert A_INTERFERENCE not in unwrap(await client.get(PODS, "a", "work")).metadata.annotations
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await recorder.stop()

    cluster_fixture.run(main)
