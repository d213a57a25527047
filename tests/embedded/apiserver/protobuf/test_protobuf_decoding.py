"""These tests check the decoding of messages where clients differ, and that no bytes do harm."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koord.embedded.apiserver.protobuf.messages import (
    MAX_DEPTH,
    MalformedProtobuf,
    decode_envelope,
    decode_message,
    open_envelope,
)
from koord.embedded.apiserver.schema.builtin_types import (
    INT_OR_STRING,
    JSON_SCHEMA,
    META_V1,
    MICRO_TIME,
    QUANTITY,
    TIME,
)
from tests.embedded.apiserver.protobuf.wire_builders import MAGIC, chunk, envelope, named, number, varint

CORE = "io.k8s.api.core.v1."
RAW = "io.k8s.apimachinery.pkg.runtime.RawExtension"
DURATION = META_V1 + "Duration"
JSON = JSON_SCHEMA.removesuffix("SchemaProps")
SECURITY = CORE + "PodSecurityContext"

VALUES: list[Any] = [
    pytest.param(TIME, b"", None, id="time-never-set"),
    pytest.param(TIME, number(1, 0), "1970-01-01T00:00:00Z", id="epoch"),
    pytest.param(TIME, number(1, 1) + number(2, 999_999_999), "1970-01-01T00:00:01Z", id="time-drops-nanoseconds"),
    pytest.param(TIME, number(1, -1), "1969-12-31T23:59:59Z", id="before-epoch"),
    pytest.param(TIME, number(1, -62135596800), None, id="year-one-is-no-time"),
    pytest.param(MICRO_TIME, b"", None, id="micro-time-never-set"),
    pytest.param(MICRO_TIME, number(1, 1) + number(2, 1_999), "1970-01-01T00:00:01.000001Z", id="micro-time"),
    pytest.param(MICRO_TIME, number(1, 1) + number(2, -1_999), "1970-01-01T00:00:00.999999Z", id="micro-time-negative"),
    pytest.param(DURATION, number(1, 90_500_000_000), "1m30.5s", id="duration"),
    pytest.param(DURATION, b"", "0s", id="duration-zero"),
    pytest.param(QUANTITY, chunk(1, "1500m"), "1500m", id="quantity"),
    pytest.param(QUANTITY, b"", "0", id="quantity-zero"),
    pytest.param(INT_OR_STRING, number(1, 0) + number(2, 80) + chunk(3, ""), 80, id="port-number"),
    pytest.param(INT_OR_STRING, number(1, 1) + number(2, 0) + chunk(3, "http"), "http", id="port-name"),
    pytest.param(INT_OR_STRING, b"", 0, id="port-zero"),
    pytest.param(RAW, chunk(1, '{"a":[1]}'), {"a": [1]}, id="raw-extension"),
    pytest.param(RAW, b"", None, id="raw-extension-empty"),
    pytest.param(JSON, chunk(1, "null"), None, id="json-null"),
    pytest.param(JSON_SCHEMA + "OrBool", number(1, 1), True, id="schema-or-true"),
    pytest.param(JSON_SCHEMA + "OrBool", number(1, 0), False, id="schema-or-false"),
    pytest.param(JSON_SCHEMA + "OrBool", number(1, 0) + chunk(2, b""), {}, id="schema-or-bool-with-schema"),
    pytest.param(JSON_SCHEMA + "OrArray", b"", None, id="schema-or-array-nothing"),
    pytest.param(JSON_SCHEMA, varint(9 << 3 | 1) + struct.pack("<d", 3.0), {"maximum": 3}, id="whole-double"),
    pytest.param(JSON_SCHEMA, varint(9 << 3 | 1) + struct.pack("<d", 0.1), {"maximum": 0.1}, id="double"),
    pytest.param(CORE + "Secret", chunk(2, chunk(1, "k") + chunk(2, b"\x00\xff")), {"data": {"k": "AP8="}}, id="bytes"),
    pytest.param(CORE + "ConfigMap", chunk(2, chunk(1, "k")), {"data": {"k": ""}}, id="map-without-value"),
    pytest.param(CORE + "ConfigMap", chunk(2, chunk(2, "v")), {"data": {"": "v"}}, id="map-without-key"),
    pytest.param(
        CORE + "ResourceRequirements", chunk(1, chunk(1, "cpu")), {"limits": {"cpu": "0"}}, id="map-without-message"
    ),
    pytest.param(
        CORE + "ConfigMap",
        chunk(2, chunk(1, "k") + chunk(2, "a")) + chunk(2, chunk(2, "b") + chunk(1, "k")),
        {"data": {"k": "b"}},
        id="map-last-wins-in-any-order",
    ),
    pytest.param(
        CORE + "ConfigMap",
        chunk(2, chunk(1, "k") + chunk(2, b"a\xe2(b\xff")),
        {"data": {"k": "a\ufffd(b\ufffd"}},
        id="bytes-that-are-no-text",
    ),
    pytest.param(
        CORE + "ConfigMap",
        named("a") + chunk(1, chunk(3, "ns")) + named("b"),
        {"metadata": {"name": "b", "namespace": "ns"}},
        id="message-given-three-times-is-one",
    ),
    pytest.param(
        CORE + "Volume",
        chunk(2, chunk(2, chunk(1, "Memory"))) + chunk(1, "v") + chunk(2, chunk(2, b"")),
        {"name": "v", "emptyDir": {"medium": "Memory"}},
        id="inlined-message",
    ),
    pytest.param(SECURITY, number(4, 5) + number(4, 6), {"supplementalGroups": [5, 6]}, id="numbers-one-by-one"),
    pytest.param(
        SECURITY,
        chunk(4, varint(5) + varint(-6)) + number(4, 7),
        {"supplementalGroups": [5, -6, 7]},
        id="numbers-packed",
    ),
    pytest.param(SECURITY, chunk(4, b""), {"supplementalGroups": []}, id="numbers-packed-none"),
    pytest.param(CORE + "Toleration", number(5, -1), {"tolerationSeconds": -1}, id="negative-int64"),
    pytest.param(CORE + "DownwardAPIVolumeSource", number(2, -1), {"defaultMode": -1}, id="negative-int32"),
    pytest.param(CORE + "DownwardAPIVolumeSource", number(2, 1 << 32 | 7), {"defaultMode": 7}, id="int32-is-cut"),
    pytest.param(CORE + "PodSpec", number(11, 2), {"hostNetwork": True}, id="bool-is-any-other-number"),
]


@pytest.mark.parametrize(("definition", "raw", "value"), VALUES)
def test_value(definition: str, raw: bytes, value: Any) -> None:
    found = decode_message(definition, raw)
    assert found == value
    assert type(found) is type(value)


GROUP = varint(99 << 3 | 3) + varint(98 << 3 | 3) + number(5, 1) + varint(98 << 3 | 4) + varint(99 << 3 | 4)
UNKNOWN: list[Any] = [
    pytest.param(number(99, 7), id="number"),
    pytest.param(chunk(99, b"\xff\xff"), id="bytes"),
    pytest.param(varint(99 << 3 | 1) + bytes(8), id="eight-bytes"),
    pytest.param(varint(99 << 3 | 5) + bytes(4), id="four-bytes"),
    pytest.param(GROUP, id="group-in-group"),
]


@pytest.mark.parametrize("extra", UNKNOWN)
def test_fields_of_newer_clients_are_skipped(extra: bytes) -> None:
    entry = extra + chunk(1, "k") + extra + chunk(2, "v") + extra
    raw = extra + named("a") + extra + chunk(2, entry) + extra
    assert decode_message(CORE + "ConfigMap", raw) == {"metadata": {"name": "a"}, "data": {"k": "v"}}


REFUSED: list[Any] = [
    pytest.param(b"\x0a", "unexpected EOF", id="no-length"),
    pytest.param(b"\x0a\x05abc", "unexpected EOF", id="short-value"),
    pytest.param(b"\x0a" + varint(1 << 40), "unexpected EOF", id="huge-length"),
    pytest.param(b"\x0a" + varint(-1), "proto: negative length found during unmarshaling", id="negative-length"),
    pytest.param(b"\xff" * 11, "proto: integer overflow", id="endless-number"),
    pytest.param(b"\x80", "unexpected EOF", id="half-a-number"),
    pytest.param(b"\x00\x01", "proto: ConfigMap: illegal tag 0 (wire type 0)", id="field-zero"),
    pytest.param(varint(1 << 34), f"proto: ConfigMap: illegal tag -2147483648 (wire type {1 << 34})", id="field-minus"),
    pytest.param(b"\x0c", "proto: ConfigMap: wiretype end group for non-group", id="end-of-no-group"),
    pytest.param(varint(99 << 3 | 6), "proto: illegal wireType 6", id="wire-type-six"),
    pytest.param(varint(99 << 3 | 3), "unexpected EOF", id="open-group"),
    pytest.param(varint(99 << 3 | 1) + bytes(7), "unexpected EOF", id="seven-of-eight-bytes"),
    pytest.param(number(1, 1), "proto: wrong wireType = 0 for field ObjectMeta", id="number-for-message"),
    pytest.param(chunk(1, number(1, 1)), "proto: wrong wireType = 0 for field Name", id="number-for-text"),
    pytest.param(chunk(1, chunk(7, b"\x01")), "proto: wrong wireType = 2 for field Generation", id="bytes-for-number"),
    pytest.param(chunk(2, number(1, 1)), "proto: wrong wireType = 0 for field Data", id="number-for-key"),
    pytest.param(chunk(2, b"\x0c"), "proto: wrong wireType = 4 for field Data", id="group-for-key"),
    pytest.param(chunk(2, varint(9 << 3 | 4)), "proto: unexpected end of group", id="end-of-no-group-in-map"),
    pytest.param(
        chunk(1, chunk(8, number(1, 1 << 60))),
        "1152921504606846976 seconds since 1970 is not in the years 1 to 9999",
        id="time-without-a-year",
    ),
]


@pytest.mark.parametrize(("raw", "why"), REFUSED)
def test_refused(raw: bytes, why: str) -> None:
    with pytest.raises(MalformedProtobuf) as refused:
        decode_message(CORE + "ConfigMap", raw)
    assert str(refused.value) == why


@pytest.mark.parametrize(
    ("definition", "raw", "why"),
    [
        pytest.param(INT_OR_STRING, number(1, 2), "impossible IntOrString.Type", id="neither-int-nor-string"),
        pytest.param(RAW, chunk(1, "{"), "json parse error", id="raw-extension"),
        pytest.param(RAW, chunk(1, b"\xff"), "json parse error", id="raw-extension-no-text"),
        pytest.param(RAW, chunk(1, "[" * 100_000), "json parse error", id="raw-extension-deep"),
        pytest.param(JSON_SCHEMA, varint(9 << 3 | 1) + struct.pack("<d", float("nan")), "unsupported value", id="nan"),
        pytest.param(JSON_SCHEMA, varint(9 << 3 | 1) + bytes(7), "unexpected EOF", id="short-double"),
    ],
)
def test_refused_form(definition: str, raw: bytes, why: str) -> None:
    with pytest.raises(MalformedProtobuf, match=why):
        decode_message(definition, raw)


def nested(levels: int) -> bytes:
    """Return a schema with so many levels of `not`, built from the inside out to be fast."""
    sizes, size = [], 0
    for _ in range(levels):
        sizes.append(size)
        size += len(varint(28 << 3 | 2)) + len(varint(size))
    return b"".join(varint(28 << 3 | 2) + varint(size) for size in reversed(sizes))


def test_nesting_ends_where_we_say() -> None:
    found = decode_message(JSON_SCHEMA, nested(MAX_DEPTH))
    depth = 0
    while "not" in found:
        found, depth = found["not"], depth + 1
    assert depth == MAX_DEPTH
    for levels in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(MalformedProtobuf, match=f"nested deeper than {MAX_DEPTH}"):
            decode_message(JSON_SCHEMA, nested(levels))


def test_message_given_often_is_read_once() -> None:
    """Check linear time: reading the message anew each time would take a minute instead of a moment."""
    often = b"".join(chunk(1, chunk(11, chunk(1, f"k{i}") + chunk(2, ""))) for i in range(50_000))
    assert len(decode_message(CORE + "ConfigMap", often)["metadata"]["labels"]) == 50_000


DEFINITIONS = [
    CORE + "Pod",
    CORE + "Secret",
    JSON_SCHEMA,
    META_V1 + "DeleteOptions",
    META_V1 + "ObjectMeta",
    INT_OR_STRING,
]
PIECES = st.one_of(
    st.builds(number, st.integers(1, 45), st.integers(-(1 << 63), 1 << 64)),
    st.builds(chunk, st.integers(1, 45), st.binary(max_size=12)),
    st.binary(max_size=12),
)
PROTOBUF = st.recursive(
    st.lists(PIECES, max_size=6).map(b"".join),
    lambda inner: st.lists(st.builds(chunk, st.integers(1, 45), inner), max_size=4).map(b"".join),
    max_leaves=12,
)


@given(definition=st.sampled_from(DEFINITIONS), raw=st.one_of(st.binary(max_size=200), PROTOBUF))
@example(definition=CORE + "Pod", raw=b"")
def test_any_bytes_are_read_or_refused(definition: str, raw: bytes) -> None:
    with contextlib.suppress(MalformedProtobuf):
        decode_message(definition, raw)


@given(raw=st.one_of(st.binary(max_size=200), PROTOBUF), kind=st.sampled_from(["Pod", "ConfigMap", "", "Nothing"]))
def test_any_body_is_an_object_or_refused(raw: bytes, kind: str) -> None:
    for body in (raw, MAGIC + raw, envelope("v1", kind, raw)):
        with contextlib.suppress(MalformedProtobuf):
            found = decode_envelope(open_envelope(body, "v1", "Pod"))
            assert found["kind"]
            assert found["apiVersion"]


@given(data=st.dictionaries(st.text(), st.text()), order=st.randoms(use_true_random=False))
def test_entries_of_a_map_come_in_any_order(data: dict[str, str], order: Any) -> None:
    entries = [chunk(2, chunk(1, key) + chunk(2, value)) for key, value in data.items()]
    order.shuffle(entries)
    assert decode_message(CORE + "ConfigMap", b"".join(entries)).get("data", {}) == data


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_every_int64_comes_back(value: int) -> None:
    assert decode_message(CORE + "Toleration", number(5, value)) == {"tolerationSeconds": value}
