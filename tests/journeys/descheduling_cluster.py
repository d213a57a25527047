"""This module runs a cluster with the descheduler in it, in this process and in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from koord.api.config.descheduler.plugin_args import API_VERSION
from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS
from koord.api.koordinator.scheduling import PodMigrationJob
from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, EVENTS_EVENTS, PODS
from koord.api.kubernetes.pod import Pod
from koord.cli.up import local_manager, local_scheduler
from koord.cli.up.local_descheduler import make_descheduler
from koord.cli.up.local_program import LocalProgram
from koord.descheduler.configuration import DeschedulerSetup, build_setup, load_config
from koord.descheduler.program import Descheduler
from koord.embedded.cluster import ClusterSettings, ComponentContext, EmbeddedCluster
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock, run_virtual


class DeschedulingCluster(msgspec.Struct, frozen=True):
    clock: LoopClock
    client: Client
    fleet: SimulatedFleet
    local: LocalProgram[Descheduler]
    cluster: EmbeddedCluster

    async def pods(self, app: str) -> list[Pod]:
        """Return the pods that are not being deleted."""
        listed = unwrap(await self.client.list(PODS, "default", labels=f"app={app}")).items
        return [one for one in listed if one.metadata.deletion_timestamp is None]

    async def jobs(self) -> list[PodMigrationJob]:
        return list(unwrap(await self.client.list(POD_MIGRATION_JOBS)).items)

    async def events(self, kind: str, name: str) -> list[tuple[str, str]]:
        """Return reason and note of the object's events, in order."""
        listed = unwrap(await self.client.list(EVENTS_EVENTS)).items
        told = [one for one in listed if (one.regarding.kind, one.regarding.name) == (kind, name)]
        return [(one.reason, one.note) for one in sorted(told, key=lambda one: str(one.event_time))]

    async def until(self, done: Callable[[], Awaitable[Any]], within_s: float) -> Any:
        """Return what `done` returns once it is truthy, checked every second of virtual time."""
        end = self.clock.time() + within_s
        while not (found := await done()):
            assert self.clock.time() < end, f"did not happen within {within_s} s"
            await self.clock.sleep(1)
        return found

    async def deploy(self, name: str, replicas: int, pod: dict[str, Any]) -> None:
        """Create a Deployment and wait until all its pods are ready."""
        template = {**pod, "metadata": {k: v for k, v in pod["metadata"].items() if k not in ("name", "namespace")}}
        template["metadata"]["labels"] = {**template["metadata"].get("labels", {}), "app": name}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        unwrap(
            await self.client.create(DEPLOYMENTS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        )

        async def ready() -> bool:
            return unwrap(await self.client.get(DEPLOYMENTS, name, "default")).status.ready_replicas == replicas

        await self.until(ready, 60)

    async def job(self, name: str, pod: Pod, **spec: Any) -> None:
        """Create a PodMigrationJob as a person does: by the pod's name alone."""
        ref = {"namespace": pod.metadata.namespace, "name": pod.metadata.name}
        wanted = {"paused": False, "ttl": "5m", "mode": "ReservationFirst", "podRef": ref, **spec}
        unwrap(await self.client.create(POD_MIGRATION_JOBS, {"metadata": {"name": name}, "spec": wanted}))

    async def wait_for_job_end(self, name: str, within_s: float = 120) -> PodMigrationJob:
        async def over() -> PodMigrationJob | None:
            found: PodMigrationJob = unwrap(await self.client.get(POD_MIGRATION_JOBS, name))
            return found if found.status.phase in ("Succeeded", "Failed", "Aborted") else None

        found: PodMigrationJob = await self.until(over, within_s)
        return found


def descheduler_assembly(**document: Any) -> DeschedulerSetup:
    config = load_config({"apiVersion": API_VERSION, "kind": "DeschedulerConfiguration", **document})
    assert not isinstance(config, list), config
    made = build_setup(config)
    assert isinstance(made, DeschedulerSetup), made
    return made


def run_on_descheduling_cluster(
    main: Callable[[DeschedulingCluster], Awaitable[None]],
    pool: SimulatedPool,
    assembly: DeschedulerSetup,
    seed: int = 1,
) -> None:
    async def run(clock: LoopClock) -> None:
        made: dict[str, Any] = {}

        def fleet(c: ComponentContext) -> SimulatedFleet:
            made["fleet"] = SimulatedFleet(
                c.client, c.informers, c.clock, c.seed, (pool,), FleetSettings(reports_node_metrics=True)
            )
            return made["fleet"]  # type: ignore[no-any-return]

        def local(c: ComponentContext) -> LocalProgram[Descheduler]:
            made["local"] = make_descheduler(c, assembly)
            return made["local"]  # type: ignore[no-any-return]

        cluster = EmbeddedCluster(
            ClusterSettings(http=False, seed=seed),
            [
                ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed)),
                ("nodes", fleet),
                ("manager", local_manager.make_manager),
                ("scheduler", local_scheduler.make_scheduler),
                ("descheduler", local),
            ],
            clock=clock,
        )
        await cluster.start()
        assert cluster.client is not None
        try:
            await main(DeschedulingCluster(clock, cluster.client, made["fleet"], made["local"], cluster))
        finally:
            await cluster.stop()

    run_virtual(run)
