"""The tutorials about CPU on a node: suppression, eviction of starving BE pods, burst and group identity."""

from __future__ import annotations

import json

import msgspec
import pytest

from koord.embedded.kubelet.node_profile import SimulatedPool, SystemDaemonUsage
from koord.host.cgroup import knob
from koord.values.cpuset import CPUSet
from tests.journeys.colocation_cluster import batch_pod, pod
from tests.journeys.node_agent_cluster import BESTEFFORT, NodeAgentCluster, run_on_node_agent_cluster

NODE = SimulatedPool(name="n", count=1, cpu=16, memory="64Gi", system=SystemDaemonUsage(cpu="500m", memory="1Gi"))
ANOLIS_NODE = msgspec.structs.replace(NODE, kernel="anolis")
LS = {"koordinator.sh/qosClass": "LS"}
BE = {"koordinator.sh/qosClass": "BE"}


def cpus(journey: NodeAgentCluster, group: str = BESTEFFORT) -> int:
    return len(CPUSet.parse(journey.knob(group, knob.CPUSET) or ""))


def test_cpus_of_batch_work_follow_the_services_down_at_once_and_up_step_by_step() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        await journey.configure(resource_threshold_config={"clusterStrategy": {"enable": True}})
        await journey.create_and_wait(pod("web", {"cpu": "10", "memory": "8Gi"}, uses={"cpu": "1"}, labels=LS))
        await journey.wait_for_reports(2)
        await journey.create_and_wait(batch_pod("be-pod-demo", 8000, "4Gi", uses={"cpu": "100%"}))
        # 65 % of 16 CPUs are 10.4; services use 1 and the system half a one.
        await journey.clock.sleep(20)
        assert cpus(journey) == 9
        before = await journey.container_step_result("be-pod-demo")
        assert before.got_milli == pytest.approx(8000)

        await journey.set_usage("web", cpu="7")
        await journey.clock.sleep(3)
        assert cpus(journey) == 3
        assert cpus(journey, await journey.group("be-pod-demo")) == 3
        assert (await journey.container_step_result("be-pod-demo")).got_milli == pytest.approx(3000)
        assert (await journey.container_step_result("web")).got_milli == pytest.approx(7000)
        assert (await journey.container_step_result("web")).contention.short_milli == 0

        await journey.set_usage("web", cpu="1")
        await journey.clock.sleep(2)
        assert 3 < cpus(journey) < 9
        await journey.clock.sleep(10)
        assert cpus(journey) == 9

        await journey.configure(resource_threshold_config={"clusterStrategy": {"enable": False}})
        await journey.clock.sleep(3)
        assert cpus(journey) == 16

    run_on_node_agent_cluster(main, NODE, switches="BECPUSuppress")


def test_suppression_by_quota_holds_the_same_room() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        strategy = {"enable": True, "cpuSuppressPolicy": "cfsQuota"}
        await journey.configure(resource_threshold_config={"clusterStrategy": strategy})
        await journey.create_and_wait(pod("web", {"cpu": "10", "memory": "8Gi"}, uses={"cpu": "1"}, labels=LS))
        await journey.wait_for_reports(2)
        await journey.create_and_wait(batch_pod("be-pod-demo", 8000, "4Gi", uses={"cpu": "100%"}))
        await journey.set_usage("web", cpu="7")
        await journey.clock.sleep(5)
        assert journey.knob(BESTEFFORT, knob.CPU_QUOTA) == "290000"
        assert (await journey.container_step_result("be-pod-demo")).got_milli == pytest.approx(2900)

    run_on_node_agent_cluster(main, NODE, switches="BECPUSuppress")


