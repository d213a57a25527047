"""Hold a cluster of one moment as plain objects, read live or from a file, for a what-if to decide on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import PODS, Pod, PodTransform
from koord.scheduler.framework.handle import SchedulerActions, SingleObjectResource

O = TypeVar("O", bound=Object)  # noqa: E741 - an object

PlainObject = dict[str, Any]
KindKey = tuple[str, str]  # apiVersion and kind


class SnapshotLister(Generic[O]):
    """List objects that change only where a what-if says so."""

    def __init__(self, objects: Iterable[O]) -> None:
        self.version = 0
        self._objects = {(o.metadata.namespace, o.metadata.name): o for o in objects}
        self._callbacks: list[Callable[[O | None, O | None], None]] = []

    def get(self, namespace: str, name: str) -> O | None:
        return self._objects.get((namespace, name))

    def list(self, namespace: str | None = None) -> Sequence[O]:
        return [o for (space, _), o in self._objects.items() if namespace is None or space == namespace]

    def on_change(self, callback: Callable[[O | None, O | None], None]) -> None:
        """Deliver what is there at once, as any lister does."""
        self._callbacks.append(callback)
        for known in self._objects.values():
            callback(None, known)

    def put(self, new: O) -> None:
        key = (new.metadata.namespace, new.metadata.name)
        old, self._objects[key] = self._objects.get(key), new
        self._notify(old, new)

    def remove(self, namespace: str, name: str) -> None:
        old = self._objects.pop((namespace, name), None)
        if old is not None:
            self._notify(old, None)

    def _notify(self, old: O | None, new: O | None) -> None:
        self.version += 1
        for callback in self._callbacks:
            callback(old, new)


class ApiSnapshot:
    """Hold objects by apiVersion and kind, as the API shows them. Pods are read as `pod_transform` makes them."""

    def __init__(self, objects: Iterable[PlainObject], pod_transform: PodTransform | None = None) -> None:
        self._pod_transform = pod_transform
        self._objects: dict[KindKey, list[PlainObject]] = {}
        for each in objects:
            self._objects.setdefault((each.get("apiVersion", ""), each.get("kind", "")), []).append(each)

    def typed(self, resource: Resource[O]) -> list[O]:
        found = self._objects.get((resource.api_version, resource.kind), ())
        made: list[Any] = [convert(each, resource.model) for each in found]
        if resource.model is Pod:
            made = [self.transform_pod(each) for each in made]
        return made

    def transform_pod(self, pod: Pod) -> Pod:
        """Return the pod as the scheduler's informer would deliver it."""
        return pod if self._pod_transform is None else self._pod_transform(pod)

    def with_pod_transform(self, pod_transform: PodTransform | None) -> ApiSnapshot:
        """Return the same objects with pods as another transform makes them."""
        return ApiSnapshot(self.objects(), pod_transform)

    def with_objects(self, others: Iterable[PlainObject]) -> ApiSnapshot:
        """Return a snapshot with these objects too; one of the same kind and name is replaced."""
        objects = {_identity(each): each for each in (*self.objects(), *others)}
        return ApiSnapshot(objects.values(), self._pod_transform)

    def objects(self) -> list[PlainObject]:
        return [each for group in self._objects.values() for each in group]

    def state(self) -> ClusterState:
        """Build a cluster state of the nodes and the pods that are on them."""
        state = ClusterState()
        for node in self.typed(NODES):
            state.set_node(node)
        for pod in self.typed(PODS):
            state.set_pod(pod)
        return state


def _identity(each: PlainObject) -> tuple[str, str, str, str]:
    meta = each.get("metadata") or {}
    return each.get("apiVersion", ""), each.get("kind", ""), meta.get("namespace", ""), meta.get("name", "")


class SnapshotHandle:
    """Give plugins a snapshot to read; `requested_kinds` records what they wanted to list."""

    def __init__(self, snapshot: ApiSnapshot, state: ClusterState, now_s: float) -> None:
        self._snapshot = snapshot
        self._now_s = now_s
        self.state = state
        self.actions = SchedulerActions()
        self.requested_kinds: dict[KindKey, Resource[Any]] = {}
        self._listers: dict[tuple[KindKey, type[Object], str, str], SnapshotLister[Any]] = {}

    def lister(self, resource: Resource[O]) -> SnapshotLister[O]:
        key = (resource.api_version, resource.kind)
        self.requested_kinds[key] = resource
        only = (resource.only_namespace, resource.only_name) if isinstance(resource, SingleObjectResource) else ("", "")
        known = self._listers.get((key, resource.model, *only))
        if known is None:
            objects = self._snapshot.typed(resource)
            if only[1]:
                objects = [o for o in objects if (o.metadata.namespace, o.metadata.name) == only]
            known = self._listers[key, resource.model, *only] = SnapshotLister(objects)
        return known

    def now(self) -> float:
        return self._now_s


def objects_of_documents(documents: Iterable[Any]) -> list[PlainObject] | str:
    """Return the objects of some documents, with Lists opened; or an error that names what is no object."""
    found: list[PlainObject] = []
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        if not isinstance(document, Mapping) or "kind" not in document:
            return f"document {number} is no Kubernetes object: it has no kind"
        if isinstance(document.get("items"), list):
            kind = str(document["kind"]).removesuffix("List")
            version = document.get("apiVersion", "v1")
            found += [{"apiVersion": version, "kind": kind, **item} for item in document["items"]]
        else:
            found.append(dict(document))
    return found
