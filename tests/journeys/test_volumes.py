"""Pods with volumes, from a claim to a pod that runs: the scheduler, the controllers and simulated nodes together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from koord.api.kubernetes.builtin_kinds import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STATEFUL_SETS,
    STORAGE_CLASSES,
)
from koord.cli.up import local_scheduler
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.embedded.kubelet.fleet import SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock, run_virtual

POOL = SimulatedPool(name="n", count=3, cpu=8, memory="16Gi")


class VolumeCluster(msgspec.Struct, frozen=True):
    clock: LoopClock
    client: Client

    async def until(self, done: Callable[[], Awaitable[Any]], within_s: float = 60) -> Any:
        end = self.clock.time() + within_s
        while not (found := await done()):
            assert self.clock.time() < end, f"did not happen within {within_s} s"
            await self.clock.sleep(0.5)
        return found

    async def running(self, *names: str) -> list[str]:
        """Return the nodes of these pods, once they all run."""

        async def all_run() -> list[str]:
            found = [unwrap(await self.client.get(PODS, name, "default")) for name in names]
            return [pod.spec.node_name for pod in found] if all(p.status.phase == "Running" for p in found) else []

        nodes: list[str] = await self.until(all_run)
        return nodes


def run_on_volume_cluster(main: Callable[[VolumeCluster], Awaitable[None]]) -> None:
    async def run(clock: LoopClock) -> None:
        cluster = EmbeddedCluster(
            ClusterSettings(http=False, seed=1),
            [
                ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed)),
                ("nodes", lambda c: SimulatedFleet(c.client, c.informers, c.clock, c.seed, (POOL,))),
                ("scheduler", local_scheduler.make_scheduler),
            ],
            clock=clock,
        )
        await cluster.start()
        assert cluster.client is not None
        try:
            await main(VolumeCluster(clock, cluster.client))
        finally:
            await cluster.stop()

    run_virtual(run)


def claim(name: str, storage_class: str | None) -> dict[str, Any]:
    spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return {"metadata": {"name": name}, "spec": spec}


def pod_spec(claim_name: str | None = None) -> dict[str, Any]:
    container = {"name": "c", "image": "i:1", "resources": {"requests": {"cpu": "100m"}}}
    spec: dict[str, Any] = {"schedulerName": "koord-scheduler", "containers": [container]}
    if claim_name is not None:
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]
    return spec


def test_a_stateful_set_gets_volumes_of_the_default_class_and_keeps_them() -> None:
    async def main(cluster: VolumeCluster) -> None:
        client = cluster.client

        async def has_class() -> bool:
            return bool(unwrap(await client.list(STORAGE_CLASSES)).items)

        await cluster.until(has_class)
        template = {"metadata": {"labels": {"app": "db"}}, "spec": pod_spec()}
        spec = {
            "serviceName": "db",
            "replicas": 2,
            "selector": {"matchLabels": {"app": "db"}},
            "template": template,
            "volumeClaimTemplates": [claim("data", None)],
        }
        unwrap(await client.create(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": spec}, "default"))

        async def exist() -> bool:
            return len(unwrap(await client.list(PODS, "default")).items) == 2

        await cluster.until(exist)
        await cluster.running("db-0", "db-1")
        claims = unwrap(await client.list(PERSISTENT_VOLUME_CLAIMS, "default")).items
        assert {(c.metadata.name, c.status.phase, c.spec.storage_class_name) for c in claims} == {
            ("data-db-0", "Bound", "standard"),
            ("data-db-1", "Bound", "standard"),
        }
        volumes = {found.metadata.name for found in unwrap(await client.list(PERSISTENT_VOLUMES)).items}
        assert volumes == {c.spec.volume_name for c in claims}
        unwrap(await client.delete(PODS, "db-0", "default"))
        await cluster.clock.sleep(40)
        await cluster.running("db-0")
        assert volumes == {found.metadata.name for found in unwrap(await client.list(PERSISTENT_VOLUMES)).items}

    run_on_volume_cluster(main)


@pytest.mark.parametrize("mode", ["Immediate", "WaitForFirstConsumer"])
def test_a_pod_goes_where_its_volume_is_though_the_volume_names_a_node_that_is_not_there(mode: str) -> None:
    async def main(cluster: VolumeCluster) -> None:
        client = cluster.client
        body = {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode}
        unwrap(await client.create(STORAGE_CLASSES, body))
        hosts = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["no-such-node", "n-2"]}
        spec = {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "local": {"path": "/data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hosts]}]}},
        }
        unwrap(await client.create(PERSISTENT_VOLUMES, {"metadata": {"name": "v"}, "spec": spec}))
        unwrap(await client.create(PERSISTENT_VOLUME_CLAIMS, claim("data", "local"), "default"))
        unwrap(await client.create(PODS, {"metadata": {"name": "p"}, "spec": pod_spec("data")}, "default"))
        assert await cluster.running("p") == ["n-2"]
        bound = unwrap(await client.get(PERSISTENT_VOLUME_CLAIMS, "data", "default"))
        assert (bound.status.phase, bound.spec.volume_name) == ("Bound", "v")

    run_on_volume_cluster(main)
