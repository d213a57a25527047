"""Run a small cluster for tests: the embedded server in this process, the controllers under test, and a
toy kubelet.

The kubelet binds and runs every pod. Annotations of the template say how: `toy/exit` (the exit code),
`toy/runs`
(seconds until then), `toy/never-ready`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Collection
from datetime import UTC, datetime
from typing import Any

from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.resource import Resource
from koord.embedded.apiserver.server import ApiServer
from koord.embedded.cluster import InProcessTransport
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.embedded.workloads.daemonset_controller import target_node
from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable, UnstructuredBody, WatchStream
from koord.telemetry.clock import Clock
from koord.values import timestamp

Plain = dict[str, Any]


class ToyKubelet:
    """Binds, starts and ends pods; every wait is on the clock."""

    def __init__(
        self, client: Client, informers: InformerFactory, clock: Clock, nodes: list[str], start_s: float
    ) -> None:
        self.client, self.clock, self.nodes, self.start_s = client, clock, nodes, start_s
        self.stop_s = 1.0
        self.by_affinity = False  # bind to the node that a daemon's pod names
        self.deaf = False  # a kubelet that does nothing, as on a lost node
        self._next = 0
        self._known: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.pods = informers.for_resource(PODS)
        self.pods.add_event_handler(self._changed)

    def _changed(self, change: ObjectChange[Pod]) -> None:
        uid = change.object.metadata.uid
        if change.kind == "deleted":
            self._known.pop(uid, None)
        elif change.object.metadata.deletion_timestamp is not None:
            if self._known.get(uid) != "ending":
                self._known[uid] = "ending"
                self._begin(self._end(change.object))
        elif uid not in self._known:
            self._known[uid] = "living"
            self._begin(self._live(change.object))

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _stamp(self) -> str:
        return timestamp.text(datetime.fromtimestamp(self.clock.time(), UTC))

    async def _live(self, pod: Pod) -> None:
        meta = pod.metadata
        if not pod.spec.node_name:
            if self.deaf or not self.nodes:
                return
            node = target_node(pod) if self.by_affinity else self.nodes[self._next % len(self.nodes)]
            self._next += 1
            if isinstance(await self.client.bind(meta.namespace, meta.name, node, uid=meta.uid), ApiError):
                return
        await self.clock.sleep(self.start_s)
        ready = "toy/never-ready" not in meta.annotations
        await self._say(pod, {"phase": "Running", "conditions": [self._ready(ready)]})
        if (code := meta.annotations.get("toy/exit")) is None:
            return
        await self.clock.sleep(float(meta.annotations.get("toy/runs", "5")))
        ended = {"exitCode": int(code), "finishedAt": self._stamp()}
        phase = "Succeeded" if code == "0" else "Failed"
        statuses = [{"name": c.name, "image": c.image, "imageID": "", "ready": False, "restartCount": 0,
                     "state": {"terminated": ended}} for c in pod.spec.containers]  # fmt: skip
        await self._say(pod, {"phase": phase, "conditions": [self._ready(False)], "containerStatuses": statuses})

    def _ready(self, ready: bool) -> Plain:
        status = "True" if ready else "False"
        return {"type": "Ready", "status": status, "lastTransitionTime": self._stamp(), "lastProbeTime": None}

    async def _say(self, pod: Pod, status: Plain) -> None:
        meta = pod.metadata
        live = self.pods.get(meta.namespace, meta.name)
        if self.deaf or live is None or live.metadata.uid != meta.uid or live.metadata.deletion_timestamp is not None:
            return
        await self.client.patch(
            PODS, meta.name, {"status": status}, meta.namespace, kind="strategic", subresource="status", uid=meta.uid
        )

    async def _end(self, pod: Pod) -> None:
        meta = pod.metadata
        await self.clock.sleep(self.stop_s)
        if self.deaf:
            return
        await self.client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=0)


class FaultyTransport:
    """A transport over which calls fail: some before they reach the server, some after, some with an error
    response.
    """

    def __init__(self, inner: InProcessTransport, share: float, chance: random.Random) -> None:
        self.inner, self.share, self.chance = inner, share, chance

    async def send(self, request: ApiRequest) -> ApiResponse:
        fate = self.chance.random() / self.share if self.share else 1.0
        if fate < 0.4:
            raise Unreachable("lost on the way", sent=False)
        if fate < 0.5 and request.method != "GET":
            body = {"kind": "Status", "status": "Failure", "reason": "Conflict", "message": "faulty", "code": 409}
            return ApiResponse(status=409, body=UnstructuredBody(body))
        answer = await self.inner.send(request)
        if fate < 1.0:
            raise Unreachable("lost on the way back")
        return answer

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        return await self.inner.watch(request)

    async def close(self) -> None:
        await self.inner.close()


class WorkloadCluster:
    def __init__(self, client: Client, informers: InformerFactory, clock: Clock, kubelet: ToyKubelet) -> None:
        self.client, self.informers, self.clock, self.kubelet = client, informers, clock, kubelet

    async def create(self, resource: Resource[Any], body: Plain, namespace: str = "default") -> Any:
        return unwrap(await self.client.create(resource, body, namespace if resource.namespaced else None))

    async def merge(self, resource: Resource[Any], name: str, patch: Plain, namespace: str | None = "default") -> Any:
        return unwrap(await self.client.patch(resource, name, patch, namespace, kind="merge"))

    async def get(self, resource: Resource[Any], name: str, namespace: str | None = "default") -> Any:
        """None when there is no such object."""
        found = await self.client.get(resource, name, namespace)
        if isinstance(found, ApiError) and found.not_found:
            return None
        return unwrap(found)

    async def list(self, resource: Resource[Any], namespace: str | None = "default", labels: str = "") -> list[Any]:
        return list(unwrap(await self.client.list(resource, namespace, labels=labels)).items)

    async def delete(self, resource: Resource[Any], name: str, namespace: str | None = "default", **how: Any) -> None:
        unwrap(await self.client.delete(resource, name, namespace, **how))

    async def until(self, what: Callable[[], Any], limit_s: float = 60.0, step_s: float = 0.1) -> Any:
        """Until the awaited predicate gives something true; time is virtual, so the steps cost nothing."""
        end = self.clock.monotonic() + limit_s
        while True:
            found = await what()
            if found:
                return found
            assert self.clock.monotonic() < end, f"not within {limit_s} s"
            await self.clock.sleep(step_s)

    async def pass_time(self, seconds: float) -> None:
        await self.clock.sleep(seconds)


@contextlib.asynccontextmanager
async def workload_cluster(
    clock: Clock,
    only: Collection[str] | None = None,
    *,
    nodes: int = 3,
    start_s: float = 1.0,
    seed: int = 7,
    faults: float = 0.0,
) -> AsyncIterator[WorkloadCluster]:
    """`faults`: the share of the controllers' calls that fail, before or after they took effect."""
    server = ApiServer(clock=clock, chance=random.Random(seed))
    await server.start()
    client = Client(InProcessTransport(server), clock=clock, qps=0, burst=0)
    informers = InformerFactory(client, clock, seed=seed)
    shaky = FaultyTransport(InProcessTransport(server), faults, random.Random(f"faults {seed}"))
    theirs = Client(shaky, clock=clock, qps=0, burst=0, chance=random.Random(seed)) if faults else client
    caches = InformerFactory(theirs, clock, seed=seed) if faults else informers
    names = [f"node-{number}" for number in range(nodes)]
    for name in names:
        ready = {"type": "Ready", "status": "True"}
        unwrap(await client.create(NODES, {"metadata": {"name": name}, "status": {"conditions": [ready]}}))
    workloads = ControllerManager(theirs, caches, clock, seed, only=only)
    kubelet = ToyKubelet(client, informers, clock, names, start_s)
    await workloads.start()
    for each in {id(informers): informers, id(caches): caches}.values():
        each.start()
        await each.wait_for_cache_sync()
    try:
        yield WorkloadCluster(client, informers, clock, kubelet)
    finally:
        shaky.share = 0.0
        await workloads.stop()
        await kubelet.stop()
        await caches.stop()
        await informers.stop()
        await client.close()
        await server.close()


def template(labels: Plain | None = None, *, image: str = "app:1", **annotations: str) -> Plain:
    noted = {key.replace("__", "/").replace("_", "-"): value for key, value in annotations.items()}
    meta: Plain = {"labels": labels or {"app": "web"}}
    if noted:
        meta["annotations"] = noted
    containers = [{"name": "main", "image": image}]
    return {"metadata": meta, "spec": {"containers": containers, "terminationGracePeriodSeconds": 30}}


def names(objects: list[Object]) -> list[str]:
    return sorted(obj.metadata.name for obj in objects)
