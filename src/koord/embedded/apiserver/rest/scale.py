"""The scale subresource: autoscaling/v1 Scale as a view of the replicas, status and selector of a
workload, and its GET, PUT and PATCH.
"""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.rest import errand, reading
from koord.embedded.apiserver.rest.answering import json_answer
from koord.embedded.apiserver.rest.call import Call, Outcome, Parts
from koord.embedded.apiserver.rest.door import MAIN
from koord.embedded.apiserver.rest.options import WriteOptions, write_options
from koord.embedded.apiserver.rest.patching import bad_patched, merge, patch_body, patch_options, patch_type
from koord.embedded.apiserver.rest.scaling import rescaled, scale_of
from koord.embedded.apiserver.rest.writing import Writer, served
from koord.kube.transport import APPLY_PATCH, Answer

Obj = dict[str, Any]


class ScaleVerbs:
    def __init__(self, parts: Parts, writer: Writer) -> None:
        self._parts = parts
        self._writer = writer

    async def run(self, call: Call, verb: str) -> Answer:
        if verb == "get":
            return json_answer(200, self._scale(call, self._found(call)))
        if verb == "update":
            options = write_options(call.request.query, "UpdateOptions")
            plain = reading.plain_body(call.request, errand.scale())
            checked = reading.check_kind(errand.scale(), self._parts.catalog, call.request, plain)
            scale = reading.read_object(errand.scale(), call.request, checked, options.field_validation, call.warnings)
            self._check_name(call, scale)
            return await self._write(call, lambda _: scale, options, own_uid=True)
        media = patch_type(call)
        options = patch_options(call.request)
        if media == APPLY_PATCH:
            raise refusal.unsupported_media(
                "the scale subresource takes application/json-patch+json, application/merge-patch+json and "
                "application/strategic-merge-patch+json"
            )
        patch = patch_body(call.request, media)

        def change(now: Obj) -> Obj:
            return self._read(call, merge(call, media, now, patch), options)

        return await self._write(call, change, options, own_uid=False)

    async def _write(self, call: Call, change: Any, options: WriteOptions, *, own_uid: bool) -> Answer:
        paths = call.resource.scale

        def of_workload(old: Obj) -> Obj:
            return rescaled(old, change(scale_of(old, paths)), paths)

        outcome = await self._writer.update(call, MAIN, of_workload, options, own_uid=own_uid)
        return json_answer(outcome.status, self._scale(call, self._obj(call, outcome)))

    def _obj(self, call: Call, outcome: Outcome) -> Obj:
        if outcome.record is not None:
            return served(call.resource, outcome.record)
        assert outcome.plain is not None, "a write leaves a record or an object"
        return outcome.plain

    def _scale(self, call: Call, obj: Obj) -> Obj:
        return scale_of(obj, call.resource.scale)

    def _found(self, call: Call) -> Obj:
        record = call.collection(self._parts).get(call.namespace, call.name)
        if record is None:
            raise refusal.not_found(call.resource.plural, call.resource.group, call.name)
        return served(call.resource, record)

    def _read(self, call: Call, plain: Obj, options: WriteOptions) -> Obj:
        found = errand.scale().decode(plain)
        if found.error:
            raise bad_patched(str(plain), found.error)
        if found.unknown and options.field_validation == "Strict":
            raise refusal.bad_request(f"strict decoding error: {', '.join(found.unknown)}")
        if options.field_validation == "Warn":
            call.warnings += [text for text in found.unknown if text not in call.warnings]
        scale: Obj = found.value
        return scale

    def _check_name(self, call: Call, scale: Obj) -> None:
        name = scale.get("metadata", {}).get("name", "")
        if name != call.name:
            raise refusal.bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({call.name})"
            )
