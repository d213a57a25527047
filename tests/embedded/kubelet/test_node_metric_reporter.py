"""Simulated nodes report NodeMetrics when asked to, with the right content, and nothing otherwise."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.slo import NodeMetricStatus
from koord.api.kubernetes.builtin_kinds import PODS
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool, SystemDaemonUsage
from koord.embedded.kubelet.node_reporter import HostUsageSample, node_metric_status
from koord.embedded.kubelet.simulated_host import HostUsage
from koord.embedded.kubelet.usage_model import ZERO_USAGE, SimulatedUsage
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock, run_virtual
from koord.values.quantity import Quantity
from tests.embedded.kubelet.fleet_harness import pod

POOL = SimulatedPool(
    name="n", count=2, cpu=8, memory="16Gi", threads_per_core=1, system=SystemDaemonUsage(cpu="500m", memory="1Gi")
)
ASKS: dict[str, Any] = {
    "metadata": {"name": "n-0"},
    "spec": {
        "metricCollectPolicy": {"reportIntervalSeconds": 30, "nodeAggregatePolicy": {"durations": ["1m0s", "5m0s"]}}
    },
}
Story = Callable[[LoopClock, Client, SimulatedFleet], Awaitable[None]]


def on_fleet(story: Story) -> None:
    async def main(clock: LoopClock) -> None:
        made: list[SimulatedFleet] = []

        def fleet(c: Any) -> SimulatedFleet:
            made.append(
                SimulatedFleet(
                    c.client, c.informers, c.clock, c.seed, (POOL,), FleetSettings(reports_node_metrics=True)
                )
            )
            return made[0]

        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=3), [("nodes", fleet)], clock=clock)
        await cluster.start()
        assert cluster.client is not None
        try:
            await story(clock, cluster.client, made[0])
        finally:
            await cluster.stop()

    run_virtual(main)


async def report(client: Client) -> NodeMetricStatus:
    return unwrap(await client.get(NODE_METRICS, "n-0")).status


def busy(name: str, cpu: str, **spec: Any) -> dict[str, Any]:
    usage = json.dumps({"model": "constant", "cpu": cpu, "memory": "1Gi"})
    return pod(name, says={"usage": usage, "start-seconds": 1}, cpu="2", **spec)


def test_a_report_holds_system_pods_and_what_prod_will_not_use() -> None:
    async def story(clock: LoopClock, client: Client, _: SimulatedFleet) -> None:
        unwrap(await client.create(NODE_METRICS, ASKS))
        unwrap(await client.create(PODS, busy("web", "500m")))
        await clock.sleep(100)
        found = await report(client)
        assert found.node_metric is not None
        assert found.node_metric.node_usage.resources == {"cpu": "1", "memory": "2Gi"}
        assert found.node_metric.system_usage.resources == {"cpu": "500m", "memory": "1Gi"}
        (one,) = found.pods_metric
        assert (one.namespace, one.name, one.priority, one.qos) == ("default", "web", "koord-prod", "LS")
        assert one.pod_usage.resources == {"cpu": "500m", "memory": "1Gi"}
        assert found.prod_reclaimable_metric is not None
        assert found.prod_reclaimable_metric.resource.resources["cpu"] == "1450m"  # 2 less 550m
        assert [window.duration for window in found.node_metric.aggregated_node_usages] == ["1m0s", "5m0s"]

    on_fleet(story)


def test_a_pod_that_does_not_run_yet_is_left_out() -> None:
    async def story(clock: LoopClock, client: Client, _: SimulatedFleet) -> None:
        unwrap(await client.create(NODE_METRICS, ASKS))
        late = busy("late", "1")
        late["metadata"]["annotations"]["sim.koord.sh/start-seconds"] = "60"
        unwrap(await client.create(PODS, late))
        await clock.sleep(40)
        assert (await report(client)).pods_metric == ()
        await clock.sleep(60)
        assert [one.name for one in (await report(client)).pods_metric] == ["late"]

    on_fleet(story)


def test_it_reports_as_often_as_asked_and_only_where_asked() -> None:
    async def story(clock: LoopClock, client: Client, _: SimulatedFleet) -> None:
        unwrap(await client.create(NODE_METRICS, ASKS))
        await clock.sleep(11)
        times = set()
        for _second in range(120):
            times.add((await report(client)).update_time)
            await clock.sleep(1)
        assert None not in times
        assert len(times) == 4 + 1
        assert len(unwrap(await client.list(NODE_METRICS)).items) == 1

    on_fleet(story)


def test_a_node_that_cannot_be_heard_does_not_report() -> None:
    async def story(clock: LoopClock, client: Client, fleet: SimulatedFleet) -> None:
        unwrap(await client.create(NODE_METRICS, ASKS))
        await clock.sleep(20)
        before = (await report(client)).update_time
        fleet.fail_node("n-0", "machine")
        await clock.sleep(300)
        assert (await report(client)).update_time == before
        fleet.heal_node("n-0")
        await clock.sleep(40)
        assert (await report(client)).update_time != before

    on_fleet(story)


@given(values=st.lists(st.integers(0, 10_000), min_size=1, max_size=60))
def test_percentiles_rise_and_stay_within_what_was_seen(values: list[int]) -> None:
    history = [HostUsageSample(60.0 * i, SimulatedUsage(value, value), ZERO_USAGE) for i, value in enumerate(values)]
    usage = HostUsage(system=ZERO_USAGE, pods={}, total=history[-1].total)
    (window,) = node_metric_status({}, usage, history, ("30m0s",))["nodeMetric"]["aggregatedNodeUsages"]
    ranks = ("p50", "p90", "p95", "p99")
    found = [Quantity.parse(window["usage"][name]["resources"]["memory"]).value() for name in ranks]
    seen = values[-30:]  # one a minute
    assert found == sorted(found)
    assert min(seen) <= found[0] <= found[-1] == max(seen)  # of thirty, the 99th percentile is the highest
