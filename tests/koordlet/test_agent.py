"""The whole agent in virtual time: what it waits for, what it writes, whom it evicts, what it reports."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_SLOS
from koord.api.koordinator.protocol import A_BLKIO_QOS
from koord.api.kubernetes.builtin_kinds import (
    EVENTS_EVENTS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
)
from koord.embedded.cluster import ADMIN, InProcessTransport
from koord.host.cgroup import knob
from koord.koordlet.collect.collector import CollectSettings
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.inputs.volume_mounts import VolumeMounts
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError
from koord.policy.eviction import parse_record
from tests.koordlet.agent_fixture import GI, NODE, TOP, AgentFixture, CuttableTransport, ask, expect_ok, in_virtual_time

QUOTA_ORDER = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}


def quota(world: AgentFixture) -> str:
    value = world.machine.tree.value(knob.CPU_QUOTA, TOP)
    assert isinstance(value, str)
    return value


def test_it_starts_with_nothing_and_takes_up_each_thing_as_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: AgentFixture) -> None:
        cgroups = tmp_path / "sys/fs/cgroup/kubepods"
        cgroups.rename(tmp_path / "later")
        agent = world.agent()
        await agent.start()
        await world.clock.sleep(30)
        state = json.loads(await ask(agent, "/apis/v1/state"))
        assert "cannot tell the cgroup layout" in state["cgroups"]
        assert (state["nodeSeen"], state["nodeSLOSeen"]) == (False, False)
        (tmp_path / "later").rename(cgroups)
        await world.clock.sleep(30)
        assert agent.control_loop is not None
        await world.furnish()
        await world.run_pod("batch", "BE")
        await world.clock.sleep(30)
        assert quota(world) == "-1"
        await world.order(QUOTA_ORDER)
        await world.clock.sleep(5)
        # 65% of 4 cores, less the 1 core that the machine uses.
        assert abs(int(quota(world)) - 160_000) <= 4_000
        state = json.loads(await ask(agent, "/apis/v1/state"))
        assert (state["nodeSeen"], state["nodeSLOSeen"], state["pods"]) == (True, True, 1)
        await agent.stop()

    with caplog.at_level("INFO", logger="koord"):
        in_virtual_time(tmp_path, story)
    said = [record.getMessage() for record in caplog.records]
    assert said.count("strategy CPUSuppresss waits for a NodeSLO") == 1
    assert said.count("strategy CPUSuppresss runs") == 1


def test_a_deleted_node_slo_lets_go_and_an_ending_agent_does_not(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.run_pod("batch", "BE")
        await world.order(QUOTA_ORDER)
        agent = world.agent()
        await agent.start()
        await world.clock.sleep(20)
        held = quota(world)
        assert held != "-1"
        await agent.stop()
        await world.clock.sleep(5)
        assert quota(world) == held
        again = world.agent()
        await again.start()
        await world.clock.sleep(20)
        assert quota(world) != "-1"
        await expect_ok(world.client.delete(NODE_SLOS, NODE))
        await world.clock.sleep(5)
        assert quota(world) == "-1"
        await again.stop()

    in_virtual_time(tmp_path, story)


def test_a_node_slo_that_is_deleted_while_no_agent_runs_is_undone_by_the_next(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        group = await world.run_pod("batch", "BE")
        agent = world.agent()
        await agent.start()
        await world.clock.sleep(5)
        assert not (tmp_path / "state").exists(), "nothing is touched before a NodeSLO was seen"
        behind = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}}
        await world.order({**QUOTA_ORDER, **behind})
        await world.clock.sleep(20)
        assert (quota(world) != "-1", world.machine.text(knob.CPU_IDLE, group)) == (True, "1")
        await agent.stop()
        await expect_ok(world.client.delete(NODE_SLOS, NODE))
        await world.clock.sleep(1)
        assert world.cluster.server is not None
        client = Client(InProcessTransport(world.cluster.server, ADMIN), clock=world.clock)
        informers = InformerFactory(client, world.clock)
        again = world.agent(client=client, informers=informers)
        informers.start()
        await again.start()
        await world.clock.sleep(15)
        assert (quota(world), world.machine.text(knob.CPU_IDLE, group)) == ("-1", "0")
        assert world.machine.text(knob.CPU_SHARES, group) == "100"
        await again.stop()
        await informers.stop()

    in_virtual_time(tmp_path, story)


def test_thresholds_of_nothing_suppress_and_evict_nobody_and_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.run_pod("batch", "BE", memory_bytes=2 * GI)
        wanted = {"enable": True, "memoryEvictThresholdPercent": 0, "cpuSuppressThresholdPercent": 0}
        await world.order({"resourceUsedThresholdWithBE": {**wanted, "cpuSuppressPolicy": "cfsQuota"}})
        agent = world.agent(frozenset({"BEMemoryEvict"}))
        await agent.start()
        await world.clock.sleep(30)
        assert quota(world) == "-1"
        assert not isinstance(await world.client.get(PODS, "batch", "default"), ApiError)
        assert len(json.loads(await ask(agent, "/apis/v1/state"))["nodeSLOProblems"]) == 2
        await agent.stop()

    in_virtual_time(tmp_path, story)
    told = [record.message for record in caplog.records if "what the NodeSLO wants by these is off" in record.message]
    assert len(told) == 1
    assert "memoryEvictThresholdPercent: 0: must be from 1 to 100" in told[0]


def test_safe_mode_reports_and_writes_nothing(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.run_pod("batch", "BE")
        await world.order(QUOTA_ORDER)
        before = world.machine.snapshot()
        agent = world.agent(frozenset({"CgroupReconcile", "BEMemoryEvict"}), safe_mode=True)
        await agent.start()
        await world.clock.sleep(200)
        assert world.machine.snapshot() == before
        assert world.kernel.writes == []
        metric = await expect_ok(world.client.get(NODE_METRICS, NODE))
        assert metric.status.node_metric is not None
        doings = json.loads(await ask(agent, "/apis/v1/strategies"))["strategies"]
        assert next(one for one in doings if one["strategy"] == "CPUSuppresss")["effects"] > 0
        await agent.stop()

    in_virtual_time(tmp_path, story)


MEMORY_ORDER = {
    "resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 60}
}


def test_memory_pressure_evicts_through_the_api_and_is_explained(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order(MEMORY_ORDER)
        await world.run_pod("small", "BE", memory_bytes=GI)
        await world.run_pod("large", "BE", memory_bytes=3 * GI)
        agent = world.agent(frozenset({"BEMemoryEvict"}))
        await agent.start()
        await world.clock.sleep(30)
        world.used_kb = 12 * 1024 * 1024
        await world.clock.sleep(20)
        gone = await expect_ok(world.client.get(PODS, "large", "default"))
        assert gone.metadata.deletion_timestamp is not None
        kept = await expect_ok(world.client.get(PODS, "small", "default"))
        assert kept.metadata.deletion_timestamp is None
        entries = json.loads(await ask(agent, "/apis/v1/evictions?namespace=default&name=large"))["evictions"]
        assert [entry["outcome"] for entry in entries] == ["evicted"]
        record = entries[0]
        assert (record["rule"], record["threshold"]) == ("BEMemoryEvict", "70%, down to 60%")
        assert "uses 3221225472 bytes" in record["whyThisPod"]
        assert (record["actor"], record["node"], record["rank"]) == (
            "koordlet",
            NODE,
            "1 of 2 that the rule may evict",
        )
        events = await expect_ok(world.client.list(EVENTS_EVENTS, "default"))
        notes = [(event.reason, event.note) for event in events.items if event.regarding.name == "large"]
        assert len(notes) == 1
        assert notes[0][0] == "evictPodSuccess"
        (event,) = [event for event in events.items if event.regarding.name == "large"]
        source = event.deprecated_source
        assert (source.component, source.host) == ("koordlet-qosManager", NODE)
        assert parse_record(event.metadata.annotations) == agent.ledger.records("default", "large")[0]
        assert notes[0][1].startswith(
            "evict Pod:default/large, reason: evicted,"
            " message: trigger by koordlet feature BEMemoryEvict, kill pod: large ("
        )
        audit = (await ask(agent, "/events?size=2000")).decode()
        assert '"reason":"evicted"' in audit
        metrics = (await ask(agent, "/metrics")).decode()
        assert f'koordlet_pod_eviction{{node="{NODE}",reason="evicted"}} 1' in metrics
        assert 'koordlet_pod_eviction_detail{node="n1",pod_name="large",pod_namespace="default"' in metrics
        world.used_kb = 4 * 1024 * 1024
        await world.clock.sleep(400)
        assert "koordlet_pod_eviction_detail{" not in (await ask(agent, "/metrics")).decode()
        await agent.stop()

    in_virtual_time(tmp_path, story)


def test_a_disruption_budget_keeps_a_pod_and_the_next_one_goes(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order(MEMORY_ORDER)
        await world.run_pod("kept", "BE", memory_bytes=3 * GI, labels={"app": "kept"})
        await world.run_pod("taken", "BE", memory_bytes=2 * GI)
        await protect(world, "kept")
        agent = world.agent(frozenset({"BEMemoryEvict"}))
        await agent.start()
        await world.clock.sleep(30)
        world.used_kb = 12 * 1024 * 1024
        await world.clock.sleep(20)
        kept = await expect_ok(world.client.get(PODS, "kept", "default"))
        taken = await expect_ok(world.client.get(PODS, "taken", "default"))
        assert kept.metadata.deletion_timestamp is None
        assert taken.metadata.deletion_timestamp is not None
        outcomes = {
            entry["name"]: entry["outcome"] for entry in json.loads(await ask(agent, "/apis/v1/evictions"))["evictions"]
        }
        assert outcomes == {"kept": "refused", "taken": "evicted"}
        await agent.stop()

    in_virtual_time(tmp_path, story)


async def protect(world: AgentFixture, app: str) -> None:
    budget = {
        "metadata": {"name": app, "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
    }
    await expect_ok(world.client.create(POD_DISRUPTION_BUDGETS, budget))
    status = {
        "disruptionsAllowed": 0,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
        "observedGeneration": 1,
    }
    answer = await world.client.patch(
        POD_DISRUPTION_BUDGETS, app, {"status": status}, "default", kind="merge", subresource="status"
    )
    assert not isinstance(answer, ApiError)


def test_capabilities_are_conditions_of_the_node(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        agent = world.agent(frozenset({"CgroupReconcile"}))
        await agent.start()
        await world.clock.sleep(30)
        node = await expect_ok(world.client.get(NODES, NODE))
        found = {one.type: (one.status, one.reason) for one in node.status.conditions}
        assert found["koordinator.sh/CPUSuppresss"] == ("True", "Supported")
        assert found["koordinator.sh/CgroupReconcile"] == ("True", "Degraded")
        assert found["koordinator.sh/GroupIdentity"] == ("False", "Unsupported")
        rows = json.loads(await ask(agent, "/apis/v1/capabilities"))["capabilities"]
        by_knob = {row["knob"]: row for row in rows}
        assert by_knob["cpu.cfs_quota_us"]["state"] == "supported"
        assert by_knob["cpu.cfs_quota_us"]["strategies"] == ["RuntimeHooks", "CPUSuppresss", "CPUBurst"]
        assert by_knob["cpu.bvt_warp_ns"]["state"] == "off"
        await agent.stop()

    in_virtual_time(tmp_path, story)


def test_events_are_paged_as_koordlets_are(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.run_pod("batch", "BE")
        await world.order({"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cpuset"}})
        agent = world.agent()
        await agent.start()
        await world.clock.sleep(20)
        page = json.loads(await ask(agent, "/events?size=1", Accept="application/json"))
        assert len(page["Events"]) == 1
        assert page["NextPageToken"] != ""
        rest = json.loads(await ask(agent, f"/events?pageToken={page['NextPageToken']}", Accept="application/json"))
        assert rest["NextPageToken"] == ""
        assert rest["Events"] != []
        await agent.stop()

    in_virtual_time(tmp_path, story)


def test_what_is_looked_up_is_among_the_metrics(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.run_pod("web", "LS")
        await world.order({"hostApplications": [{"name": "nginx", "qos": "LS", "priority": "koord-prod"}]})
        world.machine.make("host-latency-sensitive/nginx")
        collect = CollectSettings(psi=True)
        agent = world.agent(frozenset({"PSICollector", "NodeMetricPromMetrics", "PerCPUMetric"}), collect=collect)
        await agent.start()
        await world.clock.sleep(150)
        text = (await ask(agent, "/metrics")).decode()
        names = {line.split("{")[0] for line in text.splitlines() if line.startswith("koordlet_")}
        assert names >= {
            "koordlet_start_time",
            "koordlet_node_used_cpu_cores",
            "koordlet_node_used_memory_bytes",
            "koordlet_be_suppress_be_used_cpu_cores",
            "koordlet_collect_node_cpu_info_status",
            "koordlet_cpuset_share_pool_cpu_cores",
            "koordlet_cpuset_be_share_pool_cpu_cores",
            "koordlet_cpuset_share_pool_info",
            "koordlet_node_predicted_resource_reclaimable",
            "koordlet_node_predicted_resource_peak",
            "koordlet_node_metric_node_usage",
            "koordlet_host_application_resource_usage",
            "koordlet_node_resource_priority_reclaimable_status",
            "koordlet_pod_psi",
            "koordlet_container_psi",
        }
        assert f'koordlet_cpuset_share_pool_cpu_cores{{node="{NODE}"}} 4' in text
        internal = (await ask(agent, "/internal-metrics")).decode()
        external = (await ask(agent, "/external-metrics")).decode()
        assert "koordlet_pod_psi{" in external
        assert "koordlet_pod_psi{" not in internal
        assert "koordlet_start_time{" not in external
        await agent.stop()

    in_virtual_time(tmp_path, story)


def test_an_api_server_that_goes_away_changes_nothing_on_the_node(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        order = {**QUOTA_ORDER["resourceUsedThresholdWithBE"], **MEMORY_ORDER["resourceUsedThresholdWithBE"]}
        await world.order({"resourceUsedThresholdWithBE": order})
        await world.run_pod("batch", "BE", memory_bytes=3 * GI)
        assert world.cluster.server is not None
        line = CuttableTransport(InProcessTransport(world.cluster.server, ADMIN))
        client = Client(line, clock=world.clock, qps=0, burst=0)
        informers = InformerFactory(client, world.clock, seed=1)
        agent = world.agent(frozenset({"BEMemoryEvict"}), client=client, informers=informers)
        informers.start()
        await agent.start()
        await world.clock.sleep(20)
        quiet = int(quota(world))
        line.cut = True
        world.used_cores = 2.0
        world.used_kb = 12 * 1024 * 1024
        await world.clock.sleep(120)
        # It goes on holding by its last orders, and an eviction that does not get through is no eviction.
        assert int(quota(world)) < quiet
        assert {entry.outcome for entry in agent.ledger.records()} == {"failed"}
        kept = await expect_ok(world.client.get(PODS, "batch", "default"))
        assert kept.metadata.deletion_timestamp is None
        line.cut = False
        await world.clock.sleep(120)
        gone = await expect_ok(world.client.get(PODS, "batch", "default"))
        assert gone.metadata.deletion_timestamp is not None
        await agent.stop()
        await informers.stop()

    in_virtual_time(tmp_path, story)


def test_evictions_wanted_during_an_outage_are_not_made_up_for(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order(MEMORY_ORDER)
        for name in ("one", "two", "three"):
            await world.run_pod(name, "BE", memory_bytes=GI)
        assert world.cluster.server is not None
        line = CuttableTransport(InProcessTransport(world.cluster.server, ADMIN), silent_s=60.0)
        client = Client(line, clock=world.clock, qps=0, burst=0)
        informers = InformerFactory(client, world.clock, seed=1)
        agent = world.agent(frozenset({"BEMemoryEvict"}), client=client, informers=informers)
        informers.start()
        await agent.start()
        await world.clock.sleep(30)
        line.cut = True
        world.used_kb = 12 * 1024 * 1024
        await world.clock.sleep(300)
        world.used_kb = 4 * 1024 * 1024  # the pressure is over before anybody could be evicted
        await world.clock.sleep(30)
        line.cut = False
        await world.clock.sleep(300)
        pods = await expect_ok(world.client.list(PODS, "default"))
        assert [pod.metadata.deletion_timestamp for pod in pods.items] == [None, None, None]
        await agent.stop()
        await informers.stop()

    in_virtual_time(tmp_path, story)


def test_kernel_files_that_vanish_or_refuse_stop_nothing(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order({"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cpuset"}})
        group = await world.run_pod("batch", "BE")
        world.used_cores = 0.1
        agent = world.agent(frozenset({"CgroupReconcile"}))
        await agent.start()
        await world.clock.sleep(20)
        world.kernel.trouble = lambda path, text: errno.EBUSY if path.endswith("cpuset.cpus") else None
        world.used_cores = 3.0
        await world.clock.sleep(20)
        assert agent.control_loop is not None
        refused = {line for one in agent.control_loop.strategy_statuses() for line in one.refused}
        assert any("EBUSY" in line or "Device or resource busy" in line for line in refused)
        world.machine.remove(group)
        world.kernel.trouble = None
        (Path(world.machine.tree.group_path("", TOP)) / "cpu.max").unlink()
        await world.clock.sleep(200)
        assert all(one.error == "" for one in agent.control_loop.strategy_statuses())
        assert agent.control_loop.machine.read_knob(TOP, knob.CPUSET) is not None
        await agent.stop()

    in_virtual_time(tmp_path, story)


def test_volumes_of_pods_that_want_disk_limits_are_followed_to_their_folders(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        claim = {
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
                "volumeName": "pv-1",
            },
        }
        await expect_ok(world.client.create(PERSISTENT_VOLUME_CLAIMS, claim))
        volumes = VolumeMounts(world.client, world.clock, "/var/lib/kubelet", lambda: None)
        asks = PodMeta(uid="u1", annotations={A_BLKIO_QOS: "{}"}, volumes={"disk": "data", "scratch": "", "late": "no"})
        silent = PodMeta(uid="u2", volumes={"disk": "data"})
        await volumes.sync((asks, silent))
        folder = "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi"
        assert volumes.mounts == {("u1", "disk"): f"{folder}/pv-1/mount", ("u1", "scratch"): f"{folder}/scratch/mount"}
        before = volumes.mounts
        await volumes.sync((asks, silent))
        assert volumes.mounts is before
        await volumes.sync((silent,))
        assert volumes.mounts == {}

    in_virtual_time(tmp_path, story)
