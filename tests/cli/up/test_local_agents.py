"""The node agent on every simulated node of `koord up`: it reports, holds batch work back, and does what hooks say."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NODES, PODS
from koord.cli import cluster_access
from koord.cli.commands.evictions import explain_eviction
from koord.cli.commands.node_agent import node_capabilities
from koord.cli.up.components import AGENTS_UP_TO, choose_components
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.manager.reconcile_loop import NAMESPACE
from koord.telemetry.clock import LoopClock, run_virtual
from koord.values.cpuset import CPUSet
from koord.values.quantity import Quantity
from tests.cli.cluster_with_agents import with_agents
from tests.journeys.colocation_cluster import batch_pod


def test_nodes_with_agents_report_lend_and_run_batch_work() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        for metric in unwrap(await client.list(NODE_METRICS)).items:
            assert metric.status.node_metric is not None
            assert metric.status.node_metric.node_usage.resources["cpu"] == "200m"
        node = unwrap(await client.get(NODES, "node-0"))
        assert Quantity.parse(node.status.allocatable["kubernetes.io/batch-cpu"]).value() > 10_000
        unwrap(await client.create(PODS, batch_pod("work", 4000, namespace="default")))
        await clock.sleep(10)
        assert unwrap(await client.get(PODS, "work", "default")).status.phase == "Running"

    with_agents(story)


def test_the_report_of_a_node_forgets_its_last_pod() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.create(PODS, batch_pod("work", 4000, namespace="default")))
        await clock.sleep(130)
        placed = unwrap(await client.get(PODS, "work", "default")).spec.node_name
        reported = unwrap(await client.get(NODE_METRICS, placed)).status.pods_metric
        assert [one.name for one in reported] == ["work"]
        unwrap(await client.dynamic.delete(PODS, "work", "default"))
        await clock.sleep(130)
        assert unwrap(await client.get(NODE_METRICS, placed)).status.pods_metric == ()

    with_agents(story)
    with_agents(story, agents="false")


def test_agents_serve_koordlets_metrics() -> None:
    async def served(client: Client, node: str) -> str:
        answer = await client.raw(ApiRequest(method="GET", path=f"/koord/koordlet/nodes/{node}/metrics"))
        return bytes(answer.body.raw()).decode()

    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.create(PODS, batch_pod("work", 4000, namespace="default")))
        await clock.sleep(60)
        placed = unwrap(await client.get(PODS, "work", "default")).spec.node_name
        text = await served(client, placed)
        requested = [one for one in text.splitlines() if one.startswith("koordlet_container_resource_requests{")]
        cpu = [one for one in requested if 'resource="kubernetes.io/batch-cpu"' in one]
        assert [('pod_name="work"' in one, one.split()[-1]) for one in cpu] == [(True, "4000")]
        assert f'koordlet_be_suppress_cpu_cores{{node="{placed}",type="cpuset"}}' in text
        assert f'koordlet_node_used_cpu_cores{{node="{placed}"}}' in text
        assert f'koordlet_node_resource_allocatable{{node="{placed}",resource="kubernetes.io/batch-cpu"' in text
        assert "koordlet_pod_eviction{" not in text
        missing = await client.raw(ApiRequest(method="GET", path="/koord/koordlet/nodes/none/metrics"))
        assert missing.status == 404

    with_agents(story)


THRESHOLD = {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 3, "memoryEvictLowerPercent": 1}}


def test_an_eviction_by_a_simulated_agent_is_explained_as_a_real_ones() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        uses = {"cpu": "1", "memory": "6Gi"}
        unwrap(await client.create(PODS, batch_pod("big", 1000, "8Gi", uses=uses, namespace="default")))
        await clock.sleep(60)
        assert (await explain_eviction(client, "default", "big", NAMESPACE, 9316)).records == ()
        documents = {"data": {"resource-threshold-config": json.dumps(THRESHOLD)}}
        unwrap(await client.patch(CONFIG_MAPS, "slo-controller-config", documents, NAMESPACE, kind="merge"))
        placed = unwrap(await client.get(PODS, "big", "default")).spec.node_name
        await clock.sleep(60)
        found = await explain_eviction(client, "default", "big", NAMESPACE, 9316)
        (record,) = found.records
        assert (record.node, record.outcome, record.rule) == (placed, "evicted", "BEMemoryEvict")
        assert record.threshold == "3%, down to 1%"
        assert found.silent == ()
        page = await client.raw(ApiRequest(method="GET", path=f"/koord/koordlet/nodes/{placed}/metrics"))
        assert f'koordlet_pod_eviction{{node="{placed}",reason="evicted"}} 1' in page.body.raw().decode()
        assert (await explain_eviction(client, "default", "other", NAMESPACE, 9316)).records == ()
        other = "node-1" if placed == "node-0" else "node-0"
        for node, count in ((placed, 1), (other, 0)):
            answer = await cluster_access.ask_simulated_koordlet(client, node, "/apis/v1/evictions")
            assert isinstance(answer, dict)
            assert len(answer["evictions"]) == count

    with_agents(story)


def test_a_simulated_agent_tells_what_its_kernel_has_and_what_it_does() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        rows = {row.knob: row for row in await node_capabilities(client, "node-1", NAMESPACE, 9316)}
        assert rows["cpu.cfs_quota_us"].state == "supported"
        assert "CPUBurst" in rows["cpu.cfs_quota_us"].strategies
        assert rows["cpu.bvt_warp_ns"].state == "off"  # a mainline kernel
        assert rows["cpu.cfs_burst_us"].state == "degraded"
        assert rows["resctrl"].state == "off"
        told = await cluster_access.ask_simulated_koordlet(client, "node-1", "/apis/v1/strategies")
        assert isinstance(told, dict)
        assert {one["strategy"] for one in told["strategies"]} >= {"CPUEvict", "memoryEvict"}
        state = await cluster_access.ask_simulated_koordlet(client, "node-1", "/apis/v1/state")
        assert isinstance(state, dict)
        assert (state["node"], state["nodeSLOSeen"], state["pods"]) == ("node-1", True, 0)
        said = await cluster_access.ask_simulated_koordlet(client, "nowhere", "/apis/v1/capabilities")
        assert said == "no simulated node nowhere"

    with_agents(story)


def test_without_agents_nobody_answers_and_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        assert await cluster_access.ask_simulated_koordlet(client, "node-0", "/apis/v1/capabilities") is None
        with pytest.raises(SystemExit):
            await node_capabilities(client, "node-0", NAMESPACE, 9316)

    with_agents(story, agents="false")
    assert "nothing is known of node-0: no koordlet runs on node-0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("components", "nodes", "answers"),
    [
        ("nodes,manager", AGENTS_UP_TO, True),
        ("nodes,manager", AGENTS_UP_TO + 1, False),
        ("nodes", 1, False),  # for those who install a koordlet themselves
    ],
)
def test_agents_run_by_themselves_where_nodes_are_few(components: str, nodes: int, answers: bool) -> None:
    async def main(clock: LoopClock) -> None:
        made = choose_components(components, nodes=nodes, profile=None, settings={})
        assert not isinstance(made, str)
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), made, clock=clock)
        await cluster.start()
        assert cluster.client is not None
        try:
            found = await cluster_access.ask_simulated_koordlet(cluster.client, "node-0", "/apis/v1/state")
            assert isinstance(found, dict) is answers, "who asks before the agents run waits for them"
        finally:
            await cluster.stop()

    run_virtual(main)


def test_pinned_cpus_and_batch_limits_are_seen_without_a_flag() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.create(PODS, batch_pod("work", 500, namespace="default")))
        unwrap(await client.create(PODS, pinned_pod("pinned")))
        await clock.sleep(30)
        values = {}
        for name in ("work", "pinned"):
            node = unwrap(await client.get(PODS, name, "default")).spec.node_name
            query = {"namespace": "default", "name": name}
            told = await cluster_access.ask_simulated_koordlet(client, node, "/apis/v1/containers", query)
            assert isinstance(told, dict)
            box = next(one for one in told["containers"] if one["level"] == "container")
            values[name] = {one["knob"]: (one["wanted"], one["kernel"], one["decidedBy"]) for one in box["values"]}
        assert values["work"]["cpu.cfs_quota_us"] == ("50000", "50000", "BatchResource")
        wanted, kernel, hook = values["pinned"]["cpuset.cpus"]
        assert (len(CPUSet.parse(wanted)), kernel, hook) == (2, wanted, "CPUSetAllocator")

    with_agents(story, agents=None)


def pinned_pod(name: str) -> dict[str, Any]:
    amounts = {"cpu": "2", "memory": "1Gi"}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"koordinator.sh/qosClass": "LSR"}},
        "spec": {
            "schedulerName": "koord-scheduler",
            "priorityClassName": "koord-prod",
            "containers": [{"name": "main", "image": "x", "resources": {"requests": amounts, "limits": amounts}}],
        },
    }


def test_agents_that_do_not_start_are_told_and_keep_nothing_from_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "koord.cli.up.started_agents", None)  # it cannot be imported

    async def main(clock: LoopClock) -> None:
        made = choose_components("nodes", nodes=1, profile=None, settings={"nodes.agents": "true"})
        assert not isinstance(made, str)
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), made, clock=clock)
        await cluster.start()
        await clock.sleep(5)
        await cluster.stop()

    run_virtual(main)
    assert caplog.text.count("the agents of simulated nodes did not start") == 1


def test_a_wrong_word_is_refused() -> None:
    said = choose_components("all", nodes=1, profile=None, settings={"nodes.agents": "yes"})
    assert said == "--set nodes.agents=yes: must be true or false"
