"""Hadoop's RPC: the bytes that a real ResourceManager was seen to take, any cut, exceptions as values, and refusals of
what is truncated, oversized or garbage.
"""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.wire import hadoop_rpc as rpc
from koord.wire import hadoop_sasl as sasl
from koord.wire.hadoop_rpc import HadoopRpcCall, RpcException, RpcResponse, RpcViolation
from koord.wire.hadoop_sasl import HadoopToken, SaslAuth, SaslMessage
from koord.wire.hadoop_yarn import (
    NODES_REQUEST_CODEC,
    UPDATE_REQUEST_CODEC,
    GetClusterNodesRequest,
    NodeIdMessage,
    NodeResource,
    ResourceMessage,
    ResourceOption,
    UpdateNodeResourceRequest,
    decode_token_file,
)
from koord.wire.protobuf import SINT32, WireError

CLIENT_ID = bytes(range(16))
TOKEN = HadoopToken(identifier=b"who", password=b"secret", kind="RM_DELEGATION_TOKEN", service="127.0.0.1:8032")
CHALLENGE = b'realm="default",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess'
OFFER = SaslAuth(method="TOKEN", mechanism="DIGEST-MD5", server_id="default", challenge=CHALLENGE)


def call(token: HadoopToken | None = None) -> HadoopRpcCall:
    return HadoopRpcCall(
        protocol="p", method="m", request=b"\x08\x01", user="yarn", client_id=CLIENT_ID, token=token, cnonce="c"
    )


def answer(body: bytes = b"", **fields: object) -> bytes:
    header = rpc.RpcResponseHeader(**{"client_id": CLIENT_ID, **fields})  # type: ignore[arg-type]
    messages = (body,) if header.status == rpc.OK else ()
    return rpc.encode_frame(rpc.RESPONSE_HEADER_CODEC.encode(header), *messages)


def negotiation(message: SaslMessage) -> bytes:
    header = rpc.RpcResponseHeader(call_id=(1 << 32) + rpc.SASL_CALL)
    return rpc.encode_frame(rpc.RESPONSE_HEADER_CODEC.encode(header), sasl.SASL_CODEC.encode(message))


# Bytes -----------------------------------------------------------------------------------------------------------


def test_headers_have_the_bytes_that_a_resource_manager_takes() -> None:
    sent = call().start()
    assert sent[:7] == b"hrpc\x09\x00\x00"
    context = bytes.fromhex("0802100018052210000102030405060708090a0b0c0d0e0f2801")
    made = bytes.fromhex("0802100018002210000102030405060708090a0b0c0d0e0f2800")
    first, second = rpc.FrameDecoder().feed(sent[7:])
    assert first == bytes([len(context)]) + context + b"\x0b" + b"\x12\x06\x0a\x04yarn" + b"\x1a\x01p"
    assert second == bytes([len(made)]) + made + b"\x08\x0a\x01m\x12\x01p\x18\x01" + b"\x02\x08\x01"


def test_the_update_has_the_bytes_that_a_resource_manager_takes() -> None:
    option = ResourceOption(ResourceMessage(memory_mib=3000, vcores=7), 600_000)
    request = UpdateNodeResourceRequest((NodeResource(NodeIdMessage("localhost", 18041), option),))
    assert UPDATE_REQUEST_CODEC.encode(request) == bytes.fromhex(
        "0a1e0a0f0a096c6f63616c686f737410f98c01120b0a0508b817100710c0cf24"
    )


def test_zero_is_written_and_never_left_out() -> None:
    request = UpdateNodeResourceRequest((NodeResource(NodeIdMessage("h", 1), ResourceOption(ResourceMessage(), 0)),))
    assert UPDATE_REQUEST_CODEC.encode(request).endswith(bytes.fromhex("0a04" + "0800" + "1000" + "1000"))


def test_states_are_written_one_by_one() -> None:
    assert NODES_REQUEST_CODEC.encode(GetClusterNodesRequest((2, 7))) == bytes.fromhex("08020807")


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_zigzag_numbers_survive(value: int) -> None:
    assert SINT32.parse(SINT32.dump(value)) == value
    assert SINT32.dump(value) >= 0


# Answers ---------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=50), st.integers(1, 20))
def test_an_answer_may_come_in_pieces_of_any_size(body: bytes, size: int) -> None:
    made, data = call(), answer(body)
    for at in range(0, len(data), size):
        assert made.outcome is None
        assert made.feed(data[at : at + size]) == b""
    assert made.outcome == RpcResponse(body)


