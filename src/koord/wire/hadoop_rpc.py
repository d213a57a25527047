"""This module is the client side of Hadoop's RPC (IPC version 9) without I/O: one call on one connection.

Bytes to send and bytes received pass through HadoopRpcCall; whoever owns the socket moves them. A frame is a length of
four bytes, big endian, and that many bytes of protobuf messages, each after its own length as a varint. The caller is
a user without proof (simple authentication), or the owner of a token (SASL with DIGEST-MD5).

What a server answers is a value: the response, its exception, or what it did against the protocol.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from koord.wire import hadoop_sasl
from koord.wire.hadoop_sasl import SASL_CODEC, DigestExchange, HadoopToken, SaslMessage
from koord.wire.protobuf import (
    DATA,
    INT32,
    SINT32,
    STRING,
    UINT32,
    UINT64,
    MessageCodec,
    NestedField,
    RequiredField,
    ScalarField,
    WireError,
    read_length_delimited,
    write_varint,
)

MAGIC, VERSION, SERVICE_CLASS = b"hrpc", 9, 0
SIMPLE_AUTH, SASL_AUTH = 0x00, 0xDF
MAX_FRAME = 32 << 20  # a ResourceManager describes a node in less than 1 KiB
CLIENT_ID_SIZE = 16
PROTOCOL_BUFFER, FINAL_PACKET = 2, 0
CONNECTION_CONTEXT_CALL, SASL_CALL, FIRST_CALL = -3, -33, 0
NO_RETRY_COUNT = -1
OK, ERROR, FATAL = 0, 1, 2
STANDBY_EXCEPTION = "org.apache.hadoop.ipc.StandbyException"
ACCESS_CONTROL_EXCEPTION = "org.apache.hadoop.security.AccessControlException"
MAX_ERROR_TEXT = 1000
_LENGTH = struct.Struct(">I")


class RpcRequestHeader(msgspec.Struct, frozen=True, kw_only=True):
    kind: int = PROTOCOL_BUFFER
    operation: int = FINAL_PACKET
    call_id: int = FIRST_CALL
    client_id: bytes = b""
    retry_count: int = NO_RETRY_COUNT


class UserInformation(msgspec.Struct, frozen=True, kw_only=True):
    """UserInformation says as whom a call is made. Without an effective user a server acts as itself, and no access
    control list holds.
    """

    effective_user: str = ""
    real_user: str = ""


class ConnectionContext(msgspec.Struct, frozen=True, kw_only=True):
    user: UserInformation | None = None
    protocol: str = ""


class RequestHeader(msgspec.Struct, frozen=True, kw_only=True):
    method: str = ""
    protocol: str = ""
    version: int = 1


class RpcResponseHeader(msgspec.Struct, frozen=True, kw_only=True):
    call_id: int = 0
    status: int = OK
    exception_class: str = ""
    error_message: str = ""
    client_id: bytes = b""


REQUEST_HEADER_CODEC = MessageCodec(
    RpcRequestHeader,
    RequiredField(1, "kind", INT32),
    RequiredField(2, "operation", INT32),
    RequiredField(3, "call_id", SINT32),
    RequiredField(4, "client_id", DATA),
    RequiredField(5, "retry_count", SINT32),
)
_USER = MessageCodec(UserInformation, ScalarField(1, "effective_user", STRING), ScalarField(2, "real_user", STRING))
CONTEXT_CODEC = MessageCodec(ConnectionContext, NestedField(2, "user", _USER), ScalarField(3, "protocol", STRING))
METHOD_CODEC = MessageCodec(
    RequestHeader,
    RequiredField(1, "method", STRING),
    RequiredField(2, "protocol", STRING),
    RequiredField(3, "version", UINT64),
)
RESPONSE_HEADER_CODEC = MessageCodec(
    RpcResponseHeader,
    RequiredField(1, "call_id", UINT32),  # written as the two's complement of a signed number
    RequiredField(2, "status", INT32),
    ScalarField(4, "exception_class", STRING),
    ScalarField(5, "error_message", STRING),
    ScalarField(7, "client_id", DATA),
)


class RpcResponse(msgspec.Struct, frozen=True):
    """RpcResponse is the body of a call that succeeded."""

    body: bytes


class RpcException(msgspec.Struct, frozen=True, kw_only=True):
    """RpcException is the Java exception with which a server ended a call; a fatal one ends the connection."""

    class_name: str
    message: str
    fatal: bool = False

    def __str__(self) -> str:
        return f"{self.class_name.rpartition('.')[2]}: {self.message.partition(chr(10))[0]}"

    @property
    def is_standby(self) -> bool:
        """Return whether the server is the standby of a pair."""
        return self.class_name == STANDBY_EXCEPTION

    @property
    def is_access_denied(self) -> bool:
        # Some services wrap it: the class is then that of the wrapper, and the text names it.
        return ACCESS_CONTROL_EXCEPTION in (self.class_name, self.message.partition(":")[0].strip())


class RpcViolation(msgspec.Struct, frozen=True):
    """RpcViolation says what a peer did against the protocol; nothing can be said about the call."""

    reason: str

    def __str__(self) -> str:
        return f"the answer breaks Hadoop's RPC protocol: {self.reason}"


RpcOutcome = RpcResponse | RpcException | RpcViolation


def encode_frame(*messages: bytes) -> bytes:
    """Return a frame with these encoded messages."""
    body = bytearray()
    for message in messages:
        write_varint(body, len(message))
        body += message
    if len(body) > MAX_FRAME:
        raise WireError(f"a frame of {len(body)} bytes is longer than {MAX_FRAME}")
    return _LENGTH.pack(len(body)) + bytes(body)


class FrameDecoder:
    """FrameDecoder collects the frames of a byte stream. It keeps no more than came, and refuses long frames unread."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies of the frames that are complete with these bytes; raise WireError."""
        self._data += data
        frames: list[bytes] = []
        while len(self._data) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._data)
            if size > MAX_FRAME:
                raise WireError(f"a frame of {size} bytes is longer than {MAX_FRAME}")
            end = _LENGTH.size + size
            if len(self._data) < end:
                break
            frames.append(bytes(self._data[_LENGTH.size : end]))
            del self._data[:end]
        return frames


