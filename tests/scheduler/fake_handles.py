"""Fake handles and listers for making plugins in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from koord.api.kubernetes.resource import Resource
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.framework.handle import Lister, SchedulerActions


class FakeLister:
    """A lister that tests write to; every write gives its object a new revision, as the server does."""

    def __init__(self) -> None:
        self.version = 0
        self._held: dict[tuple[str, str], Any] = {}
        self._callbacks: list[Callable[[Any, Any], None]] = []

    def put(self, obj: Any) -> None:
        meta = msgspec.structs.replace(obj.metadata, resource_version=str(self.version + 1))
        self._changed(meta.namespace, meta.name, msgspec.structs.replace(obj, metadata=meta))

    def drop(self, name: str, namespace: str = "") -> None:
        self._changed(namespace, name, None)

    def _changed(self, namespace: str, name: str, new: Any) -> None:
        self.version += 1
        old = self._held.pop((namespace, name), None)
        if new is not None:
            self._held[namespace, name] = new
        for callback in self._callbacks:
            callback(old, new)

    def get(self, namespace: str, name: str) -> Any:
        return self._held.get((namespace, name))

    def list(self, namespace: str | None = None) -> Sequence[Any]:
        return [obj for key, obj in self._held.items() if namespace in (None, key[0])]

    def on_change(self, callback: Callable[[Any, Any], None]) -> None:
        self._callbacks.append(callback)
        for known in self._held.values():
            callback(None, known)


class StateOnlyHandle:
    """Give plugins the cluster state and nothing else."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.actions = SchedulerActions()

    def lister(self, resource: Resource[Any]) -> Lister[Any]:
        raise LookupError(f"this test has no {resource.plural}")

    def now(self) -> float:
        raise LookupError("this test has no clock")
