"""Enqueue the owner of a pod when the pod changes, and possible adopters when it has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from koord.api.core import Pod
from koord.api.meta import Object, ObjectMeta
from koord.embedded.workloads.context import Context
from koord.embedded.workloads.expectation import Expectations
from koord.embedded.workloads.ownership import (
    controlled_by,
    controller_of,
    index_by_controller,
    index_by_selector,
    selecting,
)
from koord.kube.cache import Change, Key, key_of
from koord.kube.informer import Informer
from koord.values.selector import Selector

O = TypeVar("O", bound=Object)  # noqa: E741  an object


class PodWatch(Generic[O]):
    """Connects an informer of owners with the one of pods. `wake(key)` enqueues an owner."""

    def __init__(
        self,
        context: Context,
        owners: Informer[O],
        expectations: Expectations,
        select: Callable[[O], Selector],
        wake: Callable[[Key], None],
    ) -> None:
        self._owners = owners
        self._expectations = expectations
        self._select = select
        self._wake = wake
        self.pods: Informer[Pod] = context.pods()
        index_by_controller(self.pods)
        index_by_selector(owners, select)
        owners.on(self._owner_changed)
        self.pods.on(self._pod_changed)

    def _owner_changed(self, change: Change[Any]) -> None:
        if change.kind == "deleted":
            self._expectations.forget(change.object.metadata.uid)
        self._wake(key_of(change.object))

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod, old = change.object, change.old
        meta = pod.metadata
        owner = controlled_by(meta, self._owners.resource)
        if old is not None:
            before = controlled_by(old.metadata, self._owners.resource)
            if before is not None and (owner is None or before.uid != owner.uid):
                self._expectations.saw_gone(before.uid, meta.uid)
                self._wake((meta.namespace, before.name))
        if owner is not None:
            if change.kind == "deleted" or meta.deletion_timestamp is not None:
                self._expectations.saw_gone(owner.uid, meta.uid)
            else:
                self._expectations.saw(owner.uid, meta.uid)
            self._wake((meta.namespace, owner.name))
        elif change.kind != "deleted" and controller_of(meta) is None and _is_news(old, meta):
            for candidate in selecting(self._owners, meta, self._select):
                self._wake(key_of(candidate))


def _is_news(old: Pod | None, meta: ObjectMeta) -> bool:
    """Return whether a change matters to possible adopters: only labels and the loss of an owner do."""
    return old is None or old.metadata.labels != meta.labels or bool(old.metadata.owner_references)
