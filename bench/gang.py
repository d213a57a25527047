"""What gangs cost: 100 of 64 pods on 5,000 nodes, from the start of leading until all are bound, beside plain pods.

Engine, shell and the embedded API server share one process and one core. Ratios are of pods bound per second of CPU,
taken in turns in one run. Events are left out on both sides: they are written when there is time, and dropped when
there is none, so that a run that binds faster would pay for fewer of them.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from typing import Any

from koord.api.builtin import NODES, PODS
from koord.api.custom import POD_GROUPS
from koord.api.protocol import L_POD_GROUP
from koord.cli import local_scheduler
from koord.embedded.apiserver.inprocess import InProcessTransport
from koord.embedded.cluster import Cluster, Settings
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.refused import ok
from koord.scheduler.program import Scheduler
from koord.telemetry.clock import WallClock

NODE_COUNT, GANGS, SIZE = 5_000, 100, 64
ROUNDS = 3


async def _filled(cluster: Cluster, *, gangs: bool) -> None:
    client = cluster.client
    assert client is not None
    room = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    for number in range(NODE_COUNT):
        body = {"metadata": {"name": f"node-{number}"}, "status": {"allocatable": room, "capacity": room}}
        ok(await client.create(NODES, body))
    for gang in range(GANGS):
        name = f"gang-{gang}"
        if gangs:
            meta = {"name": name, "namespace": "default"}
            ok(await client.create(POD_GROUPS, {"metadata": meta, "spec": {"minMember": SIZE}}))
        labels = {L_POD_GROUP: name} if gangs else {"app": name}
        for number in range(SIZE):
            container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
            body = {
                "metadata": {"name": f"{name}-{number}", "namespace": "default", "labels": labels},
                "spec": {"schedulerName": "koord-scheduler", "containers": [container]},
            }
            ok(await client.create(PODS, body))


async def _bound_per_second(*, gangs: bool) -> float:
    clock = WallClock()
    cluster = Cluster(Settings(http=False), [], clock=clock)
    await cluster.start()
    assert cluster.server is not None
    await _filled(cluster, gangs=gangs)
    client = Client(InProcessTransport(cluster.server, "system:kube-scheduler"), clock=clock, qps=0, burst=0)
    informers = Informers(client, clock)
    assembly = local_scheduler.assembled()
    assert not isinstance(assembly, str), assembly
    scheduler = Scheduler(client, informers, clock, assembly, seed=1)
    scheduler.announcer.announce = lambda news: None  # type: ignore[method-assign]
    await scheduler.start()
    informers.start()
    await scheduler.synced()
    gc.collect()
    began = time.process_time()
    leading = asyncio.create_task(scheduler.lead())
    while len(scheduler.queue):  # noqa: ASYNC110 - the queue has no event for being empty
        await asyncio.sleep(0.01)
    took = time.process_time() - began
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    await scheduler.stop()
    await informers.stop()
    await cluster.stop()
    return GANGS * SIZE / took


def run() -> dict[str, Any]:
    plain, gang = [], []
    for _ in range(ROUNDS):
        plain.append(asyncio.run(_bound_per_second(gangs=False)))
        gang.append(asyncio.run(_bound_per_second(gangs=True)))
    return {
        "nodes": NODE_COUNT,
        "gangs": GANGS,
        "members": SIZE,
        "plain_pods_per_cpu_second": statistics.median(plain),
        "gang_pods_per_cpu_second": statistics.median(gang),
        "gangs_to_plain": statistics.median(g / p for g, p in zip(gang, plain, strict=True)),
    }
