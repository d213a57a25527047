"""The NodeMetric as it arrives at the API server: when, with what, and when not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.slo import HostApplicationSpec, NodeMetric
from koord.api.model import to_dict
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.reporters.builders.reclaimable import PeakPrediction, ResourceAmount
from koord.koordlet.reporters.node_metric_reporter import NodeMetricInputs, NodeMetricReporter
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock
from tests.koordlet.reporters import cluster_fixture
from tests.koordlet.reporters.cluster_fixture import GIB, NODE

LS = {"koordinator.sh/qosClass": "LS"}
PODS = (PodMeta(uid="u1", namespace="work", name="web", labels=LS), PodMeta(uid="u2", namespace="a", name="idle"))


class World:
    def __init__(self, client: Client, informers: InformerFactory, clock: LoopClock) -> None:
        self.client = client
        self.clock = clock
        self.store = SeriesStore(metric_kind.retention_s())
        self.read_inputs = NodeMetricInputs(pods=PODS, numa_nodes=(0,))
        follow = informers.for_resource(NODE_METRICS, fields=f"metadata.name={NODE}")
        self.reporter = NodeMetricReporter(client, clock, NODE, self.store, follow, lambda: self.read_inputs)

    async def measure(self, seconds: int, cores: float = 4.0) -> None:
        """One sample a second."""
        for _ in range(seconds):
            now_s = self.clock.time()
            for key, value in (
                ((metric_kind.NODE_CPU,), cores),
                ((metric_kind.NODE_MEMORY,), 8 * GIB),
                ((metric_kind.SYSTEM_CPU,), 0.3),
                ((metric_kind.SYSTEM_MEMORY,), GIB),
                ((metric_kind.NUMA_CPU, "0"), cores),
                ((metric_kind.NUMA_MEMORY, "0"), 8 * GIB),
                ((metric_kind.POD_CPU, "u1"), 0.5),
                ((metric_kind.POD_MEMORY, "u1"), 256 * 2**20),
                ((metric_kind.APPLICATION_CPU, "nginx"), 1.0),
                ((metric_kind.APPLICATION_MEMORY, "nginx"), GIB),
            ):
                self.store.add(key, now_s, value)
            await asyncio.sleep(1)

    async def create(self, **policy: Any) -> None:
        spec = {"metricCollectPolicy": policy} if policy else {}
        unwrap(await self.client.create(NODE_METRICS, {"metadata": {"name": NODE}, "spec": spec}))

    async def status(self) -> dict[str, Any]:
        found = to_dict(unwrap(await self.client.get(NODE_METRICS, NODE)))
        status: dict[str, Any] = found.get("status", {})
        return status


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def main(client: Client, informers: InformerFactory, clock: LoopClock) -> None:
        world = World(client, informers, clock)
        await informers.wait_for_cache_sync()
        task = asyncio.create_task(world.reporter.run())
        try:
            await test(world)
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    cluster_fixture.run(main)


def test_a_report_after_the_interval_and_not_before() -> None:
    async def test(world: World) -> None:
        await world.create()
        await world.measure(59)
        assert "updateTime" not in await world.status()
        await world.measure(2)
        status = await world.status()
        assert status["nodeMetric"]["nodeUsage"]["resources"] == {"cpu": "4", "memory": "8Gi"}
        assert status["nodeMetric"]["systemUsage"]["resources"] == {"cpu": "300m", "memory": "1Gi"}
        assert status["nodeMetric"]["numaUsages"][0]["nodeUsage"]["resources"]["cpu"] == "4"
        assert [one["duration"] for one in status["nodeMetric"]["aggregatedNodeUsages"]] == ["5m0s", "10m0s", "30m0s"]
        assert status["podsMetric"] == [
            {
                "name": "web",
                "namespace": "work",
                "podUsage": {"resources": {"cpu": "500m", "memory": "256Mi"}},
                "priority": "koord-prod",
                "qos": "LS",
            }
        ], "a pod without samples is left out"

    run(test)


def test_windows_are_told_when_half_of_them_is_covered() -> None:
    async def test(world: World) -> None:
        await world.create()
        await world.measure(330)
        windows = (await world.status())["nodeMetric"]["aggregatedNodeUsages"]
        told = [bool(window["usage"]["p95"].get("resources")) for window in windows]
        assert told == [True, True, False]

    run(test)


def test_a_shorter_interval_counts_at_once() -> None:
    async def test(world: World) -> None:
        await world.create(reportIntervalSeconds=3600)
        await world.measure(100)
        assert "updateTime" not in await world.status()
        patch = {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 30}}}
        unwrap(await world.client.patch(NODE_METRICS, NODE, patch, kind="merge"))
        await world.measure(2)
        assert "updateTime" in await world.status()
        assert world.reporter.policy.report_s == 30

    run(test)


def test_series_reach_as_far_back_as_the_policy_asks() -> None:
    async def test(world: World) -> None:
        await world.create(aggregateDurationSeconds=600, nodeAggregatePolicy={"durations": ["1h"]})
        await world.measure(2)
        assert world.store.retention_s(metric_kind.NODE_CPU) == 3600
        assert world.store.retention_s(metric_kind.POD_CPU) == 600
        await world.measure(2000)
        (window,) = (await world.status())["nodeMetric"]["aggregatedNodeUsages"]
        assert window["duration"] == "1h0m0s"
        assert window["usage"]["p95"]["resources"]["cpu"] == "4"
        patch = {"spec": {"metricCollectPolicy": {"aggregateDurationSeconds": 10**6}}}
        unwrap(await world.client.patch(NODE_METRICS, NODE, patch, kind="merge"))
        await world.measure(2)
        assert world.store.retention_s(metric_kind.POD_CPU) == 1800, "there is an end to it"

    run(test)


def test_host_applications_and_predictions_are_part_of_it() -> None:
    async def test(world: World) -> None:
        await world.create()
        world.read_inputs = msgspec.structs.replace(
            world.read_inputs,
            applications=(HostApplicationSpec(name="nginx", priority="koord-prod", qos="LS"),),
            prediction=PeakPrediction(reclaimable=ResourceAmount(1450, GIB), peak=ResourceAmount(2050, 2 * GIB)),
        )
        await world.measure(61)
        status = await world.status()
        assert status["hostApplicationMetric"] == [
            {
                "name": "nginx",
                "usage": {"resources": {"cpu": "1", "memory": "1Gi"}},
                "priority": "koord-prod",
                "qos": "LS",
            }
        ]
        assert status["prodReclaimableMetric"]["resource"]["resources"] == {"cpu": "1450m", "memory": "1Gi"}
        assert status["prodPeakMetric"]["resource"]["resources"] == {"cpu": "2050m", "memory": "2Gi"}
        world.read_inputs = msgspec.structs.replace(world.read_inputs, prediction=None, applications=())
        await world.measure(61)
        status = await world.status()
        assert "prodPeakMetric" not in status, "what is not predicted any more must not stay"
        assert "hostApplicationMetric" not in status

    run(test)


def test_nothing_is_reported_of_a_node_that_is_not_measured(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        await world.create(reportIntervalSeconds=30)
        await world.measure(31)
        await asyncio.sleep(60)
        first = (await world.status())["updateTime"]
        await asyncio.sleep(300)
        assert (await world.status())["updateTime"] == first, "old numbers get no new time"
        assert "not measured" in world.reporter.problem
        await world.measure(40)
        assert (await world.status())["updateTime"] > first
        assert world.reporter.problem == ""

    with caplog.at_level(logging.INFO, "koord.koordlet.reporters"):
        run(test)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]


def test_nothing_is_reported_while_pods_are_unknown() -> None:
    async def test(world: World) -> None:
        await world.create(reportIntervalSeconds=30)
        world.read_inputs = NodeMetricInputs()
        await world.measure(70)
        assert "updateTime" not in await world.status()
        world.read_inputs = NodeMetricInputs(pods=())
        await world.measure(11)
        assert "updateTime" in await world.status(), "a node without pods is reported"

    run(test)


def test_without_a_node_metric_it_waits_for_one(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        await world.measure(150)
        assert "no NodeMetric" in world.reporter.problem
        await world.create()
        await world.measure(61)
        found: NodeMetric = unwrap(await world.client.get(NODE_METRICS, NODE))
        assert found.status.update_time is not None
        unwrap(await world.client.delete(NODE_METRICS, NODE))
        await world.measure(61)
        await world.create()
        await world.measure(61)
        assert "updateTime" in await world.status()

    run(test)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 2
