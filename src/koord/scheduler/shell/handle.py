"""What plugins are given: the cluster state, and live lists of whatever other kinds they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from koord.api.meta import Object
from koord.api.resource import Resource
from koord.kube.informer import Informer
from koord.kube.informers import Informers
from koord.scheduler.state.cluster import ClusterState

O = TypeVar("O", bound=Object)  # noqa: E741 - an object


class LiveLister(Generic[O]):
    """An informer's content. `version` is moved by the intake before anyone is told of the change."""

    __slots__ = ("informer", "version")

    def __init__(self, informer: Informer[O]) -> None:
        self.informer = informer
        self.version = 0

    def get(self, namespace: str, name: str) -> O | None:
        return self.informer.get(namespace, name)

    def list(self, namespace: str | None = None) -> Sequence[O]:
        return self.informer.list(namespace)


class LiveHandle:
    """One for the whole program: plugins of all profiles share its lists."""

    def __init__(self, state: ClusterState, informers: Informers) -> None:
        self._state = state
        self._informers = informers
        self._listers: dict[tuple[str, str, type[Object]], LiveLister[Any]] = {}

    @property
    def state(self) -> ClusterState:
        return self._state

    def lister(self, resource: Resource[O]) -> LiveLister[O]:
        key = (resource.api_version, resource.plural, resource.model)
        known = self._listers.get(key)
        if known is None:
            known = self._listers[key] = LiveLister(self._informers.of(resource))
        return known

    def listers(self) -> Sequence[LiveLister[Any]]:
        return tuple(self._listers.values())
