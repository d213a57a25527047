"""The NamespaceLifecycle plugin: objects are created only in existing, active namespaces, and three
namespaces cannot be deleted.
"""

from __future__ import annotations

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.rest.admission_chain import Attributes
from koord.embedded.apiserver.store import Record, Store

IMMORTAL = frozenset(("default", "kube-system", "kube-public"))


class NamespaceLifecycle:
    def __init__(self, store: Store) -> None:
        self._namespaces = store.collection("namespaces")
        self._active: dict[str, Record] = {}  # records that were seen to be active, by name

    async def admit(self, attributes: Attributes) -> None:
        if attributes.operation == "DELETE":
            if attributes.resource.storage == "namespaces" and attributes.name in IMMORTAL:
                why = "this namespace may not be deleted"
                raise refusal.forbidden("namespaces", "", attributes.name, why)
            return
        if attributes.operation == "CREATE" and attributes.namespace and attributes.resource.namespaced:
            self._check(attributes)

    def _check(self, attributes: Attributes) -> None:
        name = attributes.namespace
        record = self._namespaces.get("", name)
        if record is None:
            self._active.pop(name, None)
            raise refusal.not_found("namespaces", "", name)
        if self._active.get(name) is record:
            return
        found = record.plain()
        if "deletionTimestamp" not in found["metadata"] and found.get("status", {}).get("phase") != "Terminating":
            self._active[name] = record
            return
        resource = attributes.resource
        why = f"unable to create new content in namespace {name} because it is being terminated"
        refused = refusal.forbidden(resource.plural, resource.group, attributes.name, why)
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {name} is being terminated",
            "field": "metadata.namespace",
        }
        refused.details = {**(refused.details or {}), "causes": [cause]}
        raise refused
