"""The namespace controller deletes the content of terminating namespaces, reports progress in conditions,
and removes the finalizer at the end.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import msgspec

from koord.api.builtin import NAMESPACES
from koord.api.core import Namespace, Pod
from koord.api.meta import Object
from koord.api.part import PlainCondition
from koord.embedded.workloads.context import Context
from koord.embedded.workloads.discovery import Kind, discover
from koord.embedded.workloads.status import difference, write_status
from koord.kube.cache import Change, key_of
from koord.kube.controller import Done, Outcome, Requeue, Retry
from koord.kube.refused import Refused
from koord.kube.workqueue import WorkQueue

FINALIZER = "kubernetes"
# What content without a grace period of its own is given before it is looked at again.
_ESTIMATE_S = 15


class Remains(msgspec.Struct, frozen=True, kw_only=True):
    """The content that is left in a namespace after one deletion pass."""

    counts: dict[str, int] = {}  # plural.group -> how many
    finalizers: dict[str, int] = {}
    failures: tuple[str, ...] = ()
    grace_s: int = 0

    @property
    def empty(self) -> bool:
        return not self.counts and not self.failures


def decide_conditions(
    old: tuple[PlainCondition, ...], discovery_failure: str, remains: Remains, now: datetime
) -> tuple[PlainCondition, ...]:
    counts = ", ".join(f"{what} has {count} resource instances" for what, count in sorted(remains.counts.items()))
    held = ", ".join(f"{who} in {count} resource instances" for who, count in sorted(remains.finalizers.items()))
    failed = "; ".join(remains.failures)
    rows = (
        (
            "NamespaceDeletionDiscoveryFailure",
            ("DiscoveryFailed", f"Discovery failed for some groups: {discovery_failure}")
            if discovery_failure
            else None,
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        (
            "NamespaceDeletionContentFailure",
            (
                "ContentDeletionFailed",
                f"Failed to delete all resource types, {len(remains.failures)} remaining: {failed}",
            )
            if failed
            else None,
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        (
            "NamespaceContentRemaining",
            ("SomeResourcesRemain", f"Some resources are remaining: {counts}") if counts else None,
            ("ContentRemoved", "All content successfully removed"),
        ),
        (
            "NamespaceFinalizersRemaining",
            ("SomeFinalizersRemain", f"Some content in the namespace has finalizers remaining: {held}")
            if held
            else None,
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    )
    known = {condition.type: condition for condition in old}
    made = [_condition(known.get(type), type, trouble, calm, now) for type, trouble, calm in rows]
    own = {row[0] for row in rows}
    return (*(condition for condition in old if condition.type not in own), *made)


def _condition(
    old: PlainCondition | None, type: str, trouble: tuple[str, str] | None, calm: tuple[str, str], now: datetime
) -> PlainCondition:
    reason, message = trouble or calm
    status = "True" if trouble else "False"
    since = old.last_transition_time if old is not None and old.status == status else now
    return PlainCondition(type=type, status=status, reason=reason, message=message, last_transition_time=since)


class Namespaces:
    name = "namespace"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._client = context.client
        self._namespaces = context.informers.of(NAMESPACES)
        self._pods = context.pods()
        self._queue: WorkQueue[str] = WorkQueue(context.clock, name=self.name)
        self._namespaces.on(lambda change: self._queue.add(key_of(change.object)[1]))
        self._pods.on(self._pod_changed)

    def _pod_changed(self, change: Change[Pod]) -> None:
        """Enqueue a terminating namespace when its last pod is gone, which is what most of them wait for."""
        where = change.object.metadata.namespace
        if change.kind == "deleted":
            namespace = self._namespaces.get("", where)
            if namespace is not None and _terminating(namespace) and not self._pods.list(where):
                self._queue.add(where)

    async def run(self) -> None:
        await self._context.work(self.name, self._queue, self.reconcile, (self._namespaces, self._pods))

    async def reconcile(self, name: str) -> Outcome:
        namespace = self._namespaces.get("", name)
        if namespace is None or not _terminating(namespace):
            return Done()
        found = await discover(self._client)
        if isinstance(found, Refused):
            remains, failure = Remains(), found.message
        else:
            remains, failure = await self._empty(name, found.served), ""
        conditions = decide_conditions(namespace.status.conditions, failure, remains, self._context.now())
        status = msgspec.structs.replace(namespace.status, phase="Terminating", conditions=conditions)
        told = await write_status(self._client, NAMESPACES, namespace, difference(namespace.status, status))
        if isinstance(told, Refused):
            return Done() if told.not_found else Requeue(told.message)
        if failure or remains.failures:
            return Requeue(failure or remains.failures[0])
        if not remains.empty:
            return Retry((remains.grace_s or _ESTIMATE_S) / 2 + 1)
        return await self._finish(name)

    async def _empty(self, namespace: str, served: tuple[Kind, ...]) -> Remains:
        """Delete the pods first, and alone: what they use must outlive them."""
        kinds = [kind for kind in served if kind.resource.namespaced and kind.verbs >= {"list", "delete"}]
        pods = [kind for kind in kinds if kind.qualified == "pods"]
        others = [kind for kind in kinds if kind.qualified not in ("pods", "events.events.k8s.io")]
        remains = await self._sweep(namespace, pods)
        return remains if not remains.empty else await self._sweep(namespace, others)

    async def _sweep(self, namespace: str, kinds: list[Kind]) -> Remains:
        counts: dict[str, int] = {}
        finalizers: Counter[str] = Counter()
        failures: list[str] = []
        grace = 0
        for kind in kinds:
            left = await self._sweep_kind(namespace, kind)
            if isinstance(left, Refused):
                failures.append(left.message)
                continue
            if left:
                counts[f"{kind.resource.plural}.{kind.resource.group}"] = len(left)
            for obj in left:
                finalizers.update(obj.metadata.finalizers)
                grace = max(grace, obj.metadata.deletion_grace_period_seconds or 0)
        return Remains(counts=counts, finalizers=dict(finalizers), failures=tuple(failures), grace_s=grace)

    async def _sweep_kind(self, namespace: str, kind: Kind) -> tuple[Object, ...] | Refused:
        listed = await self._client.list(kind.resource, namespace)
        if isinstance(listed, Refused):
            return () if listed.not_found or listed.code == 405 else listed
        if not listed.items:
            return ()
        if "deletecollection" in kind.verbs:
            refused = await self._client.delete_collection(kind.resource, namespace, propagation="Background")
            if refused is not None:
                return refused
        else:
            for obj in listed.items:
                meta = obj.metadata
                gone = await self._client.delete(
                    kind.resource, meta.name, namespace, uid=meta.uid, propagation="Background"
                )
                if isinstance(gone, Refused) and not gone.not_found and not gone.conflict:
                    return gone
        left = await self._client.list(kind.resource, namespace)
        return left if isinstance(left, Refused) else left.items

    async def _finish(self, name: str) -> Outcome:
        live = await self._client.plain.get(NAMESPACES, name)
        if isinstance(live, Refused):
            return Done() if live.not_found else Requeue(live.message)
        kept = [finalizer for finalizer in (live.get("spec") or {}).get("finalizers") or () if finalizer != FINALIZER]
        body = {**live, "spec": {"finalizers": kept}}
        answer = await self._client.plain.replace(NAMESPACES, body, name=name, subresource="finalize")
        if isinstance(answer, Refused) and not answer.not_found:
            return Requeue(answer.message)
        return Done()


def _terminating(namespace: Namespace) -> bool:
    return namespace.metadata.deletion_timestamp is not None and FINALIZER in namespace.spec.finalizers
