"""An empty cluster to make plugins over, when only their points and what they say of their arguments matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from koord.api.meta import Object
from koord.api.resource import Resource
from koord.scheduler.framework.desk import Desk
from koord.scheduler.state.cluster import ClusterState

O = TypeVar("O", bound=Object)  # noqa: E741 - an object


class NoObjects(Generic[O]):
    version = 0

    def get(self, namespace: str, name: str) -> O | None:
        return None

    def list(self, namespace: str | None = None) -> Sequence[O]:
        return ()

    def on_change(self, callback: Callable[[O | None, O | None], None]) -> None:
        """Nothing ever does."""


class BlankHandle:
    def __init__(self) -> None:
        self.state = ClusterState()
        self.desk = Desk()

    def lister(self, resource: Resource[O]) -> NoObjects[O]:
        return NoObjects()

    def now(self) -> float:
        return 0.0
