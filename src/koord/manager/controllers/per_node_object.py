"""Keeps one cluster-scoped object per node, named as the node: creates, updates and deletes it with the node.

The owner decides the spec; this module holds the life cycle that NodeSLO and NodeMetric share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.api.model import to_dict
from koord.api.patch.merge_patch import create_merge_patch
from koord.kube.controller.controller import Controller, Done, ReconcileResult, Requeue
from koord.kube.controller.workqueue import WorkQueue
from koord.kube.informer.cache import ObjectChange
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.manager.context import ManagerContext
from koord.manager.controllers.reconcile_counter import ReconcileCounter

O = TypeVar("O", bound=Object)  # noqa: E741  an object

_LOG = logging.getLogger(__name__)

WORKERS = 4


class DesiredSpec(msgspec.Struct, frozen=True):
    """The spec that the object shall have; None leaves it as it is, or does not create it."""

    spec: msgspec.Struct | None
    extra: Mapping[str, Any] = {}  # fields of a new object's spec that models leave out when they are empty


DecideSpec = Callable[[Node, O | None], DesiredSpec]


class PerNodeObjectController(Generic[O]):
    def __init__(
        self,
        name: str,
        context: ManagerContext,
        resource: Resource[O],
        decide: DecideSpec[O],
        counter: ReconcileCounter,
        *,
        relevant: Callable[[Node, Node], bool],
    ) -> None:
        """`relevant(before, after)` says whether a change of the node may change the decision."""
        self.name = name
        self.counter = counter
        self.nodes = context.informers.for_resource(NODES)
        self.objects = context.informers.for_resource(resource)
        self.queue: WorkQueue[str] = WorkQueue(context.clock, name=name)
        self._context = context
        self._resource = resource
        self._decide = decide
        self._relevant = relevant
        self._quiet = RateLimitedLog(_LOG, context.clock)  # a setting that the schema refuses is refused for every node
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        """Stop and drop the queue: a later start hears of everything again."""
        self.queue.shutdown(drain=False)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self.queue = WorkQueue(self._context.clock, name=self.name)

    def enqueue_all(self) -> None:
        for node in self.nodes.list():
            self.queue.add(node.metadata.name)

    async def reconcile(self, name: str) -> ReconcileResult:
        node, obj = self.nodes.get("", name), self.objects.get("", name)
        if node is None:
            return Done() if obj is None else await self._remove(obj)
        wanted = self._decide(node, obj)
        if wanted.spec is None:
            return Done()
        if obj is None:
            return await self._create(name, wanted)
        patch = create_merge_patch(to_dict(obj.spec), to_dict(wanted.spec))  # type: ignore[attr-defined]
        if not patch:
            return Done()
        return await self._update(obj, patch)

    async def _run(self) -> None:
        """Work once both caches are synced: with half a list of nodes most objects would look orphaned."""
        nodes, objects = (
            self.nodes.add_event_handler(self._node_changed),
            self.objects.add_event_handler(self._object_changed),
        )
        try:
            await self.nodes.wait_for_sync()
            await self.objects.wait_for_sync()
            async with asyncio.TaskGroup() as group:
                group.create_task(Controller(self.name, self.queue, self.reconcile, workers=WORKERS).run())
                if self._context.settings.sync_period_s > 0:
                    group.create_task(self._resync(self._context.settings.sync_period_s))
        finally:
            self.nodes.remove_event_handler(nodes)
            self.objects.remove_event_handler(objects)

    async def _resync(self, every_s: float) -> None:
        while True:
            await self._context.clock.sleep(every_s)
            self.enqueue_all()

    async def _create(self, name: str, wanted: DesiredSpec) -> ReconcileResult:
        assert wanted.spec is not None
        body = {"metadata": {"name": name}, "spec": {**wanted.extra, **to_dict(wanted.spec)}}
        answer = await self._context.client.create(self._resource, body)
        if isinstance(answer, ApiError) and answer.already_exists:
            return Requeue("made by somebody else meanwhile")  # the cache will show it
        return self._outcome(answer, f"create{self._resource.kind}")

    async def _update(self, obj: O, patch: dict[str, Any]) -> ReconcileResult:
        meta = obj.metadata
        answer = await self._context.client.patch(
            self._resource, meta.name, {"spec": patch}, kind="merge", uid=meta.uid
        )
        if isinstance(answer, ApiError) and (answer.not_found or answer.conflict):
            return Requeue("changed meanwhile")
        return self._outcome(answer, f"update{self._resource.kind}")

    async def _remove(self, obj: O) -> ReconcileResult:
        answer = await self._context.client.delete(self._resource, obj.metadata.name, uid=obj.metadata.uid)
        if isinstance(answer, ApiError) and answer.not_found:
            return Done()
        if isinstance(answer, ApiError) and answer.conflict:
            return Requeue("changed meanwhile")
        return self._outcome(answer, f"delete{self._resource.kind}")

    def _outcome(self, answer: object, reason: str) -> ReconcileResult:
        if isinstance(answer, ApiError):
            self.counter.failed(reason)
            self._quiet.warning("%s: %s refused: %s", self.name, reason, answer)
            return Requeue(str(answer))
        self.counter.succeeded(reason)
        return Done()

    def _node_changed(self, change: ObjectChange[Node]) -> None:
        old = change.old
        if change.kind != "updated" or old is None or self._relevant(old, change.object):
            self.queue.add(change.object.metadata.name)

    def _object_changed(self, change: ObjectChange[O]) -> None:
        """Enqueue on a new generation only: koordlets write the status every minute."""
        old = change.old
        if (
            change.kind == "updated"
            and old is not None
            and old.metadata.generation == change.object.metadata.generation
        ):
            return
        self.queue.add(change.object.metadata.name)