def test_an_exception_is_a_value() -> None:
    made = call()
    made.feed(
        answer(
            status=rpc.ERROR,
            exception_class="org.apache.hadoop.ipc.StandbyException",
            error_message="ResourceManager rm1 is not Active!\n\tat Foo",
        )
    )
    assert isinstance(made.outcome, RpcException)
    assert made.outcome.is_standby
    assert str(made.outcome) == "StandbyException: ResourceManager rm1 is not Active!"


@pytest.mark.parametrize(
    ("class_name", "message"),
    [
        pytest.param("org.apache.hadoop.security.AccessControlException", "User u ...", id="plain"),
        pytest.param(
            "org.apache.hadoop.yarn.exceptions.YarnException",
            "org.apache.hadoop.security.AccessControlException: User u doesn't have permission to call 'm'",
            id="wrapped",
        ),
    ],
)
def test_a_denial_is_known_plain_and_wrapped(class_name: str, message: str) -> None:
    assert RpcException(class_name=class_name, message=message).is_access_denied
    assert not RpcException(class_name="java.io.IOException", message="no").is_access_denied


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(answer(client_id=bytes(16)), "the answer is for another client", id="other-client"),
        pytest.param(answer(call_id=7), "call 7 is answered, which was not made", id="other-call"),
        pytest.param(answer(status=9), "the status 9 is unknown", id="status"),
        pytest.param(struct.pack(">I", 1 << 31), f"a frame of {1 << 31} bytes is longer than", id="oversized"),
        pytest.param(b"\x00\x00\x00\x02\x50\x00", "truncated", id="message-beyond-frame"),
        pytest.param(b"\x00\x00\x00\x00", "truncated", id="empty-frame"),
        pytest.param(b"HTTP/1.1 404 Not Found\r\n\r\n", "longer than", id="http"),
    ],
)
def test_what_breaks_the_protocol_is_said(data: bytes, reason: str) -> None:
    made = call()
    assert made.feed(data) == b""
    assert isinstance(made.outcome, RpcViolation)
    assert reason in str(made.outcome)


def test_a_closed_connection_is_no_answer() -> None:
    made = call()
    made.feed(answer(b"12345")[:-2])
    assert isinstance(made.end_of_stream(), RpcViolation)


@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_garbage_ends_in_a_value(pieces: list[bytes], has_token: bool) -> None:
    made = call(TOKEN if has_token else None)
    made.start()
    for piece in pieces:
        made.feed(piece)
    assert made.end_of_stream() == made.outcome


