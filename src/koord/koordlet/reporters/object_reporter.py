"""Keep one object that is named as this node and owned by it: check every few seconds, write only what changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.koordlet.problem_log import ProblemLog
from koord.kube.client.typed_client import Client
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock

T = TypeVar("T", bound=Object)


class ObjectReporter(ABC, Generic[T]):
    """Run it in a task. `objects` follows the object named as this node."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        resource: Resource[T],
        objects: Informer[T],
        every_s: float,
        problem_log: ProblemLog,
    ) -> None:
        self._client = client
        self._clock = clock
        self._resource = resource
        self._objects = objects
        self._every_s = every_s
        self._health = problem_log

    @property
    def problem(self) -> str:
        return self._health.problem

    async def run(self) -> None:
        while True:
            await self.sync()
            await self._clock.sleep(self._every_s)

    @abstractmethod
    async def sync(self) -> None:
        """Build what is wanted, and publish it."""

    async def _publish(
        self, node: Node, new: Callable[[], dict[str, Any]], patch: Callable[[T], dict[str, Any]]
    ) -> None:
        """Create the object as `new` says, or apply the merge patch from the present one unless it is empty."""
        there = self._objects.get("", node.metadata.name)
        try:
            answer = await self._write(node.metadata.name, there, new() if there is None else patch(there))
        except TRANSIENT_ERRORS as failure:
            self._health.fails(failure)
            return
        if not isinstance(answer, ApiError):
            self._health.works()
        elif not (answer.conflict or answer.already_exists or answer.too_many):
            # Else somebody was faster, or the informer has not heard of our own write: the next sync knows more.
            self._health.fails(answer)

    async def _write(self, name: str, there: T | None, body: dict[str, Any]) -> T | ApiError | None:
        if there is None:
            return await self._client.create(self._resource, body)
        if not body:
            return None
        meta = there.metadata
        return await self._client.patch(
            self._resource, name, body, kind="merge", uid=meta.uid, resource_version=meta.resource_version
        )


def owned_metadata(node: Node, labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, Any]:
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node.metadata.name,
        "uid": node.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": node.metadata.name,
        "labels": dict(labels),
        "annotations": dict(annotations),
        "ownerReferences": [owner],
    }
