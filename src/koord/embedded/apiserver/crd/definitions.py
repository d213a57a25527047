"""This module keeps the catalog in step with the CRDs in the store.

It accepts names, serves versions and finalizes deleted CRDs.

It reacts inside the write that changed a CRD, so that a client can use the new kind as soon as it has its
answer, in real time and in virtual time alike.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.crd import ending, naming
from koord.embedded.apiserver.crd.definition import STORAGE
from koord.embedded.apiserver.crd.served import served_resources
from koord.embedded.apiserver.rest import ownership
from koord.embedded.apiserver.rest.call import Call, Parts
from koord.embedded.apiserver.rest.deletion import Facts, decide_deletion
from koord.embedded.apiserver.rest.options import DeleteOptions, write_options
from koord.embedded.apiserver.store import Event, Record
from koord.kube.transport import Request

Obj = dict[str, Any]


class _Served(msgspec.Struct):
    """A _ServedDefinition records what a CRD said when its resources were built."""

    spec: Obj
    names: Obj
    ending: bool
    resources: list[ServedResource]


class Definitions:
    """The DefinitionController reconciles CRDs with the catalog and with the collections of their objects."""
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._served: dict[str, _Served] = {}  # by the definition's name, which is also the key of its collection
        self._waiting: deque[str] = deque()
        self._busy = False

    def start(self) -> None:
        """Serve the CRDs that exist, and follow the store from then on."""
        self._parts.store.listen(STORAGE, self._definition_changed)
        self._settle(record.name for record in self._all())

    def _all(self) -> list[Record]:
        return list(self._parts.store.collection(STORAGE).scan())

    def _definition_changed(self, event: Event) -> None:
        self._settle((event.record.name,))

    def _settle(self, names: Any) -> None:
        """Reconcile the named CRDs and all CRDs that this affects in turn."""
        self._waiting.extend(names)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._reconcile(self._waiting.popleft())
        finally:
            self._busy = False

    def _reconcile(self, name: str) -> None:
        record = self._parts.store.collection(STORAGE).get("", name)
        if record is None:
            self._withdraw(name)
            return
        obj = record.plain()
        if "deletionTimestamp" in obj["metadata"]:
            self._end(name, obj)
            return
        self._accept(name, obj)
        found = self._parts.store.collection(STORAGE).get("", name)
        if found is not None and naming.is_established(found.plain()):
            self._serve(name, found.plain())

    # Names -------------------------------------------------------------------------------------------------------

    def _accept(self, name: str, obj: Obj) -> None:
        group = obj["spec"]["group"]
        others = [r.plain() for r in self._all() if r.name != name and r.plain()["spec"]["group"] == group]
        verdict = naming.decide_names(obj, naming.taken(others))
        status = dict(obj.get("status") or {})
        conditions = list(status.get("conditions") or ())
        for one in verdict.conditions:
            conditions = naming.with_condition(conditions, one, self._parts.stamp.now())
        new = {**status, "conditions": conditions, "acceptedNames": verdict.names}
        if new != status:
            self._write_status(name, obj, new)
            self._wake_refused(group, name)

    def _wake_refused(self, group: str, but: str) -> None:
        """Requeue the CRDs of the group whose names were not accepted, since names may have become free."""
        for record in self._all():
            obj = record.plain()
            if record.name != but and obj["spec"]["group"] == group and not _content(obj):
                self._waiting.append(record.name)

    def _write_status(self, name: str, obj: Obj, status: Obj) -> None:
        parts = self._parts
        resource = parts.catalog.sharing(STORAGE)[0]
        request = Request(method="PUT", path="", user_agent="kube-apiserver")
        call = Call(resource, "", name, "status", request, False, [])
        new = {**obj, "metadata": dict(obj["metadata"]), "status": status}
        ownership.track(call, parts, obj, new, write_options({}, "UpdateOptions"))
        parts.store.put(STORAGE, "", name, new, new["metadata"].get("labels") or {})

    # Serving -----------------------------------------------------------------------------------------------------

    def _serve(self, name: str, obj: Obj) -> None:
        spec, names = obj["spec"], obj["status"]["acceptedNames"]
        dying = "deletionTimestamp" in obj["metadata"]
        before = self._served.get(name)
        if before is not None and (before.spec, before.names, before.ending) == (spec, names, dying):
            return
        parts = self._parts
        collection = parts.store.collection(name)
        resources = [
            resource
            for resource in served_resources(obj, (record.plain() for record in collection.scan()))
            if not self._is_builtin(resource)
        ]
        if before is None:
            parts.store.listen(name, self._object_changed)
        for old in before.resources if before is not None else ():
            parts.catalog.remove(old.group, old.version, old.plural)
        for resource in resources:
            parts.catalog.add(resource)
        if resources and (before is None or _selectable(before.resources) != _selectable(resources)):
            fields = resources[0].strategy.fields
            for record in collection.scan():
                record.fields = {key: value(record.plain()) for key, value in fields.items()}
        self._served[name] = _Served(spec, names, dying, resources)

    def _is_builtin(self, resource: ServedResource) -> bool:
        """Return whether the path belongs to a built-in resource, which a CRD never replaces."""
        found = self._parts.catalog.find(resource.group, resource.version, resource.plural)
        return found is not None and not found.custom

    def _withdraw(self, name: str) -> None:
        gone = self._served.pop(name, None)
        if gone is not None:
            for resource in gone.resources:
                self._parts.catalog.remove(resource.group, resource.version, resource.plural)
            self._parts.store.unlisten(name, self._object_changed)
            self._parts.store.drop(name)
        self._wake_refused(name.partition(".")[2], name)

    # Ending ------------------------------------------------------------------------------------------------------

    def _end(self, name: str, obj: Obj) -> None:
        """Delete all objects of the CRD; when none is left, remove the finalizer or the CRD."""
        parts = self._parts
        if ending.FINALIZER not in obj["metadata"].get("finalizers", ()):
            return
        if naming.is_established(obj):
            self._serve(name, obj)  # as one that takes no new objects
        now = parts.stamp.now()
        for record in list(parts.store.collection(name).scan()):
            self._delete(name, record, now)
        if len(parts.store.collection(name)):
            status = ending.in_progress(obj, now)
            if status != obj["status"]:
                self._write_status(name, obj, status)
            return
        released = ending.released(obj)
        if released["metadata"].get("finalizers"):
            parts.store.put(STORAGE, "", name, released, released["metadata"].get("labels") or {})
        else:
            parts.store.delete(STORAGE, "", name)

    def _delete(self, name: str, record: Record, now: str) -> None:
        store, obj = self._parts.store, record.plain()
        if "deletionTimestamp" in obj["metadata"]:
            return  # it waits for its finalizers
        plan = decide_deletion(obj, DeleteOptions(), Facts(now, graceful=False))
        if plan.mark is not None and plan.mark != obj:
            store.put(name, record.namespace, record.name, plan.mark, record.labels, record.fields)
        if plan.remove:
            store.delete(name, record.namespace, record.name)

    def _object_changed(self, event: Event) -> None:
        """Finalize a terminating CRD when its last object is deleted."""
        if event.type != "DELETED" or self._busy:
            return
        for name, served in self._served.items():
            if served.ending and not len(self._parts.store.collection(name)):
                self._settle((name,))
                return


def _content(obj: Obj) -> bool:
    return naming.has_condition(obj, naming.NAMES_ACCEPTED)


def _selectable(resources: list[ServedResource]) -> set[str]:
    return set(resources[0].strategy.fields) if resources else set()
