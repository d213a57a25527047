"""What gangs cost: 100 of 64 pods on 5,000 nodes, from the start of leading until all are bound, beside plain pods.

Engine, shell and the embedded API server share one process and one core. Ratios are of pods bound per second of CPU,
taken in turns in one run: without events; with events until all are bound; and until all events are written as well.
A gang's span is from its first binding to its last, as a watch sees them, on the wall clock.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.koordinator.custom_kinds import POD_GROUPS
from koord.api.koordinator.protocol import L_POD_GROUP
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.cli import scheduler_setup
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster, InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.scheduler import Scheduler
from koord.telemetry.clock import WallClock

NODE_COUNT, GANGS, SIZE = 5_000, 100, 64
ROUNDS = 3


async def _filled(cluster: EmbeddedCluster, *, gangs: bool) -> None:
    client = cluster.client
    assert client is not None
    room = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    for number in range(NODE_COUNT):
        body = {"metadata": {"name": f"node-{number}"}, "status": {"allocatable": room, "capacity": room}}
        unwrap(await client.create(NODES, body))
    for gang in range(GANGS):
        name = f"gang-{gang}"
        if gangs:
            meta = {"name": name, "namespace": "default"}
            unwrap(await client.create(POD_GROUPS, {"metadata": meta, "spec": {"minMember": SIZE}}))
        labels = {L_POD_GROUP: name} if gangs else {"app": name}
        for number in range(SIZE):
            container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
            body = {
                "metadata": {"name": f"{name}-{number}", "namespace": "default", "labels": labels},
                "spec": {"schedulerName": "koord-scheduler", "containers": [container]},
            }
            unwrap(await client.create(PODS, body))


class _Run(msgspec.Struct, frozen=True):
    """Pods per second of CPU until all are bound, and until all is told; and how long gangs took, in seconds."""

    bound: float
    told: float
    spans: list[float]


async def _drained(*, gangs: bool, events: bool) -> _Run:
    clock = WallClock()
    cluster = EmbeddedCluster(ClusterSettings(http=False), [], clock=clock)
    await cluster.start()
    assert cluster.server is not None
    await _filled(cluster, gangs=gangs)
    client = Client(InProcessTransport(cluster.server, "system:kube-scheduler"), clock=clock, qps=0, burst=0)
    informers = InformerFactory(client, clock)
    assembly = scheduler_setup.scheduler_assembly()
    assert not isinstance(assembly, str), assembly
    scheduler = Scheduler(client, informers, clock, assembly, seed=1)
    told = [0]
    tell = scheduler.event_throttle.submit

    def announce(record_event: Callable[[], None]) -> None:
        told[0] += 1
        if events:
            tell(record_event)

    scheduler.event_throttle.submit = announce  # type: ignore[method-assign]
    seen: dict[str, list[float]] = {}

    def watch(change: ObjectChange[Pod]) -> None:
        pod = change.object
        if pod.spec.node_name and (change.old is None or not change.old.spec.node_name):
            seen.setdefault(pod.metadata.name.rsplit("-", 1)[0], []).append(time.perf_counter())

    await scheduler.start()
    scheduler.event_handlers.pods.add_event_handler(watch)
    informers.start()
    await scheduler.wait_synced()
    gc.collect()
    began = time.process_time()
    leading = asyncio.create_task(scheduler.lead())
    while len(scheduler.queue):  # noqa: ASYNC110 - the queue has no event for being empty
        await asyncio.sleep(0.01)
    bound = time.process_time() - began
    while scheduler.event_throttle.pending or scheduler.unwritten_events:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    all_told = time.process_time() - began
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    await scheduler.stop()
    await informers.stop()
    await cluster.stop()
    spans = [max(times) - min(times) for times in seen.values()]
    return _Run(GANGS * SIZE / bound, GANGS * SIZE / all_told, spans)


def _compared(runs: Callable[[bool], _Run]) -> tuple[list[_Run], list[_Run]]:
    plain, gang = [], []
    for _ in range(ROUNDS):
        plain.append(runs(False))
        gang.append(runs(True))
    return plain, gang


def run() -> dict[str, Any]:
    plain, gang = _compared(lambda gangs: asyncio.run(_drained(gangs=gangs, events=False)))
    loud, loud_gang = _compared(lambda gangs: asyncio.run(_drained(gangs=gangs, events=True)))
    spans = sorted(span for one in loud_gang for span in one.spans)

    def pair(a: list[_Run], b: list[_Run], of: Callable[[_Run], float]) -> dict[str, float]:
        return {
            "plain_pods_per_cpu_second": statistics.median(map(of, a)),
            "gang_pods_per_cpu_second": statistics.median(map(of, b)),
            "gangs_to_plain": statistics.median(of(y) / of(x) for x, y in zip(a, b, strict=True)),
        }

    return {
        "nodes": NODE_COUNT,
        "gangs": GANGS,
        "members": SIZE,
        "load_average": os.getloadavg()[0],
        **pair(plain, gang, lambda one: one.bound),
        "with_events": pair(loud, loud_gang, lambda one: one.bound),
        "with_events_until_all_are_written": pair(loud, loud_gang, lambda one: one.told),
        "gang_span_p50_ms": 1000 * spans[len(spans) // 2],
        "gang_span_p99_ms": 1000 * spans[-1 - len(spans) // 100],
    }
