"""Read the body of a request as plain JSON and then as one kind, and report bad ones in kube-apiserver's words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import yaml

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.api_errors import StatusError, bad_request, unsupported_media
from koord.embedded.apiserver.catalog import ResourceCatalog, ServedResource
from koord.embedded.apiserver.protobuf import messages as protobuf
from koord.embedded.apiserver.protobuf.messages import MalformedProtobuf
from koord.embedded.apiserver.rest.options import FieldValidation
from koord.embedded.apiserver.schema import strict_decoding
from koord.embedded.apiserver.schema.builtin_decoding import DecodeResult
from koord.kube.transport.interface import APPLY_PATCH, JSON, ApiRequest
from koord.values.json_text import MalformedText, json_limit_exceeded
from koord.values.yaml_text import JsonYamlLoader, YamlLimits, yaml_limit_exceeded

_YAML_TYPES = ("application/yaml", "text/yaml", "application/x-yaml")
MAX_DEPTH = 256  # whoever walks an object must reach its leaves without overflowing the stack
LARGE_YAML_BYTES = 32 << 10
_EXCEEDED_DEPTH = "invalid character '{' exceeded max depth"
_YAML_LIMITS = YamlLimits(max_depth=MAX_DEPTH, max_aliased_nodes=10_000, max_aliased_chars=1 << 20)
_EXCERPT_BYTES = 30  # bytes of a bad body that a refusal quotes
_KIND_STRUCT = 'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower() if content_type else JSON


class ParsedYaml(bytes):
    """The bytes of a YAML body that was parsed ahead, with what came of it."""

    parsed: tuple[Any, list[str]] | ValueError


class _BodyLoader(JsonYamlLoader):
    """Notes the keys that a map has twice, in the words of Kubernetes' YAML library."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self.duplicates: list[str] = []

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    self.duplicates.append(f'line {key.start_mark.line + 1}: key "{key.value}" already set in map')
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse_yaml(raw: bytes) -> tuple[Any, list[str]] | ValueError:
    """Return the value and its duplicate keys. Programs send JSON as YAML, which a JSON parser reads much faster."""
    if raw.lstrip()[:1] == b"{" and json_limit_exceeded(raw, max_depth=MAX_DEPTH) is None:
        try:
            value, repeated = strict_decoding.decode_json_strict(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            repeated = ["it is not JSON"]
        if not repeated:
            return value, []
    exceeded = yaml_limit_exceeded(raw, _YAML_LIMITS)
    if exceeded is not None:
        return ValueError(f"error converting YAML to JSON: {_in_go_words(exceeded)}")
    loader = _BodyLoader(raw)
    try:
        return loader.get_single_data(), loader.duplicates
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        return ValueError(f"error converting YAML to JSON: yaml: {where}{getattr(error, 'problem', None) or error}")
    finally:
        loader.dispose()


def _in_go_words(malformed: MalformedText) -> str:
    reason = malformed.reason
    if reason.startswith("is nested too deeply"):
        return f"yaml: exceeded max depth of {MAX_DEPTH}"
    if reason.startswith("holds an alias inside"):
        return f"yaml: anchor '{reason.rpartition('*')[2]}' value contains itself"
    if reason.startswith("holds aliases"):
        return "yaml: document contains excessive aliasing"
    problem = reason.removeprefix("is not YAML: ")
    return f"yaml: line {malformed.line}: {problem.rpartition(', line ')[0]}" if malformed.line else f"yaml: {problem}"


async def parsed_ahead(request: ApiRequest) -> ApiRequest:
    """Parse a large YAML body on another thread: it takes seconds, in which others must be served."""
    body = request.body
    if not isinstance(body, bytes) or media_type(request.content_type) not in (*_YAML_TYPES, APPLY_PATCH):
        return request
    parsed = ParsedYaml(body)
    parsed.parsed = await asyncio.to_thread(_parse_yaml, body)
    return msgspec.structs.replace(request, body=parsed)


def parse_yaml_with_duplicates(raw: bytes) -> tuple[Any, list[str]]:
    """Parse YAML; raise ValueError with a sentence when it is not YAML, or too much of it."""
    parsed = raw.parsed if isinstance(raw, ParsedYaml) else _parse_yaml(raw)
    if isinstance(parsed, ValueError):
        raise parsed
    return parsed


def parse_json(raw: bytes) -> Any:
    """Parse JSON; raise ValueError in the words of Go's decoder when it is not JSON, or nested too deeply."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueError(_go_json_error(raw)) from None
    except RecursionError:
        raise ValueError(_EXCEEDED_DEPTH) from None
    if json_limit_exceeded(raw, max_depth=MAX_DEPTH) is not None:
        raise ValueError(_EXCEEDED_DEPTH)
    return value


def _go_json_error(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        at = error.pos
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at >= len(text):
            return "unexpected end of JSON input"
        where = {
            "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
            "Expecting value": "looking for beginning of value",
            "Expecting ',' delimiter": "after object key:value pair",
            "Expecting ':' delimiter": "after object key",
            "Extra data": "after top-level value",
        }.get(error.msg, "in string literal")
        return f"invalid character {text[at]!r} {where}"
    return "invalid UTF-8 in string literal"


def _body_excerpt(raw: bytes) -> str:
    if not raw:
        return "<empty>"
    shown = raw[:_EXCERPT_BYTES]
    text = shown.decode("utf-8", "replace") if raw[:1] == b"{" else shown.hex()
    return text + " ..." if len(raw) > _EXCERPT_BYTES else text


def decode_body(request: ApiRequest, resource: ServedResource) -> Any:
    """Return the body as dicts and lists: shared when it came in-process, private when it came as bytes."""
    body = request.body
    if body is None:
        body = b""
    if not isinstance(body, bytes | bytearray | memoryview):
        return body
    raw = body if isinstance(body, bytes) else bytes(body)
    media = media_type(request.content_type)
    try:
        if media == JSON:
            return parse_json(raw)
        if media in _YAML_TYPES:
            return parse_yaml_with_duplicates(raw)[0]
    except ValueError as error:
        raise bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): couldn't get version/kind; "
            f"json parse error: {error} ({_body_excerpt(raw)})"
        ) from None
    if media != protobuf.MEDIA_TYPE or resource.custom:
        raise _unknown_format(protobuf=not resource.custom)
    return _protobuf_body(raw, resource)


def _unknown_format(*, protobuf: bool) -> StatusError:
    types = "application/json, application/yaml" + (", application/vnd.kubernetes.protobuf" if protobuf else "")
    return unsupported_media(
        f"the body of the request was in an unknown format - accepted media types include: {types}"
    )


def _protobuf_body(raw: bytes, resource: ServedResource) -> Obj:
    try:
        envelope = protobuf.open_envelope(raw, resource.api_version, resource.kind)
    except MalformedProtobuf as error:
        raise bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): {error} ({_body_excerpt(raw)})"
        ) from None
    try:
        return protobuf.decode_envelope(envelope)
    except MalformedProtobuf as error:
        raise bad_request(
            f'{envelope.kind} in version "{envelope.version}" cannot be handled as a {resource.kind}: {error}'
        ) from None


def decode_delete_options(request: ApiRequest) -> Any:
    """Return the body of a DELETE, which is DeleteOptions and not the object."""
    if not isinstance(request.body, bytes):
        return request.body
    media = media_type(request.content_type)
    if media == protobuf.MEDIA_TYPE:
        try:
            return protobuf.decode_envelope(protobuf.open_envelope(request.body, "v1", "DeleteOptions"))
        except MalformedProtobuf as error:
            raise bad_request(str(error)) from None
    if media != JSON and media not in _YAML_TYPES:
        raise _unknown_format(protobuf=True)
    try:
        return parse_json(request.body) if media == JSON else parse_yaml_with_duplicates(request.body)[0]
    except ValueError as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None


def _shown_body(request: ApiRequest, plain: Any) -> bytes:
    return request.body if isinstance(request.body, bytes) else msgspec.json.encode(plain)


def check_body_kind(resource: ServedResource, catalog: ResourceCatalog, request: ApiRequest, plain: Any) -> Obj:
    """Return the body as an object that names this kind or no kind; raise otherwise."""
    if plain is None:
        plain = {}
    if not isinstance(plain, dict):
        sort = {list: "array", str: "string", bool: "bool"}.get(type(plain), "number")
        raw = _shown_body(request, plain)
        raise bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): couldn't get version/kind; "
            f"json parse error: json: cannot unmarshal {sort} into Go value of type {_KIND_STRUCT} "
            f"({_body_excerpt(raw)})"
        )
    kind, version = plain.get("kind") or "", plain.get("apiVersion") or ""
    if kind == resource.kind and version == resource.api_version:
        return plain
    if not isinstance(kind, str) or not isinstance(version, str):
        raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind})")
    if resource.custom:
        _check_custom(resource, request, plain, kind, version)
    elif (kind and kind != resource.kind) or (version and version != resource.api_version):
        _refuse_builtin(resource, catalog, request, plain, kind, version)
    return plain


def _check_custom(resource: ServedResource, request: ApiRequest, plain: Obj, kind: str, version: str) -> None:
    if not kind:
        raw = _shown_body(request, plain)
        raise bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): Object 'Kind' is missing in "
            f"'{raw.decode('utf-8', 'replace')}' ({_body_excerpt(raw)})"
        )
    if version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})"
        )
    name = str((plain.get("metadata") or {}).get("name", ""))
    error = api_errors.invalid_value("kind", kind, f"must be {resource.kind}")
    raise api_errors.invalid(kind, resource.group, name, [error])


def _refuse_builtin(
    resource: ServedResource, catalog: ResourceCatalog, request: ApiRequest, plain: Obj, kind: str, version: str
) -> None:
    kind, version = kind or resource.kind, version or resource.api_version
    if version.count("/") > 1:
        raise bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): unexpected GroupVersion string: "
            f"{version} ({_body_excerpt(_shown_body(request, plain))})"
        )
    group, _, number = version.rpartition("/")
    if catalog.by_kind(group, number, kind) is not None:
        mine = resource.group.partition(".")[0] or "core"
        why = f"converting ({number}.{kind}) to ({mine}.{resource.kind}): unknown conversion"
    else:
        why = f'no kind "{kind}" is registered for version "{version}" in scheme "pkg/runtime/scheme.go:111"'
    raise bad_request(f'{kind} in version "{number}" cannot be handled as a {resource.kind}: {why}')


def read_as_kind(
    resource: ServedResource, request: ApiRequest, plain: Obj, validation: FieldValidation, warnings: list[str]
) -> Obj:
    """Return a private object of the kind without unknown fields; complaints become warnings or an error."""
    found = resource.decode(plain)
    if found.error:
        raise bad_request(strict_decoding.cannot_be_handled_message(resource.kind, resource.version, found.error))
    if validation != "Ignore":
        complaints = _strict_complaints(resource, request, plain, found)
        if complaints and validation == "Strict":
            if complaints[0].startswith("line "):
                complaints = [unmarshal_errors(complaints)]
            raise bad_request(strict_decoding.strict_error_message(resource.kind, resource.version, complaints))
        warnings += complaints
    return with_kind_first(found.value, resource.kind, resource.api_version)


def _strict_complaints(resource: ServedResource, request: ApiRequest, plain: Obj, found: DecodeResult) -> list[str]:
    """Return unknown fields and duplicate keys; only bytes can have the latter.

    Encoding the decoded object again gives the same length unless something was dropped (or spelled
    unusually), so that the slow search runs on few bodies.
    """
    raw = request.body
    media = media_type(request.content_type)
    if isinstance(raw, bytes) and media in _YAML_TYPES:
        # A map with a key twice ends the strict reading of YAML, so that unknown fields are not looked for any more.
        return parse_yaml_with_duplicates(raw)[1] or list(found.unknown)
    if not isinstance(raw, bytes) or media != JSON:
        return list(found.unknown)
    if not found.unknown and len(msgspec.json.encode(plain)) == len(raw.rstrip()):
        return []
    return strict_decoding.strict_errors(raw, resource.schema_node)


def unmarshal_errors(duplicates: list[str]) -> str:
    """Return the error in which Go's YAML library lists the keys that a map has twice."""
    return "yaml: unmarshal errors:\n" + "\n".join(f"  {line}" for line in duplicates)


def with_kind_first(obj: Obj, kind: str, api_version: str) -> Obj:
    """Return the object with kind and apiVersion set and first, where lists expect them in the stored bytes."""
    if obj.get("kind") == kind and obj.get("apiVersion") == api_version and next(iter(obj)) == "kind":
        return obj
    rest = {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}
    return {"kind": kind, "apiVersion": api_version, **rest}
