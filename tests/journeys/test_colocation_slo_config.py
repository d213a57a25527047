"""The slo-config tutorial: one ConfigMap says how every node protects its services, and what is wrong is said aloud."""

from __future__ import annotations

from typing import Any

from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_SLOS
from koord.api.kubernetes.builtin_kinds import CORE_EVENTS
from koord.api.model import to_dict
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.kube.transport.api_error import unwrap
from tests.journeys.colocation_cluster import CONFIG, ColocationCluster, run_on_colocation_cluster

POOLS = (
    SimulatedPool(name="anolis", count=1, labels={"kubernetes.io/kernel": "anolis"}),
    SimulatedPool(name="plain", count=1),
)
THRESHOLD = {
    "enable": True,
    "cpuSuppressThresholdPercent": 60,
    "cpuSuppressPolicy": "cpuset",
    "memoryEvictThresholdPercent": 60,
}


async def slo(j: ColocationCluster, node: str) -> dict[str, Any]:
    return to_dict(unwrap(await j.client.get(NODE_SLOS, node)).spec)


async def threshold(j: ColocationCluster, node: str) -> dict[str, Any]:
    found: dict[str, Any] = (await slo(j, node))["resourceUsedThresholdWithBE"]
    return found


def test_the_clusters_strategy_reaches_every_node() -> None:
    async def journey(j: ColocationCluster) -> None:
        await j.configure(
            colocation_config={"enable": False}, resource_threshold_config={"clusterStrategy": {"enable": False}}
        )
        assert (await threshold(j, "plain-0"))["enable"] is False
        await j.configure(resource_threshold_config={"clusterStrategy": THRESHOLD})
        for node in ("plain-0", "anolis-0"):
            assert await threshold(j, node) == {**THRESHOLD, "cpuEvictPolicy": "evictByRealLimit"}

    run_on_colocation_cluster(journey, *POOLS)


def test_a_node_strategy_changes_only_what_it_says_and_where() -> None:
    async def journey(j: ColocationCluster) -> None:
        chosen = {"name": "anolis", "nodeSelector": {"matchLabels": {"kubernetes.io/kernel": "anolis"}}}
        await j.configure(
            resource_threshold_config={
                "clusterStrategy": THRESHOLD,
                "nodeStrategies": [{**chosen, "cpuEvictBEUsageThresholdPercent": 80}],
            },
            resource_qos_config={
                "clusterStrategy": {"beClass": {"memoryQOS": {"enable": True, "wmarkRatio": 95, "wmarkMinAdj": 50}}},
                "nodeStrategies": [{**chosen, "beClass": {"memoryQOS": {"wmarkRatio": 90}}}],
            },
            colocation_config={
                "enable": True,
                "metricReportIntervalSeconds": 60,
                "nodeConfigs": [{**chosen, "metricReportIntervalSeconds": 20}],
            },
        )
        both = {**THRESHOLD, "cpuEvictPolicy": "evictByRealLimit"}
        assert await threshold(j, "plain-0") == both
        assert await threshold(j, "anolis-0") == {**both, "cpuEvictBEUsageThresholdPercent": 80}
        quality = (await slo(j, "anolis-0"))["resourceQOSStrategy"]["beClass"]["memoryQOS"]
        assert quality == {"enable": True, "wmarkRatio": 90, "wmarkMinAdj": 50}
        for node, seconds in (("plain-0", 60), ("anolis-0", 20)):
            policy = unwrap(await j.client.get(NODE_METRICS, node)).spec.metric_collect_policy
            assert policy is not None
            assert policy.report_interval_seconds == seconds

    run_on_colocation_cluster(journey, *POOLS)


def test_one_broken_document_is_told_and_stops_nothing_else() -> None:
    async def journey(j: ColocationCluster) -> None:
        await j.configure(resource_threshold_config={"clusterStrategy": THRESHOLD})
        await j.configure(
            resource_threshold_config='{"clusterStrategy": {"enable": true,}}',
            cpu_burst_config={"clusterStrategy": {"policy": "auto"}},
        )
        assert (await threshold(j, "plain-0"))["cpuSuppressThresholdPercent"] == 60
        assert (await slo(j, "plain-0"))["cpuBurstStrategy"]["policy"] == "auto"
        said = [
            e
            for e in unwrap(await j.client.list(CORE_EVENTS)).items
            if e.involved_object.name == CONFIG and e.reason == "SLOCfgUnmarshalFailed"
        ]
        assert len(said) == 1
        assert "ThresholdCfg" in said[0].message

    run_on_colocation_cluster(journey, *POOLS)
