"""This module keeps the catalog in step with the CRDs in the store.

It accepts names, serves versions and finalizes deleted CRDs.

It reacts inside the write that changed a CRD, so that a client can use the new kind as soon as it has its
answer, in real time and in virtual time alike.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from koord.api.kubernetes.meta import DeleteOptions
from koord.api.model import Obj
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.crd import definition_strategy
from koord.embedded.apiserver.crd.definition_strategy import CRD_STORAGE_KEY
from koord.embedded.apiserver.crd.resources import served_resources
from koord.embedded.apiserver.rest import create_update
from koord.embedded.apiserver.rest.delete import DeleteFacts, decide_delete
from koord.embedded.apiserver.rest.options import write_options
from koord.embedded.apiserver.rest.request_context import RequestContext, ServerDeps
from koord.embedded.apiserver.store.collection import StoreEvent, StoreRecord
from koord.kube.transport.interface import ApiRequest


class _ServedDefinition(msgspec.Struct):
    """A _ServedDefinition records what a CRD said when its resources were built."""

    spec: Obj
    names: Obj
    terminating: bool
    resources: list[ServedResource]


class DefinitionController:
    """The DefinitionController reconciles CRDs with the catalog and with the collections of their objects."""

    def __init__(self, deps: ServerDeps) -> None:
        self._deps = deps
        self._served: dict[
            str, _ServedDefinition
        ] = {}  # by the definition's name, which is also the key of its collection
        self._queue: deque[str] = deque()
        self._reconciling = False

    def start(self) -> None:
        """Serve the CRDs that exist, and follow the store from then on."""
        self._deps.store.add_listener(CRD_STORAGE_KEY, self._definition_changed)
        self._reconcile_all(record.name for record in self._definitions())

    def _definitions(self) -> list[StoreRecord]:
        return list(self._deps.store.collection(CRD_STORAGE_KEY).scan())

    def _definition_changed(self, event: StoreEvent) -> None:
        self._reconcile_all((event.record.name,))

    def _reconcile_all(self, names: Any) -> None:
        """Reconcile the named CRDs and all CRDs that this affects in turn."""
        self._queue.extend(names)
        if self._reconciling:
            return
        self._reconciling = True
        try:
            while self._queue:
                self._reconcile(self._queue.popleft())
        finally:
            self._reconciling = False

    def _reconcile(self, name: str) -> None:
        record = self._deps.store.collection(CRD_STORAGE_KEY).get("", name)
        if record is None:
            self._stop_serving(name)
            return
        obj = record.plain()
        if "deletionTimestamp" in obj["metadata"]:
            self._finalize(name, obj)
            return
        self._accept_names(name, obj)
        found = self._deps.store.collection(CRD_STORAGE_KEY).get("", name)
        if found is not None and definition_strategy.is_established(found.plain()):
            self._serve(name, found.plain())

    # Names -------------------------------------------------------------------------------------------------------

    def _accept_names(self, name: str, obj: Obj) -> None:
        group = obj["spec"]["group"]
        others = [r.plain() for r in self._definitions() if r.name != name and r.plain()["spec"]["group"] == group]
        verdict = definition_strategy.decide_names(obj, definition_strategy.names_in_use(others))
        status = dict(obj.get("status") or {})
        conditions = list(status.get("conditions") or ())
        for one in verdict.conditions:
            conditions = definition_strategy.with_condition(conditions, one, self._deps.metadata_generator.now())
        new = {**status, "conditions": conditions, "acceptedNames": verdict.names}
        if new != status:
            self._write_status(name, obj, new)
            self._requeue_conflicting(group, name)

    def _requeue_conflicting(self, group: str, but: str) -> None:
        """Requeue the CRDs of the group whose names were not accepted, since names may have become free."""
        for record in self._definitions():
            obj = record.plain()
            accepted = definition_strategy.has_condition(obj, definition_strategy.NAMES_ACCEPTED)
            if record.name != but and obj["spec"]["group"] == group and not accepted:
                self._queue.append(record.name)

    def _write_status(self, name: str, obj: Obj, status: Obj) -> None:
        deps = self._deps
        resource = deps.catalog.served_versions(CRD_STORAGE_KEY)[0]
        request = ApiRequest(method="PUT", path="", user_agent="kube-apiserver")
        context = RequestContext(resource, "", name, "status", request, False, [])
        new = {**obj, "metadata": dict(obj["metadata"]), "status": status}
        create_update.update_managed_fields(context, deps, obj, new, write_options({}, "UpdateOptions"))
        deps.store.put(CRD_STORAGE_KEY, "", name, new, new["metadata"].get("labels") or {})

    # Serving -----------------------------------------------------------------------------------------------------

    def _serve(self, name: str, obj: Obj) -> None:
        spec, names = obj["spec"], obj["status"]["acceptedNames"]
        dying = "deletionTimestamp" in obj["metadata"]
        before = self._served.get(name)
        if before is not None and (before.spec, before.names, before.terminating) == (spec, names, dying):
            return
        deps = self._deps
        collection = deps.store.collection(name)
        resources = [
            resource
            for resource in served_resources(obj, (record.plain() for record in collection.scan()))
            if not self._is_builtin(resource)
        ]
        if before is None:
            deps.store.add_listener(name, self._object_changed)
        for old in before.resources if before is not None else ():
            deps.catalog.remove(old.group, old.version, old.plural)
        for resource in resources:
            deps.catalog.add(resource)
        if resources and (
            before is None or _selectable_field_names(before.resources) != _selectable_field_names(resources)
        ):
            fields = resources[0].strategy.selectable_fields
            for record in collection.scan():
                record.fields = {key: value(record.plain()) for key, value in fields.items()}
        self._served[name] = _ServedDefinition(spec, names, dying, resources)

    def _is_builtin(self, resource: ServedResource) -> bool:
        """Return whether the path belongs to a built-in resource, which a CRD never replaces."""
        found = self._deps.catalog.find(resource.group, resource.version, resource.plural)
        return found is not None and not found.custom

    def _stop_serving(self, name: str) -> None:
        gone = self._served.pop(name, None)
        if gone is not None:
            for resource in gone.resources:
                self._deps.catalog.remove(resource.group, resource.version, resource.plural)
            self._deps.store.remove_listener(name, self._object_changed)
            self._deps.store.drop_collection(name)
        self._requeue_conflicting(name.partition(".")[2], name)

    # Ending ------------------------------------------------------------------------------------------------------

    def _finalize(self, name: str, obj: Obj) -> None:
        """Delete all objects of the CRD; when none is left, remove the finalizer or the CRD."""
        deps = self._deps
        if definition_strategy.CLEANUP_FINALIZER not in obj["metadata"].get("finalizers", ()):
            return
        if definition_strategy.is_established(obj):
            self._serve(name, obj)  # as one that takes no new objects
        now = deps.metadata_generator.now()
        for record in list(deps.store.collection(name).scan()):
            self._delete_object(name, record, now)
        if len(deps.store.collection(name)):
            status = definition_strategy.deletion_in_progress_status(obj, now)
            if status != obj["status"]:
                self._write_status(name, obj, status)
            return
        released = definition_strategy.without_cleanup_finalizer(obj)
        if released["metadata"].get("finalizers"):
            deps.store.put(CRD_STORAGE_KEY, "", name, released, released["metadata"].get("labels") or {})
        else:
            deps.store.delete(CRD_STORAGE_KEY, "", name)

    def _delete_object(self, name: str, record: StoreRecord, now: str) -> None:
        store, obj = self._deps.store, record.plain()
        if "deletionTimestamp" in obj["metadata"]:
            return  # it waits for its finalizers
        plan = decide_delete(obj, DeleteOptions(), DeleteFacts(now, graceful=False))
        if plan.marked is not None and plan.marked != obj:
            store.put(name, record.namespace, record.name, plan.marked, record.labels, record.fields)
        if plan.remove:
            store.delete(name, record.namespace, record.name)

    def _object_changed(self, event: StoreEvent) -> None:
        """Finalize a terminating CRD when its last object is deleted."""
        if event.type != "DELETED" or self._reconciling:
            return
        for name, served in self._served.items():
            if served.terminating and not len(self._deps.store.collection(name)):
                self._reconcile_all((name,))
                return


def _selectable_field_names(resources: list[ServedResource]) -> set[str]:
    return set(resources[0].strategy.selectable_fields) if resources else set()
