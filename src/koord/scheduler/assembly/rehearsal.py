"""Complete a configuration: fill in defaults, validate it against the plugins at hand, and make profiles from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from koord.api.meta import Object
from koord.api.resource import Resource
from koord.scheduler.framework.desk import Desk
from koord.scheduler.state.cluster import ClusterState

O = TypeVar("O", bound=Object)  # noqa: E741 - an object


class NoObjects(Generic[O]):
    """List nothing."""
    version = 0

    def get(self, namespace: str, name: str) -> O | None:
        return None

    def list(self, namespace: str | None = None) -> Sequence[O]:
        return ()

    def on_change(self, callback: Callable[[O | None, O | None], None]) -> None:
        """Never call back."""


class BlankHandle:
    """Give plugins an empty cluster, to learn only their extension points and what they say about their arguments."""
    def __init__(self) -> None:
        self.state = ClusterState()
        self.desk = Desk()

    def lister(self, resource: Resource[O]) -> NoObjects[O]:
        return NoObjects()

    def now(self) -> float:
        return 0.0
