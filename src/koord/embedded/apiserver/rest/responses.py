"""Response bodies made of stored records without encoding anything twice, and the negotiation of their format.

A response is one object, a list as a join of bytes, or a Status, in JSON or YAML, as itself, as metadata or as a Table.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
import yaml

from koord.api.model import Obj, convert, decode
from koord.embedded.apiserver.api_errors import StatusError
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.store.collection import StoreRecord
from koord.kube.transport.interface import JSON, YAML, ApiResponse, ResponseBody, UnstructuredBody

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class RecordBody:
    """A stored object; its decoded forms are shared with all readers of the record."""

    __slots__ = ("_record",)

    def __init__(self, record: StoreRecord) -> None:
        self._record = record

    def raw(self) -> bytes:
        return self._record.raw

    def plain(self) -> Any:
        return self._record.plain()

    def typed(self, model: type[T]) -> T:
        return self._record.typed(model)


def response_body(resource: ServedResource, record: StoreRecord) -> ResponseBody:
    if resource.conversion is None:
        return RecordBody(record)
    return UnstructuredBody(resource.conversion.from_storage(record.plain()))


class ListBody:
    """A list of stored objects. Items of built-in kinds go out without kind and apiVersion, as upstream."""

    __slots__ = ("_metadata", "_records", "_resource")

    def __init__(self, resource: ServedResource, metadata: Obj, records: Sequence[StoreRecord]) -> None:
        self._resource = resource
        self._metadata = metadata
        self._records = records

    def raw(self) -> bytes:
        resource = self._resource
        head = _encode({"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": self._metadata})
        if resource.conversion is not None:
            convert_one = resource.conversion.from_storage
            items = b",".join(_encode(convert_one(r.plain())) for r in self._records)
        elif resource.custom:
            items = b",".join([r.raw for r in self._records])
        else:
            prefix = b'{"kind":"%s","apiVersion":"%s",' % (resource.kind.encode(), resource.api_version.encode())
            skip = len(prefix)
            items = b",".join([b"{" + r.raw[skip:] if r.raw.startswith(prefix) else r.raw for r in self._records])
        return b'%s,"items":[%s]}' % (head[:-1], items)

    def plain(self) -> Any:
        resource = self._resource
        from_storage = resource.conversion.from_storage if resource.conversion is not None else None
        return {
            "kind": resource.list_kind,
            "apiVersion": resource.api_version,
            "metadata": self._metadata,
            "items": [from_storage(r.plain()) if from_storage else r.plain() for r in self._records],
        }

    def typed(self, model: type[T]) -> T:
        """Decode the list. A generic page type shares its items with other readers; other types are decoded whole."""
        arguments = typing.get_args(model)
        if len(arguments) == 1 and self._resource.conversion is None:
            empty = convert({"metadata": self._metadata, "items": []}, model)
            item = arguments[0]
            items = tuple(r.plain() if item is Any else r.typed(item) for r in self._records)
            return msgspec.structs.replace(empty, items=items)  # type: ignore[type-var]
        return decode(self.raw(), model)


class TextBody:
    """A body that is not made from a decoded value: text, or bytes that were encoded elsewhere."""

    __slots__ = ("_text",)

    def __init__(self, text: bytes) -> None:
        self._text = text

    def raw(self) -> bytes:
        return self._text

    def plain(self) -> Any:
        return self._text.decode()

    def typed(self, model: type[T]) -> T:
        return decode(self._text, model)


def text_response(status: int, content: str) -> ApiResponse:
    return ApiResponse(status=status, body=TextBody(content.encode()), content_type="text/plain; charset=utf-8")


def json_response(status: int, value: Any, content_type: str = JSON) -> ApiResponse:
    return ApiResponse(status=status, body=UnstructuredBody(value), content_type=content_type)


def error_response(refusal: StatusError, warnings: Sequence[str] = ()) -> ApiResponse:
    headers = dict(refusal.headers)
    if warnings:
        headers["Warning"] = warning_header(warnings)
    return ApiResponse(status=refusal.code, body=UnstructuredBody(refusal.status()), headers=headers)


def warning_header(warnings: Sequence[str]) -> str:
    """Join all warnings into one header value; clients split it at the commas between the quoted texts."""
    return ", ".join(f"299 - {_quoted_warning(text)}" for text in dict.fromkeys(warnings))


def _quoted_warning(text: str) -> str:
    clean = "".join(c if c.isprintable() else " " for c in text)
    return '"' + clean.replace("\\", "\\\\").replace('"', '\\"') + '"'


def deletion_status(resource: ServedResource, name: str, uid: str) -> Obj:
    """Return the Status object of a deletion."""
    details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }


CREATED_STATUS_OBJECT: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def to_yaml_response(answer: ApiResponse) -> ApiResponse:
    dumped = yaml.safe_dump(answer.body.plain(), default_flow_style=False, allow_unicode=True)
    return msgspec.structs.replace(answer, body=TextBody(dumped.encode()), content_type=YAML)


def to_pretty_response(answer: ApiResponse) -> ApiResponse:
    return msgspec.structs.replace(answer, body=TextBody(msgspec.json.format(answer.body.raw(), indent=2)))


Transform = Literal["", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"]
_TRANSFORMS: tuple[Transform, ...] = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_META_GROUP = "meta.k8s.io"
DISCOVERY_GROUP = "apidiscovery.k8s.io"
_MEDIA_TYPES = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
_STREAM_MEDIA_TYPES = ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"


class ResponseFormat(msgspec.Struct, frozen=True):
    yaml: bool = False
    transform: Transform = ""
    version: str = "v1"  # of meta.k8s.io, for a shape


PLAIN_JSON = ResponseFormat()


class _MediaRange(msgspec.Struct, frozen=True):
    type: str
    params: dict[str, str]
    weight: float


@functools.lru_cache(maxsize=512)
def parse_accept(accept: str) -> tuple[_MediaRange, ...]:
    """Parse an Accept header into media ranges, best first; equal weights keep their order."""
    found: list[_MediaRange] = []
    for entry in accept.split(","):
        kind, *rest = (part.strip() for part in entry.split(";"))
        params = dict(part.partition("=")[::2] for part in rest if part)
        try:
            weight = float(params.pop("q", "1"))
        except ValueError:
            weight = 1.0
        if kind:
            found.append(_MediaRange(kind.lower(), params, weight))
    found.sort(key=lambda media_range: -media_range.weight)
    return tuple(found)


@functools.lru_cache(maxsize=512)
def negotiate(accept: str, *, streams: bool = False, tables: bool = True) -> ResponseFormat:
    """Return the first media range that can be served. Raises 406 when there is none.

    `streams`: it can be watched. `tables`: it can be shown as a Table, which a posted review cannot.
    """
    if not accept:
        return PLAIN_JSON
    refused_shape = False
    for media_range in parse_accept(accept):
        if media_range.type in ("application/json", "*/*", "application/*"):
            yaml = False
        elif media_range.type == "application/yaml":
            yaml = True
        else:
            continue
        shape = media_range.params.get("as", "")
        if not shape:
            return ResponseFormat(yaml=yaml)
        version = media_range.params.get("v", "")
        if media_range.params.get("g") == _META_GROUP and version in ("v1", "v1beta1"):
            for known in _TRANSFORMS:
                if shape == known and (tables or known != "Table"):
                    return ResponseFormat(yaml=yaml, transform=known, version=version)
        refused_shape = True
    if refused_shape:
        raise StatusError(
            406,
            "NotAcceptable",
            "only the following media types are accepted: "
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )
    offered = _MEDIA_TYPES + _STREAM_MEDIA_TYPES if streams else _MEDIA_TYPES
    raise StatusError(406, "NotAcceptable", f"406: Not Acceptable\n\nAvailable representations: {offered}", details={})


@functools.lru_cache(maxsize=512)
def aggregated_discovery_version(accept: str) -> str:
    """Return the version of aggregated discovery that is asked for and served ("v2"), or an empty string."""
    for media_range in parse_accept(accept):
        if media_range.type == "application/json":
            if (
                media_range.params.get("as") == "APIGroupDiscoveryList"
                and media_range.params.get("g") == DISCOVERY_GROUP
            ):
                if media_range.params.get("v") in ("v2", "v2beta1"):
                    return media_range.params["v"]
            elif "as" not in media_range.params:
                return ""
    return ""
