"""Handle PATCH: which patch types a resource takes, what they make of an object, and server-side apply,
which may create.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.merge.merge_patch import merge_patch
from koord.api.merge.outcome import PatchFailed
from koord.api.merge.strategic import strategic_merge
from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.merge import apply as merge_apply
from koord.embedded.apiserver.merge.conflict import Conflicts
from koord.embedded.apiserver.merge.json_patch import json_patch
from koord.embedded.apiserver.merge.reset import ownable
from koord.embedded.apiserver.refusal import FieldError, Refusal, bad_request, unsupported_media
from koord.embedded.apiserver.rest import ownership
from koord.embedded.apiserver.rest.call import Call, Outcome, Parts
from koord.embedded.apiserver.rest.copying import clone
from koord.embedded.apiserver.rest.door import Door
from koord.embedded.apiserver.rest.options import WriteOptions, write_options
from koord.embedded.apiserver.rest.reading import framed, media_type, parse_json, parse_yaml
from koord.embedded.apiserver.rest.writing import Writer
from koord.kube.transport import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Request

Obj = dict[str, Any]
_CUSTOM_TYPES = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)


def patch_options(request: Request) -> WriteOptions:
    options = write_options(request.query, "PatchOptions")
    errors: list[FieldError] = []
    if media_type(request.content_type) == APPLY_PATCH:
        if not options.field_manager:
            errors.append(refusal.required("fieldManager", "is required for apply patch"))
    elif options.force is not None:
        errors.append(refusal.forbidden_field("force", "may not be specified for non-apply patch"))
    if errors:
        raise refusal.invalid("PatchOptions", "meta.k8s.io", "", errors)
    return options


def patch_type(call: Call) -> str:
    media = media_type(call.request.content_type)
    if call.resource.custom:
        if media not in _CUSTOM_TYPES:
            raise unsupported_media(
                "the body of the request was in an unknown format - accepted media types include: "
                + ", ".join(_CUSTOM_TYPES)
            )
    elif media not in (*_CUSTOM_TYPES, STRATEGIC_PATCH):
        raise Refusal(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
    return media


def patch_body(request: Request, media: str) -> Any:
    """Decode the patch, which is shared when it came in-process."""
    body = request.body
    if not isinstance(body, bytes | bytearray):
        return body
    try:
        return parse_yaml(bytes(body)) if media == APPLY_PATCH else parse_json(bytes(body))
    except ValueError as error:
        if media == APPLY_PATCH:
            raise bad_request(f"error decoding YAML: {error}") from None
        prefix = "" if media == STRATEGIC_PATCH else "error decoding patch: "
        raise bad_request(f"{prefix}{error}") from None


class Patcher:
    def __init__(self, parts: Parts, writer: Writer) -> None:
        self._parts = parts
        self._writer = writer

    async def patch(self, call: Call, door: Door) -> Outcome:
        media = patch_type(call)
        options = patch_options(call.request)
        patch = patch_body(call.request, media)
        if media == APPLY_PATCH:
            return await self._apply(call, door, patch, options)

        def change(old: Obj) -> Obj:
            merged = merge(call, media, old, patch)
            return self._read(call, merged, options, lambda: _shown(media, patch, merged))

        return await self._writer.update(call, door, change, options)

    def _read(self, call: Call, merged: Obj, options: WriteOptions, shown: Callable[[], str]) -> Obj:
        """Read the patched object as its kind; what does not fit is reported as an error of the patch."""
        resource = call.resource
        kind, version = merged.get("kind", resource.kind), merged.get("apiVersion", resource.api_version)
        if (kind, version) != (resource.kind, resource.api_version):
            raise bad_patched(shown(), _other_kind(call, str(kind), str(version), self._parts))
        found = resource.decode(merged)
        if found.error:
            raise bad_patched(shown(), found.error)
        if found.unknown and options.field_validation != "Ignore":
            if options.field_validation == "Strict":
                raise bad_patched(shown(), f"strict decoding error: {', '.join(found.unknown)}")
            call.warnings += [text for text in found.unknown if text not in call.warnings]
        new = framed(found.value, resource.kind, resource.api_version)
        new.setdefault("metadata", {})
        return new

    async def _apply(self, call: Call, door: Door, config: Any, options: WriteOptions) -> Outcome:
        resource, parts = call.resource, self._parts
        if not isinstance(config, dict):
            raise bad_request("error decoding YAML: the configuration is not an object")
        metadata = config.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None

        def applied(live: Obj | None) -> Obj:
            outcome = merge_apply.apply(
                live,
                config,
                manager=options.field_manager,
                force=bool(options.force),
                node=resource.node,
                now=parts.stamp.now(),
                api_version=resource.api_version,
                kind=resource.kind,
                subresource=call.subresource,
                ownable=ownable(resource.group, resource.kind, call.subresource, has_status=resource.has_status),
                convert=ownership.converter(parts.catalog, resource),
            )
            if isinstance(outcome, Conflicts):
                raise _refused(outcome.failed())
            if isinstance(outcome, PatchFailed):
                raise _refused(outcome)
            if not name:
                raise bad_request(
                    f"the name of the object ({call.name} based on URL) was undeterminable: name must be provided"
                )
            found = resource.decode(outcome.obj)
            if found.error:
                raise bad_request(found.error)
            new = framed(found.value, resource.kind, resource.api_version)
            resource.strategy.default(new)
            if live is not None and _only_times_differ(new, live):
                return clone(live)
            return new

        if call.collection(parts).get(call.namespace, call.name) is not None or call.subresource:
            return await self._writer.update(call, door, applied, options, applied=True)
        uid = (config.get("metadata") or {}).get("uid")
        if uid:
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise refusal.conflict(resource.plural, resource.group, call.name, why)
        new = applied(None)
        new["metadata"].pop("resourceVersion", None)
        return await self._writer.create(call, new, options, applied=True, name=call.name)


def _only_times_differ(new: Obj, live: Obj) -> bool:
    """Return whether an apply changed nothing but the times of ownership, which is no change at all."""
    mine, theirs = new["metadata"].get("managedFields", []), live["metadata"].get("managedFields", [])
    if [{**e, "time": ""} for e in mine] != [{**e, "time": ""} for e in theirs]:
        return False
    return {**new, "metadata": {**new["metadata"], "managedFields": theirs}} == live


def merge(call: Call, media: str, old: Obj, patch: Any) -> Obj:
    if media == JSON_PATCH:
        outcome = json_patch(old, patch)
    elif media == MERGE_PATCH:
        outcome = merge_patch(old, patch)
    else:
        outcome = strategic_merge(old, patch, call.resource.node)
    if isinstance(outcome, PatchFailed):
        raise _refused(outcome)
    return outcome


def _refused(failed: PatchFailed) -> Refusal:
    return Refusal(failed.code, failed.reason, failed.message, details=failed.details)


def bad_patched(shown: str, why: str) -> Refusal:
    return refusal.invalid("", "", "", [refusal.invalid_value("patch", shown, why)])


def _shown(media: str, patch: Any, merged: Obj) -> str:
    """Return the value that an error quotes: Go prints a strategic patch as a map, the others as the patched
    document.
    """
    if media == STRATEGIC_PATCH:
        return _go_map(patch)
    return msgspec.json.encode({key: merged[key] for key in sorted(merged)}).decode()


def _go_map(value: Any) -> str:
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{_go_map(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(_go_map(item) for item in value) + "]"
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _other_kind(call: Call, kind: str, api_version: str, parts: Parts) -> str:
    group, _, version = api_version.rpartition("/")
    if parts.catalog.by_kind(group, version, kind) is None:
        return f'no kind "{kind}" is registered for version "{api_version}" in scheme "pkg/runtime/scheme.go:111"'
    mine = call.resource.group.partition(".")[0] or "core"
    return f"converting ({version}.{kind}) to ({mine}.{call.resource.kind}): unknown conversion"
