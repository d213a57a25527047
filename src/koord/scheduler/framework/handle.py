"""Define the handle that plugins are made with: the cluster state, listers of other kinds, the time, and actions.

`SchedulerActions` has no backend where no scheduler runs (explanations, what-ifs, tests): then no pod waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ObjectEvent
from koord.scheduler.framework.verdict import StatusWrite


class SchedulerActionsBackend(Protocol):
    """Carry out the actions in the running scheduler."""

    def waiting_pods(self) -> Iterable[tuple[PodInfo, str]]: ...

    def allow(self, uid: str, plugin: str) -> bool: ...

    def reject(self, uid: str, plugin: str, message: str, *, quiet: bool) -> bool: ...

    def report_unschedulable(self, key: str, uid: str, message: str) -> None: ...

    def nominate(self, key: str, uid: str, node: str) -> None: ...

    def activate(self, uids: Iterable[str]) -> None: ...

    def publish_event(self, object_event: ObjectEvent) -> None: ...

    def write_status(self, write: StatusWrite) -> None: ...


class SchedulerActions:
    """Let a plugin act on pods outside an attempt; the running scheduler sets `backend` before anything runs."""

    __slots__ = ("backend",)

    def __init__(self) -> None:
        self.backend: SchedulerActionsBackend | None = None

    def waiting_pods(self) -> Iterator[tuple[PodInfo, str]]:
        """Iterate over the pods that wait at Permit, with nodes, as of now: allowing one changes nothing here."""
        return iter(()) if self.backend is None else iter(tuple(self.backend.waiting_pods()))

    def allow(self, uid: str, plugin: str) -> bool:
        """Allow a pod on behalf of the plugin that made it wait; return False when no such pod waits."""
        return self.backend is not None and self.backend.allow(uid, plugin)

    def reject(self, uid: str, plugin: str, message: str, *, quiet: bool = False) -> bool:
        """Reject a waiting pod; return False when no such pod waits.

        `quiet` is for resources that no pod was rejected for, because none was tried while they were held: their
        release wakes nobody.
        """
        return self.backend is not None and self.backend.reject(uid, plugin, message, quiet=quiet)

    def report_unschedulable(self, key: str, uid: str, message: str) -> None:
        """Write into the condition of a pod (namespace/name) that was not tried itself why it is unschedulable."""
        if self.backend is not None:
            self.backend.report_unschedulable(key, uid, message)

    def nominate(self, key: str, uid: str, node: str) -> None:
        """Nominate a queued pod to a node that is being cleared, or remove its nomination with an empty name."""
        if self.backend is not None:
            self.backend.nominate(key, uid, node)

    def activate(self, uids: Iterable[str]) -> None:
        """Move queued pods to the active queue if PreEnqueue lets them pass; other pods are left alone."""
        if self.backend is not None:
            self.backend.activate(uids)

    def publish_event(self, object_event: ObjectEvent) -> None:
        """Publish an event of the plugin's own making: pods rejected by plugins that listen to it wake."""
        if self.backend is not None:
            self.backend.publish_event(object_event)

    def write_status(self, write: StatusWrite) -> None:
        """Write the status of an object; nobody waits for it."""
        if self.backend is not None:
            self.backend.write_status(write)


O = TypeVar("O", bound=Object)  # noqa: E741 - the letter stands for an object everywhere in this program
O_co = TypeVar("O_co", bound=Object, covariant=True)


class SingleObjectResource(Resource[O_co], frozen=True, kw_only=True, eq=False):
    """Name a kind of which only one object is watched."""

    only_namespace: str
    only_name: str


def single_object(resource: Resource[O], namespace: str, name: str) -> SingleObjectResource[O]:
    """Return the resource narrowed to one object."""
    fields = {field: getattr(resource, field) for field in resource.__struct_fields__}
    return SingleObjectResource(**fields, only_namespace=namespace, only_name=name)


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
    def actions(self) -> SchedulerActions:
        """Return the actions that a plugin may take outside an attempt."""

    def lister(self, resource: Resource[O]) -> Lister[O]:
        """Return the lister of a kind, or of one object (`single_object`).

        Asking for it while plugins are made is what makes the scheduler watch the kind.
        """

    def now(self) -> float:
        """Return the time in seconds since 1970."""
