"""This module describes protobuf messages by the generated table: field numbers and their JSON.

It also converts the types whose JSON is not their fields: times, quantities, IntOrString, raw JSON, schema
unions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from koord.embedded.apiserver.protobuf.wire import Malformed
from koord.embedded.apiserver.schema.builtin import INT_OR_STRING, JSON_SCHEMA, META, MICRO_TIME, QUANTITY, TIME
from koord.kube.transport import UNREADABLE
from koord.values import duration, instant

Fields = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO_TIME = datetime(1, 1, 1, tzinfo=UTC)
RUNTIME = "io.k8s.apimachinery.pkg.runtime."
UNKNOWN = RUNTIME + "Unknown"


def _moment(fields: Fields, microseconds: int) -> datetime:
    seconds = fields.get("seconds", 0)
    try:
        return _EPOCH + timedelta(seconds=seconds, microseconds=microseconds)
    except OverflowError:
        raise Malformed(f"{seconds} seconds since 1970 is not in the years 1 to 9999") from None


def _time(fields: Fields) -> str | None:
    """Format a time in whole seconds; a time without any field was never set."""
    if not fields:
        return None
    moment = _moment(fields, 0)
    return None if moment == _ZERO_TIME else instant.text(moment)


def _micro_time(fields: Fields) -> str | None:
    if not fields:
        return None
    nanoseconds = fields.get("nanos", 0)
    moment = _moment(fields, nanoseconds // 1000 if nanoseconds >= 0 else -(-nanoseconds // 1000))
    return None if moment == _ZERO_TIME else instant.micro_text(moment)


def _duration(fields: Fields) -> str:
    return duration.text(fields.get("duration", 0))


def _quantity(fields: Fields) -> Any:
    return fields.get("string", "0")


def _int_or_string(fields: Fields) -> int | str:
    kind = fields.get("type", 0)
    if kind not in (0, 1):
        raise Malformed("impossible IntOrString.Type")
    return str(fields.get("strVal", "")) if kind else int(fields.get("intVal", 0))


def _json(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE as error:
        raise Malformed(f"json parse error: {error}") from None


def _schema_or_array(fields: Fields) -> Any:
    return fields.get("jSONSchemas") or fields.get("schema")


def _schema_or_bool(fields: Fields) -> Any:
    return fields["schema"] if "schema" in fields else fields.get("allows", False)


def _schema_or_strings(fields: Fields) -> Any:
    return fields.get("property") or fields.get("schema")


# In these, bytes stay bytes: elsewhere they become base64.
FORMS: Mapping[str, Callable[[Fields], Any]] = {
    UNKNOWN: lambda fields: fields,
    TIME: _time,
    MICRO_TIME: _micro_time,
    META + "Duration": _duration,
    META + "FieldsV1": lambda fields: _json(fields.get("Raw", b"")),
    QUANTITY: _quantity,
    INT_OR_STRING: _int_or_string,
    RUNTIME + "RawExtension": lambda fields: _json(fields.get("raw", b"")),
    JSON_SCHEMA.removesuffix("SchemaProps"): lambda fields: _json(fields.get("raw", b"")),
    JSON_SCHEMA + "OrArray": _schema_or_array,
    JSON_SCHEMA + "OrBool": _schema_or_bool,
    JSON_SCHEMA + "OrStringArray": _schema_or_strings,
}
