"""Handle PATCH: the patch types that a resource takes, what they make of an object, and server-side apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.model import Obj
from koord.api.patch.merge_patch import PatchFailed, merge_patch
from koord.api.patch.strategic_merge import strategic_merge
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.api_errors import ApiFieldError, StatusError, bad_request, unsupported_media
from koord.embedded.apiserver.merge import server_side_apply as merge_apply
from koord.embedded.apiserver.merge.json_patch import json_patch
from koord.embedded.apiserver.merge.managed_fields import ownable
from koord.embedded.apiserver.merge.server_side_apply import ApplyConflicts
from koord.embedded.apiserver.rest import create_update, request_body
from koord.embedded.apiserver.rest.create_update import ObjectWriter
from koord.embedded.apiserver.rest.object_metadata import deep_copy
from koord.embedded.apiserver.rest.options import WriteOptions, write_options
from koord.embedded.apiserver.rest.request_context import RequestContext, ServerDeps, WriteResult
from koord.embedded.apiserver.rest.subresource_strategy import SubresourceStrategy
from koord.embedded.apiserver.schema import strict_decoding
from koord.kube.transport.interface import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, ApiRequest
from koord.values import go_format

_CUSTOM_TYPES = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)


def patch_options(request: ApiRequest) -> WriteOptions:
    options = write_options(request.query, "PatchOptions")
    errors: list[ApiFieldError] = []
    if request_body.media_type(request.content_type) == APPLY_PATCH:
        if not options.field_manager:
            errors.append(api_errors.required("fieldManager", "is required for apply patch"))
    elif options.force is not None:
        errors.append(api_errors.forbidden_field("force", "may not be specified for non-apply patch"))
    if errors:
        raise api_errors.invalid("PatchOptions", "meta.k8s.io", "", errors)
    return options


def patch_type(context: RequestContext) -> str:
    media = request_body.media_type(context.request.content_type)
    if context.resource.custom:
        if media not in _CUSTOM_TYPES:
            raise unsupported_media(
                "the body of the request was in an unknown format - accepted media types include: "
                + ", ".join(_CUSTOM_TYPES)
            )
    elif media not in (*_CUSTOM_TYPES, STRATEGIC_PATCH):
        raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
    return media


def decode_patch(request: ApiRequest, media: str) -> Any:
    """Decode the patch, which is shared when it came in-process."""
    body = request.body
    if not isinstance(body, bytes):
        return body
    try:
        return (
            request_body.parse_yaml_with_duplicates(body)[0] if media == APPLY_PATCH else request_body.parse_json(body)
        )
    except ValueError as error:
        if media == APPLY_PATCH:
            raise bad_request(f"error decoding YAML: {error}") from None
        prefix = "" if media == STRATEGIC_PATCH else "error decoding patch: "
        raise bad_request(f"{prefix}{error}") from None


class Patcher:
    def __init__(self, deps: ServerDeps, writer: ObjectWriter) -> None:
        self._deps = deps
        self._writer = writer

    async def patch(self, context: RequestContext, update_strategy: SubresourceStrategy) -> WriteResult:
        media = patch_type(context)
        options = patch_options(context.request)
        patch = decode_patch(context.request, media)
        if media == APPLY_PATCH:
            return await self._apply(context, update_strategy, patch, options)

        complaints = _patch_complaints(context.request.body, media) if options.field_validation != "Ignore" else []

        def change(old: Obj) -> Obj:
            merged = apply_patch(context, media, old, patch)
            return self._read_patched(context, merged, options, complaints, lambda: _quoted_patch(media, patch, merged))

        return await self._writer.update(context, update_strategy, change, options)

    def _read_patched(
        self,
        context: RequestContext,
        merged: Obj,
        options: WriteOptions,
        complaints: list[str],
        shown: Callable[[], str],
    ) -> Obj:
        """Read the patched object as its kind; what does not fit is reported as an error of the patch.

        `complaints` are those about the patch itself.
        """
        resource = context.resource
        kind, version = merged.get("kind", resource.kind), merged.get("apiVersion", resource.api_version)
        if (kind, version) != (resource.kind, resource.api_version):
            raise invalid_patch_result(shown(), _kind_mismatch(context, str(kind), str(version), self._deps))
        found = resource.decode(merged)
        if found.error:
            raise invalid_patch_result(shown(), found.error)
        if (found.unknown or complaints) and options.field_validation != "Ignore":
            complaints = [*complaints, *found.unknown]
            if options.field_validation == "Strict":
                raise invalid_patch_result(shown(), f"strict decoding error: {', '.join(complaints)}")
            context.warnings += [text for text in complaints if text not in context.warnings]
        new = request_body.with_kind_first(found.value, resource.kind, resource.api_version)
        new.setdefault("metadata", {})
        return new

    async def _apply(
        self, context: RequestContext, update_strategy: SubresourceStrategy, config: Any, options: WriteOptions
    ) -> WriteResult:
        resource, deps = context.resource, self._deps
        if not isinstance(config, dict):
            raise bad_request("error decoding YAML: the configuration is not an object")
        body = context.request.body
        duplicates = request_body.parse_yaml_with_duplicates(body)[1] if isinstance(body, bytes) else []
        metadata = config.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None

        def applied(live: Obj | None) -> Obj:
            outcome = merge_apply.apply_config(
                live,
                config,
                manager=options.field_manager,
                force=bool(options.force),
                node=resource.schema_node,
                now=deps.metadata_generator.now(),
                api_version=resource.api_version,
                kind=resource.kind,
                subresource=context.subresource,
                ownable=ownable(resource.group, resource.kind, context.subresource, has_status=resource.has_status),
                convert=create_update.version_converter(deps.catalog, resource),
            )
            if isinstance(outcome, ApplyConflicts):
                raise _patch_error(outcome.to_patch_failed())
            if isinstance(outcome, PatchFailed):
                raise _patch_error(outcome)
            if duplicates and options.field_validation == "Strict":
                why = f"error converting YAML to JSON: {request_body.unmarshal_errors(duplicates)}"
                raise bad_request(f"error strict decoding YAML: {why}")
            if options.field_validation == "Warn":
                context.warnings += [text for text in duplicates if text not in context.warnings]
            if not name:
                raise bad_request(
                    f"the name of the object ({context.name} based on URL) was undeterminable: name must be provided"
                )
            found = resource.decode(outcome.obj)
            if found.error:
                raise bad_request(found.error)
            new = request_body.with_kind_first(found.value, resource.kind, resource.api_version)
            resource.strategy.default(new)
            if live is not None and _only_times_differ(new, live):
                return deep_copy(live)
            return new

        if context.collection(deps).get(context.namespace, context.name) is not None or context.subresource:
            return await self._writer.update(context, update_strategy, applied, options, applied=True)
        uid = (config.get("metadata") or {}).get("uid")
        if uid:
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise api_errors.conflict(resource.plural, resource.group, context.name, why)
        new = applied(None)
        new["metadata"].pop("resourceVersion", None)
        return await self._writer.create(context, new, options, applied=True, name=context.name)


_JSON_PATCH_FIELDS = frozenset(("op", "path", "from", "value"))


def _patch_complaints(body: Any, media: str) -> list[str]:
    """Return what strict decoding says about the patch itself: fields that it has twice or that JSON patch lacks."""
    if not isinstance(body, bytes):
        return []
    value, repeated = strict_decoding.decode_json_strict(body)
    if media != JSON_PATCH:
        return repeated
    unknown = [
        f'unknown field "[{at}].{key}"'
        for at, operation in enumerate(value if isinstance(value, list) else ())
        for key in (operation if isinstance(operation, dict) else ())
        if key not in _JSON_PATCH_FIELDS
    ]
    return [f"json patch {text}" for text in (*unknown, *repeated)]


def _only_times_differ(new: Obj, live: Obj) -> bool:
    """Return whether an apply changed nothing but the times of ownership, which is no change at all."""
    mine, theirs = new["metadata"].get("managedFields", []), live["metadata"].get("managedFields", [])
    if [{**e, "time": ""} for e in mine] != [{**e, "time": ""} for e in theirs]:
        return False
    return {**new, "metadata": {**new["metadata"], "managedFields": theirs}} == live


def apply_patch(context: RequestContext, media: str, old: Obj, patch: Any) -> Obj:
    if media == JSON_PATCH:
        outcome = json_patch(old, patch)
    elif media == MERGE_PATCH:
        outcome = merge_patch(old, patch)
    else:
        outcome = strategic_merge(old, patch, context.resource.schema_node)
    if isinstance(outcome, PatchFailed):
        raise _patch_error(outcome)
    return outcome


def _patch_error(failed: PatchFailed) -> StatusError:
    return StatusError(failed.code, failed.reason, failed.message, details=failed.details)


def invalid_patch_result(shown: str, why: str) -> StatusError:
    return api_errors.invalid("", "", "", [api_errors.invalid_value("patch", shown, why)])


def _quoted_patch(media: str, patch: Any, merged: Obj) -> str:
    """Return the value that an error quotes: a strategic patch as a Go map, for others the patched document."""
    if media == STRATEGIC_PATCH:
        return go_format.format_v(patch)
    return msgspec.json.encode({key: merged[key] for key in sorted(merged)}).decode()


def _kind_mismatch(context: RequestContext, kind: str, api_version: str, deps: ServerDeps) -> str:
    group, _, version = api_version.rpartition("/")
    if deps.catalog.by_kind(group, version, kind) is None:
        return f'no kind "{kind}" is registered for version "{api_version}" in scheme "pkg/runtime/scheme.go:111"'
    mine = context.resource.group.partition(".")[0] or "core"
    return f"converting ({version}.{kind}) to ({mine}.{context.resource.kind}): unknown conversion"
