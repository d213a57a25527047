"""Agents follow their fleet: a node that joins gets one that knows all at once, one that boots starts from nothing."""

from __future__ import annotations

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.embedded.kubelet.node_profile import SimulatedPool, SystemDaemonUsage
from koord.host.cgroup import knob
from koord.kube.transport.api_error import unwrap
from koord.values.cpuset import CPUSet
from tests.journeys.colocation_cluster import batch_pod, pod
from tests.journeys.node_agent_cluster import BESTEFFORT, NodeAgentCluster, run_on_node_agent_cluster

NODE = SimulatedPool(name="n", count=1, cpu=16, memory="64Gi", system=SystemDaemonUsage(cpu="500m", memory="1Gi"))
LATE = SimulatedPool(name="late", count=1, cpu=8, memory="32Gi", system=SystemDaemonUsage(cpu="500m", memory="1Gi"))
LS = {"koordinator.sh/qosClass": "LS"}


def test_a_node_that_joins_later_is_looked_after_too() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        await journey.configure(resource_threshold_config={"clusterStrategy": {"enable": True}})
        await journey.fleet.add_pool(LATE)
        await journey.clock.sleep(80)
        assert set(journey.agents.agents) == {"n-0", "late-0"}
        status = unwrap(await journey.client.get(NODE_METRICS, "late-0")).status
        assert status.node_metric is not None
        assert status.node_metric.node_usage.resources["cpu"] == "500m"
        # 65 % of 8 CPUs less the system's half one.
        held = journey.agents.agents["late-0"].machine.read_knob(BESTEFFORT, knob.CPUSET) or ""
        assert len(CPUSet.parse(held)) == 5
        await journey.fleet.remove_node("late-0")
        await journey.clock.sleep(5)
        assert set(journey.agents.agents) == {"n-0"}

    run_on_node_agent_cluster(main, NODE, switches="BECPUSuppress")


def test_after_a_boot_the_agent_finds_a_fresh_machine() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        await journey.configure(resource_threshold_config={"clusterStrategy": {"enable": True}})
        await journey.create_and_wait(pod("web", {"cpu": "10", "memory": "8Gi"}, uses={"cpu": "7"}, labels=LS))
        await journey.wait_for_reports(2)
        await journey.create_and_wait(batch_pod("work", 2000))
        await journey.clock.sleep(10)
        before = journey.agent
        journey.fleet.fail_node("n-0", "machine")
        await journey.clock.sleep(20)
        assert journey.agent is before
        journey.fleet.heal_node("n-0")
        await journey.clock.sleep(30)
        assert journey.agent is not before
        fare = await journey.container_step_result("web")
        assert (fare.got_milli, fare.contention.short_milli) == (7000, 0)

    run_on_node_agent_cluster(main, NODE, switches="BECPUSuppress")


def test_a_node_that_is_cut_off_neither_evicts_nor_reports() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        strategy = {"enable": True, "memoryEvictThresholdPercent": 70}
        await journey.configure(resource_threshold_config={"clusterStrategy": strategy})
        await journey.create_and_wait(
            pod("redis", {"cpu": "2", "memory": "40Gi"}, uses={"cpu": "1", "memory": "30Gi"}, labels=LS)
        )
        await journey.wait_for_reports(2)
        await journey.create_and_wait(batch_pod("work", 1000, "8Gi", uses={"memory": "7Gi"}))
        told = unwrap(await journey.client.get(NODE_METRICS, "n-0")).status.update_time
        journey.fleet.fail_node("n-0", "partition")
        await journey.set_usage("redis", cpu="1", memory="40Gi")
        await journey.clock.sleep(20)
        assert await journey.pod("work") is not None
        assert len(journey.agents.ledger.records()) == 0
        journey.fleet.heal_node("n-0")
        await journey.clock.sleep(61)
        assert await journey.pod("work") is None
        assert unwrap(await journey.client.get(NODE_METRICS, "n-0")).status.update_time != told

    run_on_node_agent_cluster(main, NODE, switches="BEMemoryEvict")
