"""The tutorials about memory and disks on a node: eviction, memory QoS, disk limits; and what prod pods lend."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.kubernetes.builtin_kinds import PODS
from koord.embedded.kubelet.node_profile import SimulatedPool, SystemDaemonUsage
from koord.host.cgroup import knob
from koord.kube.transport.api_error import unwrap
from koord.values.quantity import Quantity
from tests.journeys.colocation_cluster import MID_CPU, batch_pod, pod
from tests.journeys.node_agent_cluster import BESTEFFORT, NodeAgentCluster, run_on_node_agent_cluster

GIB = 1 << 30
NODE = SimulatedPool(name="n", count=1, cpu=16, memory="64Gi", system=SystemDaemonUsage(cpu="500m", memory="1Gi"))
ANOLIS_NODE = msgspec.structs.replace(NODE, kernel="anolis")
LS, BE = {"koordinator.sh/qosClass": "LS"}, {"koordinator.sh/qosClass": "BE"}


def on_node(made: dict[str, Any]) -> dict[str, Any]:
    return {**made, "spec": {**made["spec"], "nodeName": "n-0"}}


def be_pod(name: str, memory: str, priority: str = "koord-batch") -> dict[str, Any]:
    """Without any request, as in the tutorial."""
    return on_node(pod(name, {}, uses={"cpu": "100m", "memory": memory}, labels=BE, priorityClassName=priority))


def test_when_memory_is_short_the_lowest_and_largest_go_until_it_is_not() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        strategy = {"enable": True, "memoryEvictThresholdPercent": 70}
        await journey.configure(resource_threshold_config={"clusterStrategy": strategy})
        await journey.create_and_wait(
            pod("redis", {"cpu": "2", "memory": "40Gi"}, uses={"cpu": "1", "memory": "30Gi"}, labels=LS),
            be_pod("be-small", "2Gi"),
            be_pod("be-pod-demo", "5Gi"),
            be_pod("be-free", "1Gi", priority="koord-free"),
        )
        await journey.clock.sleep(30)
        assert len(journey.agents.ledger.records()) == 0
        await journey.set_usage("redis", cpu="1", memory="37Gi")  # with the others 46 of 64 GiB: 71 %
        await journey.clock.sleep(15)
        assert await journey.pod("be-free") is None  # lowest priority first
        assert await journey.pod("be-pod-demo") is None  # then the largest
        assert await journey.pod("be-small") is not None  # 40 of 64 are under 68 %
        assert await journey.pod("redis") is not None
        reasons = dict(await journey.events_about("be-pod-demo"))
        assert "BEMemoryEvict" in reasons["evictPodSuccess"]

    run_on_node_agent_cluster(main, NODE, switches="BEMemoryEvict")


def test_without_the_gate_the_kernel_kills_instead() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        await journey.create_and_wait(
            pod("redis", {"cpu": "2", "memory": "40Gi"}, uses={"cpu": "1", "memory": "30Gi"}, labels=LS),
            be_pod("be-pod-demo", "20Gi"),
        )
        await journey.clock.sleep(5)
        await journey.set_usage("be-pod-demo", cpu="100m", memory="40Gi")
        await journey.clock.sleep(5)
        found = await journey.pod("be-pod-demo")
        assert found is not None
        status = found.status.container_statuses[0]
        ended = status.last_state.terminated or status.state.terminated
        assert ended is not None
        assert (ended.reason, ended.exit_code) == ("OOMKilled", 137)
        assert len(journey.agents.ledger.records()) == 0

    run_on_node_agent_cluster(main, NODE, switches="BECPUSuppress")


def test_memory_of_services_is_kept_and_batch_memory_is_taken_first() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        redis = pod("redis-demo", {"cpu": "2", "memory": "2Gi"}, labels=LS)
        redis["metadata"]["annotations"]["koordinator.sh/memoryQOS"] = json.dumps({"policy": "auto"})
        await journey.create_and_wait(redis, on_node(batch_pod("stress-demo", 2000, "11Gi")))
        qos = {"memoryQOS": {"enable": True}}
        await journey.configure(resource_qos_config={"clusterStrategy": {"lsClass": qos, "beClass": qos}})
        await journey.clock.sleep(5)
        service, batch = await journey.group("redis-demo"), await journey.group("stress-demo")
        marks = (knob.MEMORY_WMARK_RATIO, knob.MEMORY_WMARK_MIN_ADJ)
        assert [journey.knob(service, name) for name in marks] == ["95", "-25"]
        assert [journey.knob(batch, name) for name in marks] == ["95", "50"]

        await annotate(journey, "redis-demo", {"policy": "auto", "minLimitPercent": 100})
        await journey.clock.sleep(5)
        assert journey.knob(service, knob.MEMORY_MIN) == str(2 * GIB)
        assert journey.knob("kubepods", knob.MEMORY_MIN) == str(2 * GIB)

        await journey.configure(resource_qos_config={"clusterStrategy": {}})
        await annotate(journey, "redis-demo", {"policy": "none"})
        await journey.clock.sleep(5)
        assert [journey.knob(service, name) for name in marks] == ["0", "0"]
        assert journey.knob(service, knob.MEMORY_MIN) == "0"

    run_on_node_agent_cluster(main, ANOLIS_NODE, switches="CgroupReconcile")


def test_disk_limits_of_batch_work_come_and_go() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        limits = {"readIOPS": 2048, "writeBPS": 999_999}
        block = {"name": "/dev/vda", "type": "device", "ioCfg": limits}
        strategy = {"beClass": {"blkioQOS": {"enable": True, "blocks": [block]}}}
        await journey.configure(resource_qos_config={"clusterStrategy": strategy})
        await journey.clock.sleep(5)
        assert journey.knob(BESTEFFORT, knob.READ_IOPS) == "253:0 2048\n"
        assert journey.knob(BESTEFFORT, knob.WRITE_BPS) == "253:0 999999\n"
        assert journey.knob(BESTEFFORT, knob.READ_BPS) == ""
        await journey.configure(resource_qos_config={"clusterStrategy": {}})
        await journey.clock.sleep(5)
        assert journey.knob(BESTEFFORT, knob.READ_IOPS) == ""

    run_on_node_agent_cluster(main, NODE, switches="BlkIOReconcile")


def test_what_prod_pods_do_not_need_is_predicted_reported_and_lent_as_mid() -> None:
    async def main(journey: NodeAgentCluster) -> None:
        await journey.configure(colocation_config={"enable": True, "midCPUThresholdPercent": 100})
        await journey.create_and_wait(
            pod("web", {"cpu": "8", "memory": "16Gi"}, uses={"cpu": "1", "memory": "4Gi"}, labels=LS)
            | {"spec": {**pod("web", {"cpu": "8", "memory": "16Gi"})["spec"], "priorityClassName": "koord-prod"}}
        )
        await journey.wait_for_reports(2)
        assert await reclaimable(journey) == 0  # too young to be trusted
        await journey.clock.sleep(1800)
        # Its peak of 1 CPU and the system's half one, each in a bucket up to 5 % wide, and 10 % on top.
        milli = await reclaimable(journey)
        assert 8000 - 1.1 * 1.1 * 1500 <= milli <= 8000 - 1.1 * 1500
        lent = Quantity.parse((await journey.lent_resources("n-0"))[MID_CPU]).value()
        assert lent == pytest.approx(milli, abs=800)

    run_on_node_agent_cluster(main, NODE, switches="BECPUSuppress", step_s=5.0, cold_start_s=600.0)


async def annotate(journey: NodeAgentCluster, name: str, memory_qos: dict[str, object]) -> None:
    patch = {"metadata": {"annotations": {"koordinator.sh/memoryQOS": json.dumps(memory_qos)}}}
    unwrap(await journey.client.patch(PODS, name, patch, "default", kind="merge"))


async def reclaimable(journey: NodeAgentCluster) -> int:
    metric = unwrap(await journey.client.get(NODE_METRICS, "n-0")).status.prod_reclaimable_metric
    assert metric is not None
    amount = metric.resource.resources.get("cpu")
    return 0 if amount is None else Quantity.parse(amount).milli_value()