def take_message(frame: bytes, at: int, codec: MessageCodec[Any]) -> tuple[Any, int]:
    """Decode the message at `at` of a frame, and return it with the place where it ends; raise WireError."""
    start, end = read_length_delimited(frame, at, len(frame))
    return codec.decode(frame[start:end]), end


class HadoopRpcCall:
    """HadoopRpcCall makes one call: send what `start` and `feed` return, until there is an outcome."""

    def __init__(
        self,
        *,
        protocol: str,
        method: str,
        request: bytes,
        user: str,
        client_id: bytes,
        token: HadoopToken | None = None,
        cnonce: str = "",
    ) -> None:
        """Prepare a call. With a token `user` is not sent: the token says who calls. `client_id` and `cnonce` are
        random; they are given, as this module has no chance.
        """
        if len(client_id) != CLIENT_ID_SIZE:
            raise WireError(f"a client ID of {len(client_id)} bytes has not {CLIENT_ID_SIZE}")
        if token is None and not user:
            raise WireError("a call without a token needs a user")
        self.outcome: RpcOutcome | None = None
        self._protocol = protocol
        self._method = method
        self._request = request
        self._user = user
        self._client_id = client_id
        self._token = token
        self._cnonce = cnonce
        self._frames = FrameDecoder()
        self._exchange: DigestExchange | None = None
        self._authenticated = token is None

    def start(self) -> bytes:
        """Return the bytes with which the connection begins."""
        if self._token is None:
            return self._preamble(SIMPLE_AUTH) + self._context_and_call()
        return self._preamble(SASL_AUTH) + _sasl_frame(SaslMessage(state=hadoop_sasl.NEGOTIATE))

    def feed(self, data: bytes) -> bytes:
        """Take in what was received, and return what is to be sent next. What comes after the outcome is ignored."""
        try:
            frames = self._frames.feed(data)
            to_send = b""
            for frame in frames:
                if self.outcome is None:
                    to_send += self._take_frame(frame)
        except WireError as error:
            if self.outcome is None:
                self.outcome = RpcViolation(str(error))
            return b""
        return to_send

    def end_of_stream(self) -> RpcOutcome:
        """Return the outcome after the peer closed the connection."""
        if self.outcome is None:
            self.outcome = RpcViolation("the connection was closed before the answer was complete")
        return self.outcome

    def _take_frame(self, frame: bytes) -> bytes:
        header, at = take_message(frame, 0, RESPONSE_HEADER_CODEC)
        if header.client_id and not self._authenticated:
            raise WireError("an answer of the negotiation is for a client")
        if header.client_id and header.client_id != self._client_id:
            raise WireError("the answer is for another client")
        if header.status in (ERROR, FATAL):
            self.outcome = RpcException(
                class_name=header.exception_class,
                message=header.error_message[:MAX_ERROR_TEXT],
                fatal=header.status == FATAL,
            )
            return b""
        if header.status != OK:
            raise WireError(f"the status {header.status} is unknown")
        call_id = header.call_id - (1 << 32) if header.call_id >> 31 else header.call_id
        if not self._authenticated:
            if call_id != SASL_CALL:
                raise WireError(f"call {call_id} is answered during the negotiation")
            message, _ = take_message(frame, at, SASL_CODEC)
            return self._negotiate(message)
        if call_id != FIRST_CALL:
            raise WireError(f"call {call_id} is answered, which was not made")
        start, end = read_length_delimited(frame, at, len(frame))
        self.outcome = RpcResponse(frame[start:end])
        return b""

    def _negotiate(self, message: SaslMessage) -> bytes:
        token = self._token
        assert token is not None  # without one there is no negotiation
        if message.state == hadoop_sasl.NEGOTIATE and self._exchange is None:
            auth = hadoop_sasl.select_token_auth(message.auths)
            self._exchange = hadoop_sasl.respond_to_challenge(auth, token, self._cnonce)
            chosen = msgspec.structs.replace(auth, challenge=b"")
            answer = SaslMessage(state=hadoop_sasl.INITIATE, token=self._exchange.response, auths=(chosen,))
            return _sasl_frame(answer)
        if message.state == hadoop_sasl.SUCCESS and self._exchange is not None:
            hadoop_sasl.check_server_proof(message.token, self._exchange)
            self._authenticated = True
            return self._context_and_call()
        raise WireError(f"the SASL state {message.state} is out of turn")

    def _preamble(self, auth: int) -> bytes:
        return MAGIC + bytes((VERSION, SERVICE_CLASS, auth))

    def _context_and_call(self) -> bytes:
        user = UserInformation(effective_user=self._user) if self._token is None else None
        context = ConnectionContext(user=user, protocol=self._protocol)
        first = RpcRequestHeader(call_id=CONNECTION_CONTEXT_CALL, client_id=self._client_id)
        second = RpcRequestHeader(call_id=FIRST_CALL, client_id=self._client_id, retry_count=0)
        method = RequestHeader(method=self._method, protocol=self._protocol)
        return encode_frame(REQUEST_HEADER_CODEC.encode(first), CONTEXT_CODEC.encode(context)) + encode_frame(
            REQUEST_HEADER_CODEC.encode(second), METHOD_CODEC.encode(method), self._request
        )


def _sasl_frame(message: SaslMessage) -> bytes:
    header = RpcRequestHeader(call_id=SASL_CALL)
    return encode_frame(REQUEST_HEADER_CODEC.encode(header), SASL_CODEC.encode(message))
