"""What every namespace has: the ServiceAccount `default`, and a ConfigMap with the certificate of the server's CA."""

from __future__ import annotations

from typing import Any

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS
from koord.api.kubernetes.core_v1 import Namespace
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.embedded.workloads.controller_context import ControllerContext, error_unless_gone, sync_result
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult
from koord.kube.controller.workqueue import WorkQueue
from koord.kube.informer.cache import ObjectChange
from koord.kube.transport.api_error import ApiError

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
