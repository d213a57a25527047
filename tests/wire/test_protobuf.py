"""Protobuf messages survive both ways, unknown fields are skipped, and bad bytes end in a WireError."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.wire.nri_messages import (
    LinuxContainer,
    LinuxCpu,
    LinuxMemory,
    LinuxResources,
    NriContainer,
    NriPodSandbox,
    SynchronizeRequest,
    decode_message,
    encode_message,
)
from koord.wire.protobuf import Int32, Int64, Uint32, Uint64, WireError, codec_of, read_varint, write_varint


class _Inner(msgspec.Struct, frozen=True):
    text: str = ""
    flag: bool = False


class _Message(msgspec.Struct, frozen=True):
    field_numbers: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 5, 6, 7, 8, 100)
    signed: Int64 = 0
    small: Int32 = 0
    big: Uint64 = 0
    unsigned: Uint32 = 0
    data: bytes = b""
    texts: tuple[str, ...] = ()
    pairs: dict[str, str] = {}
    inner: _Inner | None = None
    maybe: Int64 | None = None


_CODEC = codec_of(_Message)
CPU_CODEC = codec_of(LinuxCpu)
CONTAINER_CODEC = codec_of(NriContainer)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_MESSAGES = st.builds(
    _Message,
    signed=st.integers(-(1 << 63), (1 << 63) - 1),
    small=st.integers(-(1 << 31), (1 << 31) - 1),
    big=st.integers(0, (1 << 64) - 1),
    unsigned=st.integers(0, (1 << 32) - 1),
    data=st.binary(max_size=20),
    texts=st.lists(_TEXT, max_size=4).map(tuple),
    pairs=st.dictionaries(_TEXT, _TEXT, max_size=4),
    inner=st.none() | st.builds(_Inner, text=_TEXT, flag=st.booleans()),
    maybe=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
)


@given(_MESSAGES)
def test_what_is_encoded_is_decoded(message: _Message) -> None:
    assert _CODEC.decode(_CODEC.encode(message)) == message


@given(_MESSAGES, _MESSAGES)
def test_messages_one_after_the_other_are_one_message(first: _Message, second: _Message) -> None:
    """Protobuf's own rule: lists grow, the last scalar that is written counts, messages are merged."""
    merged = _CODEC.decode(_CODEC.encode(first) + _CODEC.encode(second))
    assert merged.texts == first.texts + second.texts
    assert merged.pairs == {**first.pairs, **second.pairs}
    assert merged.signed == (second.signed or first.signed)
    if first.inner is not None and second.inner is not None:
        assert merged.inner is not None
        assert merged.inner.text == (second.inner.text or first.inner.text)


def test_a_message_given_twice_has_the_fields_of_both() -> None:
    parts = (_Message(inner=_Inner(text="a")), _Message(inner=_Inner(flag=True)))
    assert _CODEC.decode(b"".join(map(_CODEC.encode, parts))).inner == _Inner(text="a", flag=True)


