"""This module runs a day of a cluster in virtual time: services, rollouts and batch jobs, all from one seed."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from typing import Any

import msgspec

from koord.api import builtin
from koord.cli import local_scheduler
from koord.embedded.cluster import Cluster, Context, Settings
from koord.embedded.kubelet.fleet import Fleet
from koord.embedded.kubelet.fleet import Settings as FleetSettings
from koord.embedded.kubelet.profile import default_pools
from koord.embedded.workloads.workloads import Workloads
from koord.kube.client import Client
from koord.kube.refused import ok
from koord.telemetry.clock import LoopClock, run_virtual

HOUR = 3600.0
# Still within the 40 s after which a silent node counts as lost, at a third of the writes.
LONG_LEASES = FleetSettings(lease_period_s=30.0)


class Day(msgspec.Struct, frozen=True):
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


async def _live(
    client: Client, clock: LoopClock, chance: random.Random, services: int, jobs: int, hours: float
) -> None:
    """Scale and roll out services, and create jobs as they arrive."""
    for i in range(services):
        ok(await client.create(builtin.DEPLOYMENTS, _deployment(f"web-{i}", chance.randint(2, 20))))
    end = clock.monotonic() + hours * HOUR
    arrivals = sorted(chance.uniform(0, hours * HOUR) for _ in range(jobs))
    start = clock.monotonic()
    for number, at in enumerate(arrivals):
        await clock.sleep(max(0.0, start + at - clock.monotonic()))
        ok(await client.create(builtin.JOBS, _job(f"batch-{number}", chance.randint(1, 20), chance.randint(60, 1800))))
        name = f"web-{chance.randrange(services)}"
        if chance.random() < 0.2:
            replicas = {"spec": {"replicas": chance.randint(0, 20)}}
            ok(await client.patch(builtin.DEPLOYMENTS, name, replicas, "default", kind="merge"))
        elif chance.random() < 0.1:
            stamp = {"spec": {"template": {"metadata": {"annotations": {"rolled": str(number)}}}}}
            ok(await client.patch(builtin.DEPLOYMENTS, name, stamp, "default", kind="strategic"))
    await clock.sleep(max(0.0, end - clock.monotonic()))


def run_day(*, nodes: int, services: int, jobs: int, hours: float, seed: int) -> Day:
    async def main(clock: LoopClock) -> Day:
        def fleet(c: Context) -> Fleet:
            return Fleet(c.client, c.informers, c.clock, c.seed, default_pools(nodes), LONG_LEASES)

        cluster = Cluster(
            Settings(http=False, seed=seed),
            [
                ("workloads", lambda c: Workloads(c.client, c.informers, c.clock, c.seed)),
                ("nodes", fleet),
                ("scheduler", local_scheduler.make),
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

        pods = cluster.informers.of(builtin.PODS)
        pods.on(note)
        await _live(cluster.client, clock, random.Random(seed), services, jobs, hours)
        phases = Counter(pod.status.phase for pod in pods.list())
        await cluster.stop()
        return Day(len(seen), count, dict(sorted(phases.items())), digest.hexdigest())

    return run_virtual(main)
