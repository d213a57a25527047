"""Dispatch a request to the verb that it asks for and build its response: the table between paths and the
modules that do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.refusal import Refusal, bad_request
from koord.embedded.apiserver.rest import answering, errand, reading
from koord.embedded.apiserver.rest.answering import ListBody, body_of, json_answer
from koord.embedded.apiserver.rest.call import Call, Outcome, Parts
from koord.embedded.apiserver.rest.copying import clone
from koord.embedded.apiserver.rest.deleting import Deleter, Deletion
from koord.embedded.apiserver.rest.disruption import PodHandover
from koord.embedded.apiserver.rest.door import MAIN, Door, door_of
from koord.embedded.apiserver.rest.listing import list_page
from koord.embedded.apiserver.rest.negotiation import Form
from koord.embedded.apiserver.rest.options import (
    WriteOptions,
    delete_options,
    list_options,
    revision_of,
    too_large,
    write_options,
)
from koord.embedded.apiserver.rest.patching import Patcher
from koord.embedded.apiserver.rest.printing import Tables
from koord.embedded.apiserver.rest.review import answer_review
from koord.embedded.apiserver.rest.scale import ScaleVerbs
from koord.embedded.apiserver.rest.writing import Writer, served
from koord.embedded.apiserver.store import Record
from koord.kube.transport import Answer, PlainBody

Obj = dict[str, Any]
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_REVIEW_GROUPS = ("authentication.k8s.io", "authorization.k8s.io")
_STREAMS = frozenset(("exec", "attach", "portforward"))


class Verbs:
    def __init__(self, parts: Parts, tables: Callable[[Call, Form], Tables], tokens: Mapping[str, str]) -> None:
        self._parts = parts
        self._tables = tables
        self._tokens = tokens
        self._writer = Writer(parts)
        self._deleter = Deleter(parts, self._writer)
        self._patcher = Patcher(parts, self._writer)
        self._pods = PodHandover(parts, self._writer, self._deleter)
        self._scale = ScaleVerbs(parts, self._writer)

    async def run(self, call: Call, form: Form) -> Answer:
        method = call.request.method
        verb = _VERBS.get(method)
        if verb is None:
            raise refusal.method_not_allowed()
        if call.subresource:
            return await self._subresource(call, verb, form)
        if not call.name:
            return await self._collection(call, verb, form)
        if verb == "create" or verb not in call.resource.verbs:
            raise refusal.method_not_allowed()
        if verb == "get":
            return self._object(call, form, 200, self._found(call))
        if verb == "update":
            return self._written(call, form, await self._replace(call, MAIN))
        if verb == "patch":
            return self._written(call, form, await self._patcher.patch(call, MAIN))
        return await self._delete(call, form)

    async def _collection(self, call: Call, verb: str, form: Form) -> Answer:
        resource = call.resource
        if verb == "create" and "create" in resource.verbs:
            if resource.group in _REVIEW_GROUPS:
                return self._review(call)
            if resource.plural == "bindings":
                return await self._bind(call)
            return self._written(call, form, await self._create(call))
        if verb == "get" and "list" in resource.verbs:
            page = list_page(call, self._parts, list_options(call.request.query, watch=False))
            return self._list(call, form, page.records, page.metadata)
        if verb == "delete" and "deletecollection" in resource.verbs:
            options = delete_options(call.request.query, self._optional_body(call))
            listing = list_options(call.request.query, watch=False)
            records, metadata = await self._deleter.delete_all(call, options, listing)
            return self._list(call, form, records, metadata)
        raise refusal.method_not_allowed()

    async def _subresource(self, call: Call, verb: str, form: Form) -> Answer:
        name, resource = call.subresource, call.resource
        if verb not in resource.subresources[name].verbs:
            raise refusal.method_not_allowed()
        if name == "scale":
            return await self._scale.run(call, verb)
        door = door_of(resource, name)
        if door is not None:
            if verb == "get":
                return self._object(call, form, 200, self._found(call))
            if verb == "update":
                return self._written(call, form, await self._replace(call, door))
            return self._written(call, form, await self._patcher.patch(call, door))
        if resource.storage == "pods" and name == "binding":
            return await self._bind(call)
        if resource.storage == "pods" and name == "eviction":
            options = write_options(call.request.query, "CreateOptions")
            await self._pods.evict(call, self._errand(call, options, errand.evictions()), options)
            return json_answer(201, answering.CREATED_STATUS)
        return self._not_served(call)

    # Reads -------------------------------------------------------------------------------------------------------

    def _found(self, call: Call) -> Record:
        version = call.request.query.get("resourceVersion", "")
        if version:
            asked = revision_of(version)
            if asked > self._parts.store.revision:
                raise too_large(asked, self._parts.store.revision)
        record = call.collection(self._parts).get(call.namespace, call.name)
        if record is None:
            raise refusal.not_found(call.resource.plural, call.resource.group, call.name)
        return record

    def _object(self, call: Call, form: Form, status: int, record: Record) -> Answer:
        if form.shape:
            return json_answer(status, self._tables(call, form).of_object(served(call.resource, record)))
        return Answer(status=status, body=body_of(call.resource, record))

    def _list(self, call: Call, form: Form, records: list[Record], metadata: Obj) -> Answer:
        if form.shape:
            objects = [served(call.resource, record) for record in records]
            return json_answer(200, self._tables(call, form).of_objects(objects, metadata))
        return Answer(status=200, body=ListBody(call.resource, metadata, records))

    # Writes ------------------------------------------------------------------------------------------------------

    def _written(self, call: Call, form: Form, outcome: Outcome) -> Answer:
        if outcome.record is not None:
            return self._object(call, form, outcome.status, outcome.record)
        assert outcome.plain is not None, "a write leaves a record or an object"
        if form.shape:
            return json_answer(outcome.status, self._tables(call, form).of_object(outcome.plain))
        return json_answer(outcome.status, outcome.plain)

    async def _create(self, call: Call) -> Outcome:
        options = write_options(call.request.query, "CreateOptions")
        obj = self._body(call, options.field_validation)
        return await self._writer.create(call, obj, options)

    def _body(self, call: Call, validation: Any) -> Obj:
        resource, request = call.resource, call.request
        plain = reading.plain_body(request, resource)
        checked = reading.check_kind(resource, self._parts.catalog, request, plain)
        return reading.read_object(resource, request, checked, validation, call.warnings)

    async def _replace(self, call: Call, door: Door) -> Outcome:
        options = write_options(call.request.query, "UpdateOptions")
        obj = self._body(call, options.field_validation)
        obj.setdefault("metadata", {})
        missing = call.collection(self._parts).get(call.namespace, call.name) is None
        if missing and door is MAIN and call.resource.strategy.creates_on_update:
            if not obj["metadata"].get("name"):
                raise bad_request(
                    f"the name of the object ({call.name} based on URL) was undeterminable: name must be provided"
                )
            return await self._writer.create(call, obj, options, name=call.name)
        return await self._writer.update(call, door, lambda _: clone(obj), options, own_uid=True)

    async def _delete(self, call: Call, form: Form) -> Answer:
        options = delete_options(call.request.query, self._optional_body(call))
        done = await self._deleter.delete(call, options)
        status = 202 if not done.removed and options.orphan_dependents is False else 200
        if done.removed and not call.resource.returns_deleted:
            return json_answer(200, answering.success(call.resource, call.name, done.uid))
        return self._deleted(call, form, status, done)

    def _deleted(self, call: Call, form: Form, status: int, done: Deletion) -> Answer:
        if done.record is not None:
            return self._object(call, form, status, done.record)
        plain = done.plain or {}
        if call.resource.conversion is not None:
            plain = call.resource.conversion.from_storage(plain)
        return json_answer(status, plain)

    def _optional_body(self, call: Call) -> Any:
        body = call.request.body
        if body is None or body == b"":
            return None
        return reading.plain_options(call.request)

    # Questions and errands ---------------------------------------------------------------------------------------

    def _errand(self, call: Call, options: WriteOptions, kinds: Sequence[ServedResource]) -> Obj:
        """Read the body as one of the versions of a kind that is not stored."""
        request = call.request
        plain = reading.plain_body(request, kinds[0])
        said = plain.get("apiVersion") if isinstance(plain, dict) else None
        kind = next((kind for kind in kinds if kind.api_version == said), kinds[0])
        checked = reading.check_kind(kind, self._parts.catalog, request, plain)
        return reading.read_object(kind, request, checked, options.field_validation, call.warnings)

    def _review(self, call: Call) -> Answer:
        options = write_options(call.request.query, "CreateOptions")
        obj = self._body(call, options.field_validation)
        obj.setdefault("metadata", {})
        now = self._parts.stamp.now()
        user = call.request.user or "admin"
        return json_answer(201, answer_review(call.resource.kind, obj, user, self._tokens, now))

    async def _bind(self, call: Call) -> Answer:
        options = write_options(call.request.query, "CreateOptions")
        binding = self._errand(call, options, errand.bindings())
        pods = self._parts.catalog.find("", "v1", "pods")
        assert pods is not None, "pods are built in"
        name = call.name or binding.get("metadata", {}).get("name", "")
        pod = msgspec.structs.replace(call, resource=pods, name=name)
        await self._pods.bind(pod, binding, options)
        return Answer(status=201, body=PlainBody(answering.CREATED_STATUS))

    def _not_served(self, call: Call) -> Answer:
        """Answer subresources that need a kubelet, a network or a signing key, none of which this server has."""
        record = self._found(call)
        if call.resource.storage == "pods":
            assigned = record.plain().get("spec", {}).get("nodeName")
            if call.subresource in _STREAMS and not assigned:
                raise bad_request(f"pod {call.name} does not have a host assigned")
            if call.subresource == "log" and not assigned:
                return Answer(status=204, body=answering.TextBody(b""), content_type="text/plain")
        raise Refusal(
            501,
            "NotImplemented",
            f"the embedded API server has no {call.subresource} for {call.resource.qualified}",
            details={"name": call.name, "kind": call.resource.plural},
        )
