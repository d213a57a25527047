"""Response bodies made of stored records without encoding anything twice, and the negotiation of their
format.

A response is one object, a list as a join of bytes, or a Status, in JSON or YAML, as itself, as
metadata or as a Table.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import yaml

from koord.api.model import convert, decode
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.refusal import Refusal
from koord.embedded.apiserver.store import Record
from koord.kube.transport import JSON, YAML, Answer, Body, PlainBody

T = TypeVar("T")
Obj = dict[str, Any]
_encode = msgspec.json.Encoder().encode


class RecordBody:
    """A stored object; its decoded forms are shared with all readers of the record."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    def raw(self) -> bytes:
        return self._record.raw

    def plain(self) -> Any:
        return self._record.plain()

    def typed(self, model: type[T]) -> T:
        return self._record.typed(model)


def body_of(resource: ServedResource, record: Record) -> Body:
    if resource.conversion is None:
        return RecordBody(record)
    return PlainBody(resource.conversion.from_storage(record.plain()))


class ListBody:
    """A list of stored objects. Items of built-in kinds go out without kind and apiVersion, as with kube-
    apiserver.
    """

    __slots__ = ("_metadata", "_records", "_resource")

    def __init__(self, resource: ServedResource, metadata: Obj, records: Sequence[Record]) -> None:
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
        """Decode the list. A generic page type gets items that are shared with other readers; any other type is
        decoded whole.
        """
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


def text(status: int, content: str) -> Answer:
    return Answer(status=status, body=TextBody(content.encode()), content_type="text/plain; charset=utf-8")


def json_answer(status: int, value: Any, content_type: str = JSON) -> Answer:
    return Answer(status=status, body=PlainBody(value), content_type=content_type)


def refused(refusal: Refusal, warnings: Sequence[str] = ()) -> Answer:
    headers = dict(refusal.headers)
    if warnings:
        headers["Warning"] = warning_header(warnings)
    return Answer(status=refusal.code, body=PlainBody(refusal.status()), headers=headers)


def warning_header(warnings: Sequence[str]) -> str:
    """Join all warnings into one header value; clients split it at the commas between the quoted texts."""
    return ", ".join(f"299 - {_quoted(text)}" for text in dict.fromkeys(warnings))


def _quoted(text: str) -> str:
    clean = "".join(c if c.isprintable() else " " for c in text)
    return '"' + clean.replace("\\", "\\\\").replace('"', '\\"') + '"'


def success(resource: ServedResource, name: str, uid: str) -> Obj:
    """Return the Status object of a deletion."""
    details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }


CREATED_STATUS: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def as_yaml(answer: Answer) -> Answer:
    dumped = yaml.safe_dump(answer.body.plain(), default_flow_style=False, allow_unicode=True)
    return msgspec.structs.replace(answer, body=TextBody(dumped.encode()), content_type=YAML)


def as_pretty(answer: Answer) -> Answer:
    return msgspec.structs.replace(answer, body=TextBody(msgspec.json.format(answer.body.raw(), indent=2)))
