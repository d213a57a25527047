"""Whoever evicts a pod of `koord up`, `koord evictions` lists it and `koord explain eviction` tells why, afterwards."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml

from koord.api.config.descheduler.plugin_args import API_VERSION
from koord.api.config.scheduler import configuration
from koord.api.koordinator.custom_kinds import ELASTIC_QUOTAS, POD_MIGRATION_JOBS
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, DEPLOYMENTS, PODS, PRIORITY_CLASSES
from koord.api.model import to_dict
from koord.cli.commands.evictions import ProgramPorts, explain_eviction, find_evictions
from koord.cli.commands.migration import build_migration_job
from koord.cli.up.components import choose_components
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.reconcile_loop import NAMESPACE
from koord.policy.eviction import EvictionRecord
from koord.telemetry.clock import LoopClock, run_virtual
from tests.journeys.colocation_cluster import batch_pod, pod

THRESHOLD = {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 3, "memoryEvictLowerPercent": 1}}
QUOTA_NAME = "quota.scheduling.koordinator.sh/name"


def scheduler_config() -> dict[str, Any]:
    """Return the shipped configuration, with over-used quotas revoked after ten seconds and no thresholds of load."""
    config = to_dict(configuration.configuration())
    (profile,) = config["profiles"]
    profile["pluginConfig"] = [
        *(one for one in profile["pluginConfig"] if one["name"] not in ("ElasticQuota", "LoadAwareScheduling")),
        {"name": "LoadAwareScheduling", "args": {"usageThresholds": {"cpu": 0, "memory": 0}}},
        {"name": "ElasticQuota", "args": {"monitorAllQuotas": True, "delayEvictTime": "10s"}},
    ]
    return config


def descheduler_config() -> dict[str, Any]:
    """Return a configuration that evicts pods of the app `old` after a minute, and carries out migrations."""
    old = {
        "name": "PodLifeTime",
        "args": {"maxPodLifeTimeSeconds": 60, "labelSelector": {"matchLabels": {"app": "old"}}},
    }
    direct = {"enabled": [{"name": "DefaultEvictor"}], "disabled": [{"name": "*"}]}
    at_once = {"plugins": {"deschedule": {"enabled": [{"name": "PodLifeTime"}]}, "evict": direct, "filter": direct}}
    return {
        "apiVersion": API_VERSION,
        "kind": "DeschedulerConfiguration",
        "deschedulingInterval": "10s",
        "profiles": [{"name": "direct", "pluginConfig": [old], **at_once}, {"name": "jobs"}],
    }


def deployment(name: str, template: dict[str, Any], replicas: int = 1) -> dict[str, Any]:
    labels = {"app": name}
    spec = {**template["spec"], "terminationGracePeriodSeconds": 0}
    made = {"metadata": {"labels": {**template["metadata"].get("labels", {}), **labels}}, "spec": spec}
    body = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": made}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": body}


class EvictionJourney:
    def __init__(self, client: Client, clock: LoopClock) -> None:
        self.client = client
        self.clock = clock

    async def deploy(self, name: str, template: dict[str, Any], replicas: int = 1) -> list[str]:
        """Create a Deployment; return the names of its pods."""
        unwrap(await self.client.create(DEPLOYMENTS, deployment(name, template, replicas)))
        await self.clock.sleep(10)
        return [one.metadata.name for one in unwrap(await self.client.list(PODS, labels=f"app={name}")).items]

    async def story_of(self, name: str) -> EvictionRecord:
        """Return the record of a pod that is gone."""
        assert isinstance(await self.client.get(PODS, name, "default"), ApiError)
        found = await explain_eviction(self.client, "default", name, NAMESPACE, 9316)
        assert found.silent == ()
        (record,) = found.records
        assert (record.outcome, record.name) == ("evicted", name)
        assert record.node
        return record


def run(folder: Path, story: Callable[[EvictionJourney], Awaitable[None]]) -> None:
    files = {"scheduler.config": scheduler_config(), "descheduler.config": descheduler_config()}
    settings = {"nodes.agents": "true"}
    for name, document in files.items():
        (folder / name).write_text(yaml.safe_dump(document))
        settings[name] = str(folder / name)

    async def main(clock: LoopClock) -> None:
        made = choose_components("all", nodes=2, profile=None, settings=settings)
        assert not isinstance(made, str), made
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), made, clock=clock)
        await cluster.start()
        assert cluster.client is not None
        try:
            await clock.sleep(40)
            await story(EvictionJourney(cluster.client, clock))
        finally:
            await cluster.stop()

    run_virtual(main)


async def evict_by_descheduler(journey: EvictionJourney) -> str:
    (name,) = await journey.deploy("old", pod("x", {"cpu": "1"}, schedulerName="koord-scheduler"))
    await journey.clock.sleep(80)
    record = await journey.story_of(name)
    assert (record.actor, record.rule) == ("koord-descheduler", "PodLifeTime")
    unwrap(await journey.client.delete(DEPLOYMENTS, "old", "default"))
    return name


async def evict_by_migration(journey: EvictionJourney) -> str:
    name, *_ = await journey.deploy("moved", pod("x", {"cpu": "500m"}, schedulerName="koord-scheduler"), 3)
    found = unwrap(await journey.client.dynamic.get(PODS, name, "default"))
    body = build_migration_job(found, mode="EvictDirectly", at_once=True, reason="a new rack")
    job = unwrap(await journey.client.create(POD_MIGRATION_JOBS, body))
    await journey.clock.sleep(20)
    record = await journey.story_of(name)
    assert (record.actor, record.rule, record.reason) == ("koord-migrate", "EvictDirectly", "a new rack")
    assert (record.request_uid, record.uid) == (job.metadata.uid, found["metadata"]["uid"])
    return name


async def evict_by_preemption(journey: EvictionJourney) -> str:
    for name, value in (("low", 1), ("urgent", 100)):
        unwrap(await journey.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
    there = {"kubernetes.io/hostname": "node-0"}
    half: dict[str, Any] = {
        "schedulerName": "koord-scheduler",
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": there,
    }
    low = pod("low", {"cpu": "18"}, priorityClassName="low", **half)
    unwrap(await journey.client.create(PODS, low))
    await journey.clock.sleep(10)
    high = pod("high", {"cpu": "18"}, priorityClassName="urgent", **half)
    made = unwrap(await journey.client.create(PODS, high))
    await journey.clock.sleep(20)
    record = await journey.story_of("low")
    assert (record.actor, record.plugin, record.rule) == ("koord-scheduler", "Coscheduling", "Preemption")
    assert (record.request, record.request_uid) == ("Pod default/high", made.metadata.uid)
    assert (record.measured, record.threshold) == ("priority 1", "default/high has priority 100")
    unwrap(await journey.client.delete(PODS, "high", "default"))
    return "low"


async def evict_by_quota(journey: EvictionJourney) -> str:
    for name in ("lender", "borrower"):
        body = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"min": {"cpu": "24"}, "max": {"cpu": "48"}},
        }
        unwrap(await journey.client.create(ELASTIC_QUOTAS, body))
    more: dict[str, Any] = {"schedulerName": "koord-scheduler", "terminationGracePeriodSeconds": 0}
    for name, quota in (("b0", "borrower"), ("b1", "borrower"), ("a0", "lender")):
        asked = pod(name, {"cpu": "24"}, labels={QUOTA_NAME: quota}, **more)
        unwrap(await journey.client.create(PODS, asked))
        await journey.clock.sleep(10)
    await journey.clock.sleep(40)
    gone = [name for name in ("b0", "b1") if isinstance(await journey.client.get(PODS, name, "default"), ApiError)]
    record = await journey.story_of(gone[0])
    assert (record.actor, record.plugin, record.rule) == ("koord-scheduler", "ElasticQuota", "QuotaOverused")
    assert (record.measured, record.frees) == ("quota borrower uses cpu:48", {"cpu": 24000})
    return gone[0]


async def evict_by_koordlet(journey: EvictionJourney) -> str:
    uses = {"cpu": "1", "memory": "6Gi"}
    unwrap(await journey.client.create(PODS, batch_pod("big", 1000, "8Gi", uses=uses, namespace="default")))
    await journey.clock.sleep(60)
    documents = {"data": {"resource-threshold-config": json.dumps(THRESHOLD)}}
    unwrap(await journey.client.patch(CONFIG_MAPS, "slo-controller-config", documents, NAMESPACE, kind="merge"))
    await journey.clock.sleep(90)
    record = await journey.story_of("big")
    assert (record.actor, record.rule, record.threshold) == ("koordlet", "BEMemoryEvict", "3%, down to 1%")
    assert record.frees["podUsed/memory"] > 5 * 2**30
    return "big"


def test_an_eviction_by_each_actor_is_listed_and_explained_after_the_pod_is_gone(tmp_path: Path) -> None:
    async def story(journey: EvictionJourney) -> None:
        gone = [
            await evict(journey)
            for evict in (
                evict_by_descheduler,
                evict_by_migration,
                evict_by_preemption,
                evict_by_quota,
                evict_by_koordlet,
            )
        ]
        found = await find_evictions(journey.client, ProgramPorts(), "default")
        assert found.silent == ()
        assert [one.name for one in found.records] == gone[::-1]  # newest first
        assert [one.actor for one in found.records] == [
            "koordlet",
            "koord-scheduler",
            "koord-scheduler",
            "koord-migrate",
            "koord-descheduler",
        ]
        assert (await find_evictions(journey.client, ProgramPorts(), "")).records == found.records
        assert (await find_evictions(journey.client, ProgramPorts(), "kube-system")).records == ()

    run(tmp_path, story)
