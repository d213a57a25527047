"""A placeholder for the scheduler: binds each pending pod to the next node that it fits on, scoring nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import msgspec

from koord.api.affinity import Taint, Toleration
from koord.api.builtin import NODES, PODS
from koord.api.meta import ObjectMeta
from koord.api.node import Node, NodeStatus
from koord.api.pod import Pod, PodSpec
from koord.api.pod_resources import amounts, pod_requests
from koord.kube.cache import Change
from koord.kube.client import Client
from koord.kube.controller import Controller, Done, Outcome, Retry
from koord.kube.informers import Informers
from koord.kube.recorder import Recorder, reference
from koord.kube.workqueue import WorkQueue
from koord.telemetry.clock import Clock

SCHEDULERS = ("", "default-scheduler", "koord-scheduler")
RETRY_S = 5.0


class _Pod(Pod, frozen=True, kw_only=True):
    takes: dict[str, int] = {}  # not on the wire: worked out by `_slim_pod`


class _Node(Node, frozen=True, kw_only=True):
    """A type of its own, so that its informer is: others want more of a node than is left here."""


_PODS, _NODES = PODS.viewed(_Pod), NODES.viewed(_Node)


def _slim_pod(pod: _Pod) -> _Pod:
    """A bound pod is what it takes from where; a pending one keeps its spec."""
    meta, spec = pod.metadata, pod.spec
    takes = {} if pod.status.phase in ("Succeeded", "Failed") else {"pods": 1, **pod_requests(spec)}
    kept = PodSpec(node_name=spec.node_name) if spec.node_name else msgspec.structs.replace(spec, volumes=())
    own = ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version)
    return _Pod(metadata=own, spec=kept, takes=takes)


def _slim_node(node: _Node) -> _Node:
    return _Node(metadata=node.metadata, spec=node.spec, status=NodeStatus(allocatable=node.status.allocatable))


class Binder:
    def __init__(
        self, client: Client, informers: Informers, clock: Clock, schedulers: Collection[str] = SCHEDULERS
    ) -> None:
        self._client, self._schedulers = client, frozenset(schedulers)
        self._pods = informers.of(_PODS, transform=_slim_pod)
        self._nodes = informers.of(_NODES, transform=_slim_node)
        self._room: dict[str, dict[str, int]] = {}  # node -> allocatable, in the order in which nodes take turns
        self._used: dict[str, dict[str, int]] = {}  # node -> sum of what is bound or being bound to it
        self._held: dict[str, tuple[str, Mapping[str, int]]] = {}  # uid -> node and what it takes there
        self._queue: WorkQueue[tuple[str, str]] = WorkQueue(clock, name="binder")
        self._recorder = Recorder(client, clock, controller="default-scheduler", instance="koord-binder")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._nodes.on(self._on_node)
        self._pods.on(self._on_pod)
        self._recorder.start()
        self._task = asyncio.create_task(Controller("binder", self._queue, self._bind).run(), name="binder")

    async def stop(self) -> None:
        self._queue.shutdown(drain=False)
        if self._task is not None:
            await self._task
        await self._recorder.stop()

    def _on_node(self, change: Change[_Node]) -> None:
        if change.kind == "deleted":
            self._room.pop(change.object.metadata.name, None)
        else:
            self._room[change.object.metadata.name] = amounts(change.object.status.allocatable)

    def _on_pod(self, change: Change[_Pod]) -> None:
        pod = change.object
        if change.kind == "deleted":
            self._hold(pod, "")
        elif pod.spec.node_name:
            self._hold(pod, pod.spec.node_name)
        elif pod.takes and not pod.spec.scheduling_gates and pod.spec.scheduler_name in self._schedulers:
            self._queue.add((pod.metadata.namespace, pod.metadata.name))

    def _hold(self, pod: _Pod, node: str) -> None:
        before = self._held.pop(pod.metadata.uid, None)
        if node and pod.takes:
            self._held[pod.metadata.uid] = (node, pod.takes)
        for sign, held in ((-1, before), (1, self._held.get(pod.metadata.uid))):
            for name, amount in held[1].items() if held else ():
                used = self._used.setdefault(held[0] if held else "", {})
                used[name] = used.get(name, 0) + sign * amount

    async def _bind(self, key: tuple[str, str]) -> Outcome:
        pod = self._pods.get(*key)
        if pod is None or pod.spec.node_name or pod.metadata.uid in self._held:
            return Done()
        node, why = self._choose(pod), f"0/{len(self._room)} nodes are available."
        if node:
            self._hold(pod, node)  # before the answer: the next pod must not be promised the same room
            try:
                refused = await self._client.bind(*key, node, uid=pod.metadata.uid)
            except BaseException:
                self._hold(pod, "")
                raise
            if refused is None:
                note = f"Successfully assigned {key[0]}/{key[1]} to {node}"
                self._recorder.record(reference(PODS, pod), "Normal", "Scheduled", note, action="Binding")
                return Done()
            self._hold(pod, "")
            why = refused.message
        self._recorder.record(reference(PODS, pod), "Warning", "FailedScheduling", why, action="Scheduling")
        return Retry(RETRY_S)

    def _choose(self, pod: _Pod) -> str:
        passed = []
        for name in self._room:
            passed.append(name)
            if self._fits(pod, name):
                for each in passed:  # to the end of the row: their next turn comes after all others'
                    self._room[each] = self._room.pop(each)
                return name
        return ""

    def _fits(self, pod: _Pod, name: str) -> bool:
        node, room, used = self._nodes.get("", name), self._room[name], self._used.get(name, {})
        if node is None or node.spec.unschedulable or not _tolerates(pod.spec.tolerations, node.spec.taints):
            return False
        if any(node.metadata.labels.get(key) != value for key, value in pod.spec.node_selector.items()):
            return False
        return all(used.get(what, 0) + amount <= room.get(what, 0) for what, amount in pod.takes.items() if amount)


def _tolerates(tolerations: tuple[Toleration, ...], taints: tuple[Taint, ...]) -> bool:
    def matches(toleration: Toleration, taint: Taint) -> bool:
        if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
            return False
        return toleration.operator == "Exists" or (bool(toleration.key) and toleration.value == taint.value)

    hard = (taint for taint in taints if taint.effect in ("NoSchedule", "NoExecute"))
    return all(any(matches(toleration, taint) for toleration in tolerations) for taint in hard)
