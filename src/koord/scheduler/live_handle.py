"""Give plugins the cluster state, live listers of other kinds, the time, and the scheduler's actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import Informer
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS, Pod, PodTransform, chain_transforms
from koord.scheduler.framework.attempt import UNSCHEDULABLE
from koord.scheduler.framework.cluster_event import ObjectEvent
from koord.scheduler.framework.handle import SchedulerActions, SingleObjectResource
from koord.scheduler.framework.verdict import StatusWrite
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from koord.scheduler.status_reporter import PodStatusUpdate
from koord.scheduler.waiting_pods import WaitingPods
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

    def notify(self, old: O | None, new: O | None) -> None:
        self.version += 1
        for callback in self._callbacks:
            callback(old, new)


class LiveHandle:
    """Implement the framework handle of the running scheduler: one for all profiles, which share its listers."""

    def __init__(
        self, state: ClusterState, informers: InformerFactory, clock: Clock, pod_transform: PodTransform | None = None
    ) -> None:
        """Request the informer of pods, which applies `pod_transform` to each before anyone sees it."""
        self._state = state
        self.actions = SchedulerActions()
        self._informers = informers
        self._clock = clock
        # Whoever asks first settles how pods are kept.
        intern = state.shapes.intern
        self.pods: Informer[Pod] = informers.for_resource(
            PODS, transform=intern if pod_transform is None else chain_transforms((pod_transform, intern))
        )
        self._listers: dict[tuple[str, str, type[Object], str, str], LiveLister[Any]] = {}

    @property
    def state(self) -> ClusterState:
        return self._state

    def lister(self, resource: Resource[O]) -> LiveLister[O]:
        namespace, name = (
            (resource.only_namespace, resource.only_name) if isinstance(resource, SingleObjectResource) else ("", "")
        )
        key = (resource.api_version, resource.plural, resource.model, namespace, name)
        known = self._listers.get(key)
        if known is None:
            fields = f"metadata.name={name}" if name else ""
            informer = self._informers.for_resource(resource, namespace or None, fields=fields)
            known = self._listers[key] = LiveLister(informer)
        return known

    def now(self) -> float:
        return self._clock.time()

    def listers(self) -> Sequence[LiveLister[Any]]:
        return tuple(self._listers.values())


class LiveSchedulerActions:
    """Carry out plugins' actions on the waiting pods, the queue and the pods' status."""

    def __init__(
        self,
        waiting_pods: WaitingPods,
        queue: SchedulingQueue,
        clock: Clock,
        wake: Callable[[], None],
        report: Callable[[PodStatusUpdate], None],
        write_status: Callable[[StatusWrite], None],
    ) -> None:
        self._waiting_pods = waiting_pods
        self._queue = queue
        self._clock = clock
        self._wake = wake
        self._report = report
        self._write_status = write_status

    def waiting_pods(self) -> Iterable[tuple[PodInfo, str]]:
        return [(waiting_pod.pod, waiting_pod.node_name) for waiting_pod in self._waiting_pods]

    def allow(self, uid: str, plugin: str) -> bool:
        return self._waiting_pods.allow(uid, plugin)

    def reject(self, uid: str, plugin: str, message: str, *, quiet: bool) -> bool:
        return self._waiting_pods.reject(uid, plugin, message, quiet=quiet)

    def report_unschedulable(self, key: str, uid: str, message: str) -> None:
        namespace, _, name = key.partition("/")
        self._report(PodStatusUpdate(namespace=namespace, name=name, uid=uid, reason=UNSCHEDULABLE, message=message))

    def nominate(self, key: str, uid: str, node: str) -> None:
        namespace, _, name = key.partition("/")
        self._queue.nominate(uid, node)
        self._report(PodStatusUpdate(namespace=namespace, name=name, uid=uid, nominate=node))

    def activate(self, uids: Iterable[str]) -> None:
        if self._queue.activate(uids, self._clock.monotonic()):
            self._wake()

    def publish_event(self, object_event: ObjectEvent) -> None:
        if self._queue.on_event(object_event, self._clock.monotonic()):
            self._wake()

    def write_status(self, write: StatusWrite) -> None:
        self._write_status(write)
