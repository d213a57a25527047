"""This module runs a day of a cluster in virtual time: services, rollouts and batch jobs, all from one seed."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from typing import Any

import msgspec

from koord.api.kubernetes import builtin_kinds
from koord.cli.up import local_scheduler
from koord.embedded.cluster import ClusterSettings, ComponentContext, EmbeddedCluster
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.kubelet.node_profile import default_pools
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock, run_virtual

HOUR = 3600.0
# Still within the 40 s after which a silent node counts as lost, at a third of the writes.
LONG_LEASES = FleetSettings(lease_period_s=30.0)


class DayResult(msgspec.Struct, frozen=True):
    """DayResult holds counts for people, and a digest of every pod's every change for comparing runs."""

    pods_seen: int
    events: int
    phases: dict[str, int]
    digest: str


def _deployment(name: str, replicas: int) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "c", "image": "example/app:1", "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def _job(name: str, pods: int, seconds: int) -> dict[str, Any]:
    container = {"name": "c", "image": "example/batch:1", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    template = {
        "metadata": {"annotations": {"sim.koord.sh/run-seconds": str(seconds)}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    spec = {"parallelism": pods, "completions": pods, "ttlSecondsAfterFinished": 600, "template": template}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def _drive_load(
    client: Client, clock: LoopClock, chance: random.Random, services: int, jobs: int, hours: float
) -> None:
    """Scale and roll out services, and create jobs as they arrive."""
    for i in range(services):
        unwrap(await client.create(builtin_kinds.DEPLOYMENTS, _deployment(f"web-{i}", chance.randint(2, 20))))
    end = clock.monotonic() + hours * HOUR
    arrivals = sorted(chance.uniform(0, hours * HOUR) for _ in range(jobs))
    start = clock.monotonic()
    for number, at in enumerate(arrivals):
        await clock.sleep(max(0.0, start + at - clock.monotonic()))
        unwrap(
            await client.create(
                builtin_kinds.JOBS, _job(f"batch-{number}", chance.randint(1, 20), chance.randint(60, 1800))
            )
        )
        name = f"web-{chance.randrange(services)}"
        if chance.random() < 0.2:
            replicas = {"spec": {"replicas": chance.randint(0, 20)}}
            unwrap(await client.patch(builtin_kinds.DEPLOYMENTS, name, replicas, "default", kind="merge"))
        elif chance.random() < 0.1:
            stamp = {"spec": {"template": {"metadata": {"annotations": {"rolled": str(number)}}}}}
            unwrap(await client.patch(builtin_kinds.DEPLOYMENTS, name, stamp, "default", kind="strategic"))
    await clock.sleep(max(0.0, end - clock.monotonic()))


def run_day(*, nodes: int, services: int, jobs: int, hours: float, seed: int) -> DayResult:
    async def main(clock: LoopClock) -> DayResult:
        def fleet(c: ComponentContext) -> SimulatedFleet:
            return SimulatedFleet(c.client, c.informers, c.clock, c.seed, default_pools(nodes), LONG_LEASES)

        cluster = EmbeddedCluster(
            ClusterSettings(http=False, seed=seed),
            [
                ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed)),
                ("nodes", fleet),
                ("scheduler", local_scheduler.make_scheduler),
            ],
            clock=clock,
        )
        await cluster.start()
        assert cluster.client is not None
        assert cluster.informers is not None
        digest, seen, count = hashlib.sha256(), set[str](), 0

        def note(change: Any) -> None:
            nonlocal count
            count += 1
            pod = change.object
            seen.add(pod.metadata.uid)
            line = f"{clock.time():.3f} {change.kind} {pod.metadata.name} {pod.spec.node_name} {pod.status.phase}\n"
            digest.update(line.encode())

        pods = cluster.informers.for_resource(builtin_kinds.PODS)
        pods.add_event_handler(note)
        await _drive_load(cluster.client, clock, random.Random(seed), services, jobs, hours)
        phases = Counter(pod.status.phase for pod in pods.list())
        await cluster.stop()
        return DayResult(len(seen), count, dict(sorted(phases.items())), digest.hexdigest())

    return run_virtual(main)
