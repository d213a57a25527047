"""Single fields of a message are read and replaced, and every other byte stays where it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.wire import raw_fields
from koord.wire.protobuf import BYTES, FIXED32, FIXED64, VARINT, WireError
from koord.wire.raw_fields import encode_chunk, encode_varint

numbers = st.one_of(st.integers(1, 20), st.integers(1, (1 << 29) - 1))
values = st.one_of(
    st.tuples(st.just(VARINT), st.integers(0, (1 << 64) - 1).map(encode_varint)),
    st.tuples(st.just(FIXED64), st.binary(min_size=8, max_size=8)),
    st.tuples(st.just(FIXED32), st.binary(min_size=4, max_size=4)),
    st.tuples(st.just(BYTES), st.binary(max_size=20).map(lambda raw: encode_varint(len(raw)) + raw)),
)
fields = st.tuples(numbers, values).map(lambda one: (one[0], encode_varint(one[0] << 3 | one[1][0]) + one[1][1]))
messages = st.lists(fields, max_size=12)


def joined(parts: list[tuple[int, bytes]]) -> bytes:
    return b"".join(raw for _, raw in parts)


@given(messages)
def test_fields_are_found_where_they_are(parts: list[tuple[int, bytes]]) -> None:
    data = joined(parts)
    found = raw_fields.scan_fields(data)
    assert [(field.number, data[field.start : field.end]) for field in found] == parts


@given(messages, numbers, st.binary(max_size=10))
def test_a_replaced_field_leaves_the_others_in_their_order(
    parts: list[tuple[int, bytes]], number: int, value: bytes
) -> None:
    encoded = encode_chunk(number, value)
    after = raw_fields.scan_fields(raw_fields.replace_field(joined(parts), number, encoded))
    assert [field.value for field in after if field.number == number] == [value]
    data = raw_fields.replace_field(joined(parts), number, b"")
    assert data == joined([one for one in parts if one[0] != number])


@given(messages, numbers)
def test_a_field_that_is_replaced_by_itself_changes_nothing(parts: list[tuple[int, bytes]], number: int) -> None:
    own = [raw for one, raw in parts if one == number]
    data = joined([one for one in parts if one[0] != number] + [(number, raw) for raw in own])
    assert raw_fields.replace_field(data, number, b"".join(own)) == data or not own


def test_a_new_field_stands_before_higher_ones() -> None:
    data = encode_chunk(1, b"a") + encode_chunk(5, b"e")
    middle = encode_chunk(3, b"c")
    assert raw_fields.replace_field(data, 3, middle) == encode_chunk(1, b"a") + middle + encode_chunk(5, b"e")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        found = raw_fields.scan_fields(data)
    except WireError:
        return
    assert b"".join(data[field.start : field.end] for field in found) == data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x08", "truncated"),
        (b"\x08\xff", "truncated"),
        (b"\x0a\x05ab", "truncated"),
        (b"\x09\x00", "truncated"),
        (b"\x00\x01", "0 is no field number"),
        (b"\x0b\x0b\x0c", "truncated"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "more than 64 bits"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "truncated"),
    ],
)
def test_what_is_no_message_says_why(data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        raw_fields.scan_fields(data)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_integers_of_either_sign(value: int) -> None:
    assert raw_fields.int_of(raw_fields.encode_int(7, value), 7) == value
    assert raw_fields.int_of(raw_fields.set_int(encode_chunk(9, b"x"), 7, value), 7) == value


def test_an_embedded_message_in_two_pieces_is_their_concatenation() -> None:
    data = encode_chunk(2, raw_fields.encode_int(1, 5)) + encode_chunk(2, raw_fields.encode_int(3, 6))
    inner = raw_fields.message_of(data, 2)
    assert inner is not None
    assert (raw_fields.int_of(inner, 1), raw_fields.int_of(inner, 3)) == (5, 6)
    after = raw_fields.set_message(data, raw_fields.set_int(inner, 1, 7), 2)
    assert len(raw_fields.scan_fields(after)) == 1
    assert raw_fields.int_of(raw_fields.message_of(after, 2) or b"", 3) == 6


def test_a_field_of_another_wire_type_is_refused() -> None:
    with pytest.raises(WireError, match="field 1 has the wire type 0"):
        raw_fields.string_of(b"\x08\x01", 1)
    with pytest.raises(WireError, match="field 1 has the wire type 2"):
        raw_fields.int_of(b"\x0a\x01a", 1)
    with pytest.raises(WireError, match="UTF-8"):
        raw_fields.string_of(b"\x0a\x01\xff", 1)


@given(
    st.dictionaries(st.text(max_size=4), st.text(max_size=4)), st.dictionaries(st.text(max_size=4), st.text(max_size=4))
)
def test_maps_are_merged(before: dict[str, str], over: dict[str, str]) -> None:
    data = encode_chunk(1, b"x") + raw_fields.encode_string_map(4, before) + encode_chunk(9, b"y")
    after = raw_fields.merge_string_map(data, 4, over)
    assert raw_fields.string_map_of(after, 4) == {**before, **over}
    assert (raw_fields.chunks_of(after, 1), raw_fields.chunks_of(after, 9)) == ([b"x"], [b"y"])
    assert raw_fields.merge_string_map(after, 4, over) == after
