"""Give plugins the cluster state, live listers of the other kinds they ask for, the time, and the scheduler's actions.

"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from koord.api.meta import Object
from koord.api.resource import Resource
from koord.kube.informer import Informer
from koord.kube.informers import Informers
from koord.scheduler.framework.desk import Desk
from koord.scheduler.framework.handle import Single
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.wire import PODS
from koord.telemetry.clock import Clock

O = TypeVar("O", bound=Object)  # noqa: E741 - an object


class LiveLister(Generic[O]):
    """List the content of an informer; the event handlers call `notify` with every change before the queue is told."""

    __slots__ = ("_callbacks", "informer", "version")

    def __init__(self, informer: Informer[O]) -> None:
        self.informer = informer
        self.version = 0
        self._callbacks: list[Callable[[O | None, O | None], None]] = []

    def get(self, namespace: str, name: str) -> O | None:
        return self.informer.get(namespace, name)

    def list(self, namespace: str | None = None) -> Sequence[O]:
        return self.informer.list(namespace)

    def on_change(self, callback: Callable[[O | None, O | None], None]) -> None:
        self._callbacks.append(callback)
        for known in self.informer.list():
            callback(None, known)

    def changed(self, old: O | None, new: O | None) -> None:
        self.version += 1
        for callback in self._callbacks:
            callback(old, new)


class LiveHandle:
    """Implement the framework handle of the running scheduler: one for all profiles, which share its listers."""

    def __init__(self, state: ClusterState, informers: Informers, clock: Clock) -> None:
        self._state = state
        self.desk = Desk()
        self._informers = informers
        self._clock = clock
        informers.of(PODS, transform=state.shapes.interned)  # whoever asks first settles how pods are kept
        self._listers: dict[tuple[str, str, type[Object], str, str], LiveLister[Any]] = {}

    @property
    def state(self) -> ClusterState:
        return self._state

    def lister(self, resource: Resource[O]) -> LiveLister[O]:
        namespace, name = (resource.only_namespace, resource.only_name) if isinstance(resource, Single) else ("", "")
        key = (resource.api_version, resource.plural, resource.model, namespace, name)
        known = self._listers.get(key)
        if known is None:
            fields = f"metadata.name={name}" if name else ""
            informer = self._informers.of(resource, namespace or None, fields=fields)
            known = self._listers[key] = LiveLister(informer)
        return known

    def now(self) -> float:
        return self._clock.time()

    def listers(self) -> Sequence[LiveLister[Any]]:
        return tuple(self._listers.values())
