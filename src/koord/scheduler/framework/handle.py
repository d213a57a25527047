"""What a plugin is given when it is made: the cluster state, a way to read other kinds, and the time of day."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from koord.api.meta import Object
from koord.api.resource import Resource
from koord.scheduler.framework.desk import Desk
from koord.scheduler.state.cluster import ClusterState

O = TypeVar("O", bound=Object)  # noqa: E741 - the letter stands for an object everywhere in this program
O_co = TypeVar("O_co", bound=Object, covariant=True)


class Single(Resource[O_co], frozen=True, kw_only=True, eq=False):
    """A kind of which only one object is to be watched."""

    only_namespace: str
    only_name: str


def single(resource: Resource[O], namespace: str, name: str) -> Single[O]:
    fields = {field: getattr(resource, field) for field in resource.__struct_fields__}
    return Single(**fields, only_namespace=namespace, only_name=name)


class Lister(Protocol[O_co]):
    """The objects of one kind as the watch has shown them so far."""

    @property
    def version(self) -> int:
        """Moves with every change, so that what was derived from the kind can be kept until it does."""

    def get(self, namespace: str, name: str) -> O_co | None:
        """`namespace` is "" for cluster-scoped kinds."""

    def list(self, namespace: str | None = None) -> Sequence[O_co]: ...

    def on_change(self, callback: Callable[[O_co | None, O_co | None], None]) -> None:
        """Be told of every change as (before, after), None standing for absence, before any waiting pod is told of it.

        What is there already is told at once as new, so that what is derived can always be made anew.
        """


class Handle(Protocol):
    @property
    def state(self) -> ClusterState: ...

    @property
    def desk(self) -> Desk:
        """For what a plugin wants done outside an attempt."""

    def lister(self, resource: Resource[O]) -> Lister[O]:
        """Asking for a kind while plugins are made is what makes the program watch it, or one object (`single`)."""

    def now(self) -> float:
        """Seconds since 1970."""