@given(st.data())
def test_damaged_answers_end_in_a_value(data: st.DataObject) -> None:
    frame = bytearray(data.draw(st.sampled_from([answer(b"abc"), negotiation(SaslMessage(state=1, auths=(OFFER,)))])))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    made = call(data.draw(st.sampled_from([None, TOKEN])))
    made.start()
    made.feed(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
    assert made.end_of_stream() == made.outcome


def test_a_user_is_needed_without_a_token() -> None:
    with pytest.raises(WireError, match="needs a user"):
        HadoopRpcCall(protocol="p", method="m", request=b"", user="", client_id=CLIENT_ID)


# Tokens ----------------------------------------------------------------------------------------------------------


def test_the_digest_is_that_of_rfc_2831() -> None:
    assert sasl.compute_digest(
        "chris", "secret", "elwood.innosoft.com", "OA6MG9tEQGm2hh", "OA6MHXh6VqTrRk", "imap/elwood.innosoft.com"
    ) == ("d388dad90d4bbd760a152321f2143af7", "ea40f60335c427b5527b84dbabcdfffd")


def test_a_call_with_a_token_negotiates_first_and_names_no_user() -> None:
    made = call(TOKEN)
    begin = made.start()
    assert begin[:7] == b"hrpc\x09\x00\xdf"
    (asked,) = rpc.FrameDecoder().feed(begin[7:])
    header, at = rpc.take_message(asked, 0, rpc.REQUEST_HEADER_CODEC)
    assert (header.call_id, header.client_id, header.retry_count) == (-33, b"", -1)
    assert rpc.take_message(asked, at, sasl.SASL_CODEC)[0].state == sasl.NEGOTIATE
    (initiated,) = rpc.FrameDecoder().feed(made.feed(negotiation(SaslMessage(state=1, auths=(OFFER,)))))
    _, at = rpc.take_message(initiated, 0, rpc.REQUEST_HEADER_CODEC)
    message, _ = rpc.take_message(initiated, at, sasl.SASL_CODEC)
    assert message.state == sasl.INITIATE
    assert message.auths[0].challenge == b""
    said = sasl.parse_directives(message.token)
    proof, expected = sasl.compute_digest("d2hv", "c2VjcmV0", "default", "n", "c", "/default")
    assert (said["username"], said["response"], said["digest-uri"]) == ("d2hv", proof, "/default")
    sent = made.feed(negotiation(SaslMessage(state=sasl.SUCCESS, token=f"rspauth={expected}".encode())))
    first, _ = rpc.FrameDecoder().feed(sent)
    _, at = rpc.take_message(first, 0, rpc.REQUEST_HEADER_CODEC)
    assert rpc.take_message(first, at, rpc.CONTEXT_CODEC)[0] == rpc.ConnectionContext(protocol="p")
    made.feed(answer(b"done"))
    assert made.outcome == RpcResponse(b"done")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        pytest.param((SaslMessage(state=0),), "state 0 is out of turn", id="success-without-proof"),
        pytest.param((SaslMessage(state=1, auths=(SaslAuth(method="SIMPLE"),)),), "it offers SIMPLE", id="no-token"),
        pytest.param((SaslMessage(state=1),), "it offers nothing", id="no-offer"),
        pytest.param(
            (SaslMessage(state=1, auths=(OFFER,)), SaslMessage(state=0, token=b"rspauth=0")),
            "did not prove",
            id="wrong-proof",
        ),
        pytest.param(
            (SaslMessage(state=1, auths=(OFFER,)), SaslMessage(state=1, auths=(OFFER,))), "out of turn", id="twice"
        ),
    ],
)
def test_a_server_that_proves_nothing_is_refused(messages: tuple[SaslMessage, ...], reason: str) -> None:
    made = call(TOKEN)
    made.start()
    for message in messages:
        made.feed(negotiation(message))
    assert isinstance(made.outcome, RpcViolation)
    assert reason in made.outcome.reason


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        pytest.param(b'realm="r",algorithm=md5-sess', "no nonce", id="nonce"),
        pytest.param(b'nonce="n",algorithm=md5', "algorithm", id="algorithm"),
        pytest.param(
            b'nonce="n",qop="auth-conf",algorithm=md5-sess', "auth-conf (hadoop.rpc.protection)", id="privacy"
        ),
        pytest.param(b'nonce="n', "does not end", id="quote"),
        pytest.param(b"nonce", "no value", id="no-value"),
        pytest.param(b"\xff=1", "not UTF-8", id="utf-8"),
        pytest.param(b"a" * 3000, "longer than", id="long"),
    ],
)
def test_a_challenge_that_cannot_be_met_is_said(challenge: bytes, reason: str) -> None:
    made = call(TOKEN)
    made.start()
    offer = SaslAuth(method="TOKEN", mechanism="DIGEST-MD5", challenge=challenge)
    made.feed(negotiation(SaslMessage(state=1, auths=(offer,))))
    assert isinstance(made.outcome, RpcViolation)
    assert reason in made.outcome.reason


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(TOKEN)


def writable(data: bytes) -> bytes:
    size = len(data)
    if size < 128:
        return bytes([size]) + data
    raw = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([256 - 112 - len(raw)]) + raw + data


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=20), st.text(max_size=20)), max_size=3))
def test_a_token_file_is_read(tokens: list[tuple[bytes, bytes, str]]) -> None:
    text = b"HDTS\x00" + bytes([len(tokens)])
    for identifier, password, service in tokens:
        text += b"".join(map(writable, (b"alias", identifier, password, b"K", service.encode())))
    read = decode_token_file(text + b"\x00")
    assert [(one.identifier, one.password, one.service) for one in read] == tokens
    assert {one.kind for one in read} <= {"K"}


@given(st.binary(max_size=100))
def test_a_damaged_token_file_is_refused(data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert isinstance(decode_token_file(b"HDTS\x00" + data), tuple)
    with pytest.raises(WireError, match="HDTS"):
        decode_token_file(b"XDTS\x00" + data)
