"""The namespace controller deletes the content of terminating namespaces and reports progress in conditions.

Every other namespace has the ServiceAccount `default`, and a ConfigMap with the certificate of the server's CA.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS
from koord.api.kubernetes.core_v1 import Namespace
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.resource import Resource
from koord.api.model import LegacyCondition
from koord.embedded.workloads.controller_context import (
    ControllerContext,
    ServedKind,
    discover,
    error_unless_gone,
    status_patch,
    sync_result,
)
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.informer.cache import ObjectChange, object_key
from koord.kube.transport.api_error import ApiError

NAMESPACE_FINALIZER = "kubernetes"
# What content without a grace period of its own is given before it is looked at again.
_DEFAULT_GRACE_S = 15


class RemainingContent(msgspec.Struct, frozen=True, kw_only=True):
    """The content that is left in a namespace after one deletion pass."""

    counts: dict[str, int] = {}  # plural.group -> how many
    finalizers: dict[str, int] = {}
    failures: tuple[str, ...] = ()
    grace_s: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.counts and not self.failures


def decide_namespace_conditions(
    old: tuple[LegacyCondition, ...], discovery_failure: str, remains: RemainingContent, now: datetime
) -> tuple[LegacyCondition, ...]:
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
    old: LegacyCondition | None, type: str, trouble: tuple[str, str] | None, calm: tuple[str, str], now: datetime
) -> LegacyCondition:
    reason, message = trouble or calm
    status = "True" if trouble else "False"
    since = old.last_transition_time if old is not None and old.status == status else now
    return LegacyCondition(type=type, status=status, reason=reason, message=message, last_transition_time=since)


class NamespaceController:
    name = "namespace"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._namespaces = context.informers.for_resource(NAMESPACES)
        self._pods = context.pods()
        self._queue: WorkQueue[str] = WorkQueue(context.clock, name=self.name)
        self._namespaces.add_event_handler(lambda change: self._queue.add(object_key(change.object)[1]))
        self._pods.add_event_handler(self._pod_changed)

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        """Enqueue a terminating namespace when its last pod is gone, which is what most of them wait for."""
        where = change.object.metadata.namespace
        if change.kind == "deleted":
            namespace = self._namespaces.get("", where)
            if namespace is not None and _is_terminating(namespace) and not self._pods.list(where):
                self._queue.add(where)

    async def run(self) -> None:
        await self._context.run_controller(self.name, self._queue, self.reconcile, (self._namespaces, self._pods))

    async def reconcile(self, name: str) -> ReconcileResult:
        namespace = self._namespaces.get("", name)
        if namespace is None or not _is_terminating(namespace):
            return Done()
        found = await discover(self._client)
        if isinstance(found, ApiError):
            remains, failure = RemainingContent(), found.message
        else:
            remains, failure = await self._delete_content(name, found.served), ""
        conditions = decide_namespace_conditions(namespace.status.conditions, failure, remains, self._context.now())
        status = msgspec.structs.replace(namespace.status, phase="Terminating", conditions=conditions)
        ended = await self._context.update_status(NAMESPACES, namespace, status_patch(namespace.status, status))
        if ended is not None:
            return ended
        if failure or remains.failures:
            return Requeue(failure or remains.failures[0])
        if not remains.is_empty:
            return RequeueAfter((remains.grace_s or _DEFAULT_GRACE_S) / 2 + 1)
        return await self._remove_finalizer(name)

    async def _delete_content(self, namespace: str, served: tuple[ServedKind, ...]) -> RemainingContent:
        """Delete the pods first, and alone: what they use must outlive them."""
        kinds = [kind for kind in served if kind.resource.namespaced and kind.verbs >= {"list", "delete"}]
        pods = [kind for kind in kinds if kind.qualified == "pods"]
        others = [kind for kind in kinds if kind.qualified not in ("pods", "events.events.k8s.io")]
        remains = await self._delete_kinds(namespace, pods)
        return remains if not remains.is_empty else await self._delete_kinds(namespace, others)

    async def _delete_kinds(self, namespace: str, kinds: list[ServedKind]) -> RemainingContent:
        counts: dict[str, int] = {}
        finalizers: Counter[str] = Counter()
        failures: list[str] = []
        grace = 0
        for kind in kinds:
            left = await self._delete_kind(namespace, kind)
            if isinstance(left, ApiError):
                failures.append(left.message)
                continue
            if left:
                counts[f"{kind.resource.plural}.{kind.resource.group}"] = len(left)
            for obj in left:
                finalizers.update(obj.metadata.finalizers)
                grace = max(grace, obj.metadata.deletion_grace_period_seconds or 0)
        return RemainingContent(counts=counts, finalizers=dict(finalizers), failures=tuple(failures), grace_s=grace)

    async def _delete_kind(self, namespace: str, kind: ServedKind) -> tuple[Object, ...] | ApiError:
        listed = await self._client.list(kind.resource, namespace)
        if isinstance(listed, ApiError):
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
                if isinstance(gone, ApiError) and not gone.not_found and not gone.conflict:
                    return gone
        left = await self._client.list(kind.resource, namespace)
        return left if isinstance(left, ApiError) else left.items

    async def _remove_finalizer(self, name: str) -> ReconcileResult:
        live = await self._client.dynamic.get(NAMESPACES, name)
        if isinstance(live, ApiError):
            return Done() if live.not_found else Requeue(live.message)
        kept = [
            finalizer
            for finalizer in (live.get("spec") or {}).get("finalizers") or ()
            if finalizer != NAMESPACE_FINALIZER
        ]
        body = {**live, "spec": {"finalizers": kept}}
        answer = await self._client.dynamic.replace(NAMESPACES, body, name=name, subresource="finalize")
        if isinstance(answer, ApiError) and not answer.not_found:
            return Requeue(answer.message)
        return Done()


def _is_terminating(namespace: Namespace) -> bool:
    return namespace.metadata.deletion_timestamp is not None and NAMESPACE_FINALIZER in namespace.spec.finalizers


SERVICE_ACCOUNT = "default"
ROOT_CA = "kube-root-ca.crt"
_ROOT_CA_DESCRIPTION = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)


class NamespaceObjectController:
    """Keeps one object of one name in every active namespace."""

    name = ""
    object_name = ""
    resource: Resource[Any]

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._queue: WorkQueue[str] = WorkQueue(context.clock, name=self.name)
        self._namespaces = context.informers.for_resource(NAMESPACES)
        self._objects = context.informers.for_resource(self.resource, fields=f"metadata.name={self.object_name}")
        self._namespaces.add_event_handler(self._namespace_changed)
        self._objects.add_event_handler(self._object_changed)

    def _namespace_changed(self, change: ObjectChange[Namespace]) -> None:
        if change.kind != "deleted":
            self._queue.add(change.object.metadata.name)

    def _object_changed(self, change: ObjectChange[Any]) -> None:
        self._queue.add(change.object.metadata.namespace)

    async def run(self) -> None:
        await self._context.run_controller(
            self.name, self._queue, self.reconcile, (self._namespaces, self._objects), workers=1
        )

    async def reconcile(self, namespace: str) -> ReconcileResult:
        found = self._namespaces.get("", namespace)
        if found is None or found.metadata.deletion_timestamp is not None:
            return Done()
        held = self._objects.get(namespace, self.object_name)
        patch = self.change(held) if held is not None else None
        if held is not None and not patch:
            return Done()
        answer: Object | ApiError
        if patch:
            answer = await self._context.client.patch(self.resource, self.object_name, patch, namespace, kind="merge")
        else:
            body = self.content()
            meta = {**body.get("metadata", {}), "name": self.object_name, "namespace": namespace}
            answer = await self._context.client.create(self.resource, {**body, "metadata": meta})
        if isinstance(answer, ApiError) and (answer.already_exists or answer.forbidden):
            return Done()  # the cache is late, or the namespace has begun to end: its event brings the key again
        return sync_result(error_unless_gone(answer))

    def content(self) -> Unstructured:
        return {}

    def change(self, held: Any) -> Unstructured | None:
        """Return the patch that puts the object right, None where it is."""
        return None


class ServiceAccountController(NamespaceObjectController):
    name = "serviceaccount"
    object_name = SERVICE_ACCOUNT
    resource = SERVICE_ACCOUNTS


class RootCaPublisher(NamespaceObjectController):
    """Publishes the certificate by which pods know the API server. It is idle where no server is reached by TLS."""

    name = "root-ca-certificate-publisher"
    object_name = ROOT_CA
    resource = CONFIG_MAPS

    async def run(self) -> None:
        if self._context.root_ca:
            await super().run()

    def content(self) -> Unstructured:
        return {
            "metadata": {"annotations": {"kubernetes.io/description": _ROOT_CA_DESCRIPTION}},
            "data": {"ca.crt": self._context.root_ca},
        }

    def change(self, held: Any) -> Unstructured | None:
        if held.data == {"ca.crt": self._context.root_ca}:
            return None
        return {"data": {**dict.fromkeys(held.data, None), "ca.crt": self._context.root_ca}}