@given(st.integers(0, (1 << 64) - 1))
def test_numbers_have_the_shortest_form(number: int) -> None:
    out = bytearray()
    write_varint(out, number)
    assert read_varint(bytes(out), 0, len(out)) == (number, len(out))
    assert len(out) == max(1, -(-number.bit_length() // 7))


@given(st.binary(max_size=300))
def test_any_bytes_end_in_a_message_or_a_wire_error(data: bytes) -> None:
    for decode in (_CODEC.decode, lambda raw: decode_message(SynchronizeRequest, raw)):
        with contextlib.suppress(WireError):
            assert decode(data) is not None


@given(_MESSAGES, st.data())
def test_a_truncated_message_is_a_shorter_message_or_an_error(message: _Message, data: st.DataObject) -> None:
    encoded = _CODEC.encode(message)
    cut = data.draw(st.integers(0, len(encoded)))
    try:
        decoded = _CODEC.decode(encoded[:cut])
    except WireError:
        return
    assert _CODEC.encode(decoded) == encoded[:cut]  # it ended between two fields


@pytest.mark.parametrize(
    ("encoded", "why"),
    [
        pytest.param("08", "truncated", id="no-value"),
        pytest.param("0880", "truncated", id="half-a-number"),
        pytest.param("08ffffffffffffffffffff01", "64 bits", id="eleven-byte-number"),
        pytest.param("08ffffffffffffffffff02", "64 bits", id="65-bit-number"),
        pytest.param("2a05616263", "truncated", id="length-beyond-the-end"),
        pytest.param("2affffffffffffffffff01", "truncated", id="absurd-length"),
        pytest.param("0a00", "wire type", id="bytes-for-a-number"),
        pytest.param("2801", "wire type", id="number-for-bytes"),
        pytest.param("00", "no field number", id="field-zero"),
        pytest.param("0f", "unknown wire type", id="wire-type-7"),
        pytest.param("f80780", "truncated", id="unknown-field-cut"),
        pytest.param("fb0708", "truncated", id="group-that-does-not-end"),
        pytest.param("fc07", "did not begin", id="group-that-did-not-begin"),
        pytest.param("3201ff", "UTF-8", id="no-text"),
    ],
)
def test_nonsense_is_named(encoded: str, why: str) -> None:
    with pytest.raises(WireError, match=why):
        _CODEC.decode(bytes.fromhex(encoded))


@pytest.mark.parametrize(
    "unknown",
    [
        pytest.param("f80701", id="number"),
        pytest.param("fa0703616263", id="bytes"),
        pytest.param("f9070000000000000000", id="fixed64"),
        pytest.param("fd0700000000", id="fixed32"),
        pytest.param("fb070801fb07fc07fc07", id="nested-groups"),
    ],
)
def test_unknown_fields_are_skipped(unknown: str) -> None:
    message = _Message(signed=-1, texts=("a",))
    assert _CODEC.decode(bytes.fromhex(unknown) + _CODEC.encode(message) + bytes.fromhex(unknown)) == message


def test_groups_nest_without_recursion() -> None:
    assert _CODEC.decode(bytes.fromhex("fb07") * 100_000 + bytes.fromhex("fc07") * 100_000) == _Message()


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (_Message(unsigned=-1), "_Message.unsigned: -1 is no uint32"),
        (_Message(small=1 << 31), "_Message.small: 2147483648 is no int32"),
        (_Message(maybe=1 << 63), "_Message.maybe: 9223372036854775808 is no int64"),
        (_Message(texts=("\ud800",)), "_Message.texts: a string has no UTF-8 encoding"),
        (_Message(inner=_Inner(text=1)), "_Message.inner: _Inner.text: 1 is no string"),  # type: ignore[arg-type]
    ],
)
def test_values_that_do_not_fit_are_named(message: _Message, why: str) -> None:
    with pytest.raises(WireError) as refused:
        _CODEC.encode(message)
    assert str(refused.value) == why


def test_an_optional_zero_is_set_and_a_plain_zero_is_not() -> None:
    assert CPU_CODEC.encode(LinuxCpu(shares=0)) == bytes.fromhex("0a00")
    assert CPU_CODEC.decode(bytes.fromhex("0a00")) == LinuxCpu(shares=0)
    assert CPU_CODEC.encode(LinuxCpu(quota=-1)) == bytes.fromhex("120b08ffffffffffffffffff01")
    assert CPU_CODEC.encode(LinuxCpu()) == b""


def test_pods_and_containers_survive() -> None:
    resources = LinuxResources(
        cpu=LinuxCpu(shares=1024, quota=-1, period=100_000, cpus="0-3"), memory=LinuxMemory(limit=1 << 40)
    )
    container = NriContainer(
        id="c1", name="main", env=("A=1", "B="), labels={"a": ""}, linux=LinuxContainer(resources=resources)
    )
    request = SynchronizeRequest(pods=(NriPodSandbox(id="p1", annotations={"k": "v"}),), containers=(container,))
    assert decode_message(SynchronizeRequest, encode_message(request)) == request
    assert CONTAINER_CODEC.decode(CONTAINER_CODEC.encode(container)) == container