def test_starving_batch_pods_are_evicted_and_the_reason_is_told() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        # The odd key is what the tutorial has.
        strategy = {
            "enable": True,
            "cpuEvictBESatisfactionLowerPercent": 60,
            "cpuEvictBESatisfactionUpperPercent": 80,
            "cpuEvictBEUsageThresholdPercent": 90,
            "CPUEvictTimeWindowSeconds": 60,
        }
        await journey.configure(resource_threshold_config={"clusterStrategy": strategy})
        await journey.create_and_wait(pod("web", {"cpu": "10", "memory": "8Gi"}, uses={"cpu": "1"}, labels=LS))
        await journey.wait_for_reports(2)
        await journey.create_and_wait(
            batch_pod("be-pod-demo", 4000, "4Gi", uses={"cpu": "100%"}),
            batch_pod("be-pod-other", 4000, "4Gi", uses={"cpu": "90%"}),
        )
        await journey.clock.sleep(60)
        assert await journey.pod("be-pod-demo") is not None
        await journey.set_usage("web", cpu="7")
        await journey.clock.sleep(100)
        # Held to three CPUs both use the same share of what they asked for; the first by name goes, and that is enough.
        assert await journey.pod("be-pod-demo") is None
        assert await journey.pod("be-pod-other") is not None
        reasons = dict(await journey.events_about("be-pod-demo"))
        assert "BECPUEvict" in reasons["evictPodSuccess"]
        assert "m of 8000m asked for" in reasons["evictPodSuccess"]
        assert [entry.name for entry in journey.agents.ledger.records()] == ["be-pod-demo"]

    run_on_node_agent_cluster(main, NODE, switches="BECPUSuppress,BECPUEvict")


def test_a_throttled_service_bursts_until_the_node_is_busy() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        burst = {"koordinator.sh/cpuBurst": json.dumps({"policy": "auto"})}
        apache = pod("apache-demo", {"cpu": "2", "memory": "10Gi"}, uses={"cpu": "3"}, labels=LS)
        apache["metadata"]["annotations"] |= burst
        await journey.create_and_wait(
            apache, pod("hog", {"cpu": "10", "memory": "4Gi"}, uses={"cpu": "100m"}, labels=LS)
        )
        group = await journey.group("apache-demo")
        container = journey.agent.machine.child_groups(group)[0]
        await journey.clock.sleep(10)
        fare = await journey.container_step_result("apache-demo")
        assert int(journey.knob(container, knob.CPU_QUOTA) or 0) >= 300_000
        assert (fare.throttled_share, fare.got_milli) == (0.0, 3000)
        assert int(journey.knob(container, knob.CPU_BURST) or 0) > 0

        await journey.set_usage("hog", cpu="9")
        await journey.clock.sleep(30)
        assert journey.knob(container, knob.CPU_QUOTA) == "200000"
        assert (await journey.container_step_result("apache-demo")).throttled_share == 1.0

    run_on_node_agent_cluster(main, NODE, switches="CPUBurst")


IDENTITIES = {
    "lsClass": {"cpuQOS": {"enable": True, "groupIdentity": 2}},
    "beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}},
}


def test_group_identity_lets_services_go_first() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        await journey.configure(resource_qos_config={"clusterStrategy": IDENTITIES})
        await journey.create_and_wait(
            pod("ls-pod-demo", {"cpu": "4", "memory": "10Gi"}, labels=LS),
            {**(one := batch_pod("be-pod-demo", 2000)), "spec": {**one["spec"], "nodeName": "n-0"}},
        )
        await journey.clock.sleep(15)
        assert journey.knob(await journey.group("ls-pod-demo"), knob.CPU_BVT) == "2"
        assert journey.knob(await journey.group("be-pod-demo"), knob.CPU_BVT) == "-1"

    run_on_node_agent_cluster(main, ANOLIS_NODE, switches="GroupIdentity")


def test_idle_groups_stand_in_where_a_kernel_has_no_identities() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        await journey.configure(resource_qos_config={"clusterStrategy": IDENTITIES})
        await journey.create_and_wait(pod("batch", {}, uses={"cpu": "1"}, labels=BE, priorityClassName="koord-batch"))
        await journey.clock.sleep(15)
        assert journey.knob(await journey.group("batch"), knob.CPU_IDLE) == "1"
        assert journey.knob(BESTEFFORT, knob.CPU_IDLE) == "0", "kubelet writes the shares of this group"

    run_on_node_agent_cluster(main, NODE, switches="GroupIdentity")
