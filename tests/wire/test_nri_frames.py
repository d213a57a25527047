"""Frames of mux and ttrpc: the worked bytes, any cut, interleaving, and limits."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.wire.nri_messages import (
    RUNTIME_SERVICE,
    ConfigureResponse,
    RegisterPluginRequest,
    encode_message,
)
from koord.wire.protobuf import WireError
from koord.wire.ttrpc import (
    INVALID_ARGUMENT,
    MAX_DATA,
    MAX_PAYLOAD,
    MAX_STATUS_TEXT,
    PLUGIN_CONNECTION,
    REQUEST,
    RESPONSE,
    RESPONSE_CODEC,
    RUNTIME_CONNECTION,
    MuxDecoder,
    OversizedFrame,
    TtrpcDecoder,
    TtrpcFrame,
    TtrpcRequest,
    TtrpcResponse,
    check_request_stream,
    encode_mux_frame,
    encode_muxed_frame,
    error_status,
    request_frame,
    response_frame,
)


def test_register_plugin_has_the_worked_bytes() -> None:
    payload = encode_message(RegisterPluginRequest(plugin_name="koordlet_nri", plugin_idx="00"))
    request = TtrpcRequest(service=RUNTIME_SERVICE, method="RegisterPlugin", payload=payload)
    assert encode_muxed_frame(RUNTIME_CONNECTION, request_frame(1, request)) == (
        bytes.fromhex("000000020000000a" + "00000042000000010100")
        + bytes.fromhex("0000000200000042")
        + bytes.fromhex("0a1c")
        + b"nri.pkg.api.v1alpha1.Runtime"
        + bytes.fromhex("120e")
        + b"RegisterPlugin"
        + bytes.fromhex("1a12" + "0a0c")
        + b"koordlet_nri"
        + bytes.fromhex("1202")
        + b"00"
    )


def test_the_answer_of_configure_has_the_worked_bytes() -> None:
    response = TtrpcResponse(payload=encode_message(ConfigureResponse(events=141)))
    assert encode_muxed_frame(PLUGIN_CONNECTION, response_frame(1, response)) == bytes.fromhex(
        "000000010000000a" + "00000005000000010200" + "0000000100000005" + "1203108d01"
    )


def test_an_empty_answer_is_a_header_alone() -> None:
    assert encode_muxed_frame(1, response_frame(7, TtrpcResponse())) == bytes.fromhex(
        "000000010000000a" + "00000000000000070200"
    )
    assert RESPONSE_CODEC.decode(b"") == TtrpcResponse()


_FRAMES = st.lists(
    st.tuples(
        st.sampled_from([1, 2]),
        st.builds(
            TtrpcFrame,
            stream=st.integers(0, (1 << 32) - 1),
            kind=st.integers(0, 255),
            data=st.binary(max_size=60),
            flags=st.integers(0, 255),
        ),
    ),
    max_size=8,
)


@given(_FRAMES, st.data())
def test_frames_survive_any_cut(frames: list[tuple[int, TtrpcFrame]], data: st.DataObject) -> None:
    """The bytes come in pieces of any size, and frames of both connections lie between each other."""
    stream = b"".join(encode_muxed_frame(connection, frame) for connection, frame in frames)
    mux, decoders = MuxDecoder(), {1: TtrpcDecoder(), 2: TtrpcDecoder()}
    found: dict[int, list[TtrpcFrame | OversizedFrame]] = {1: [], 2: []}
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        for connection, piece in mux.feed(stream[:size]):
            found[connection] += decoders[connection].feed(piece)
        stream = stream[size:]
    assert not mux.is_inside_frame
    for connection, decoder in decoders.items():
        assert not decoder.is_inside_frame
        assert found[connection] == [frame for at, frame in frames if at == connection]


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.integers(1, 12))
def test_messages_may_be_divided_into_mux_frames_anywhere(bodies: list[bytes], size: int) -> None:
    messages = [TtrpcFrame(2 * index + 1, REQUEST, body) for index, body in enumerate(bodies)]
    raw = b"".join(struct.pack(">IIBB", len(one.data), one.stream, one.kind, 0) + one.data for one in messages)
    muxed = b"".join(encode_mux_frame(1, raw[at : at + size]) for at in range(0, len(raw), size))
    decoder = TtrpcDecoder()
    found = [frame for _, piece in MuxDecoder().feed(muxed) for frame in decoder.feed(piece)]
    assert found == messages


@given(st.binary(max_size=400))
def test_any_bytes_end_in_frames_or_a_wire_error(data: bytes) -> None:
    mux, decoder = MuxDecoder(), TtrpcDecoder()
    try:
        pieces = mux.feed(data)
    except WireError:
        return
    assert sum(len(piece) for _, piece in pieces) <= len(data)
    for _, piece in pieces:
        decoder.feed(piece)


def test_a_mux_frame_may_have_its_limit_and_no_more() -> None:
    assert MuxDecoder().feed(struct.pack(">II", 1, MAX_PAYLOAD)) == []
    with pytest.raises(WireError, match="more than 4194314"):
        MuxDecoder().feed(struct.pack(">II", 1, MAX_PAYLOAD + 1))
    with pytest.raises(WireError, match="longer"):
        encode_mux_frame(1, bytes(MAX_PAYLOAD + 1))


def test_an_oversized_message_is_discarded_and_the_next_one_read() -> None:
    decoder = TtrpcDecoder()
    size = MAX_DATA + 1
    assert decoder.feed(struct.pack(">IIBB", size, 5, REQUEST, 0)) == []
    for _ in range(size // 65536):
        assert decoder.feed(bytes(65536)) == []
    rest = bytes(size % 65536) + struct.pack(">IIBB", 2, 7, REQUEST, 0) + b"ok"
    assert decoder.feed(rest) == [OversizedFrame(5, REQUEST, size), TtrpcFrame(7, REQUEST, b"ok")]


def test_a_message_of_the_limit_is_read() -> None:
    decoder = TtrpcDecoder()
    decoder.feed(struct.pack(">IIBB", MAX_DATA, 1, RESPONSE, 0))
    (frame,) = decoder.feed(bytes(MAX_DATA))
    assert isinstance(frame, TtrpcFrame)
    assert len(frame.data) == MAX_DATA


def test_an_oversized_answer_is_not_sent() -> None:
    with pytest.raises(WireError, match="longer than 4194304"):
        encode_muxed_frame(1, TtrpcFrame(1, RESPONSE, bytes(MAX_DATA + 1)))


@pytest.mark.parametrize(
    ("stream", "last", "refused"), [(1, 0, False), (5, 1, False), (2, 1, True), (3, 3, True), (1, 3, True)]
)
def test_streams_are_odd_and_increase(stream: int, last: int, refused: bool) -> None:
    found = check_request_stream(stream, last)
    assert (found is not None) == refused
    if found is not None:
        assert found.code == INVALID_ARGUMENT


def test_a_status_takes_any_text() -> None:
    status = error_status(2, "\ud800" + "x" * 5000)
    assert status.message == "?" + "x" * (MAX_STATUS_TEXT - 1)
    assert RESPONSE_CODEC.decode(RESPONSE_CODEC.encode(TtrpcResponse(status=status))).status == status
