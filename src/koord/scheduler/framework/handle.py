"""Define the handle that plugins are made with."""

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
    """Name a kind of which only one object is watched."""

    only_namespace: str
    only_name: str


def single(resource: Resource[O], namespace: str, name: str) -> Single[O]:
    """Return the resource narrowed to one object."""
    fields = {field: getattr(resource, field) for field in resource.__struct_fields__}
    return Single(**fields, only_namespace=namespace, only_name=name)


class Lister(Protocol[O_co]):
    """List the objects of one kind as the watch has shown them so far."""

    @property
    def version(self) -> int:
        """Return a number that changes with every change of the list, so that derived values can be cached."""

    def get(self, namespace: str, name: str) -> O_co | None:
        """Return the object or None; `namespace` is "" for cluster-scoped kinds."""

    def list(self, namespace: str | None = None) -> Sequence[O_co]: ...

    def on_change(self, callback: Callable[[O_co | None, O_co | None], None]) -> None:
        """Call back with every change as (before, after), None for absence, before any queued pod is told of it.

        Objects that are there already are delivered at once as new, so that derived state can always be rebuilt.
        """


class Handle(Protocol):
    @property
    def state(self) -> ClusterState: ...

    @property
    def desk(self) -> Desk:
        """Return the actions that a plugin may take outside an attempt."""

    def lister(self, resource: Resource[O]) -> Lister[O]:
        """Return the lister of a kind, or of one object (`single_object`).

        Asking for it while plugins are made is what makes the scheduler watch the kind.
        """

    def now(self) -> float:
        """Return the time in seconds since 1970."""
