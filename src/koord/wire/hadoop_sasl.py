"""This module holds SASL as Hadoop's RPC uses it with a token: the negotiation's messages and DIGEST-MD5 (RFC 2831).

A token's identifier is the user name and its password the password, both in Base64. Only the quality of protection
`auth` is offered: what follows the negotiation is neither signed nor encrypted.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from hashlib import md5

import msgspec

from koord.wire.protobuf import (
    DATA,
    INT32,
    STRING,
    UINT32,
    MessageCodec,
    MessageListField,
    RequiredField,
    ScalarField,
    WireError,
)

SUCCESS, NEGOTIATE, INITIATE, CHALLENGE, RESPONSE = range(5)
TOKEN, DIGEST_MD5 = "TOKEN", "DIGEST-MD5"
_QOP, _ALGORITHM = "auth", "md5-sess"
_NONCE_COUNT = "00000001"  # a nonce is used once
MAX_CHALLENGE = 2048  # bytes, of RFC 2831


class HadoopToken(msgspec.Struct, frozen=True, kw_only=True):
    """HadoopToken is a delegation token: who may call which service, and the secret that proves it."""

    identifier: bytes
    password: bytes
    kind: str = ""
    service: str = ""

    def __repr__(self) -> str:
        return f"HadoopToken(kind={self.kind!r}, service={self.service!r})"  # the secret stays out of logs


class SaslAuth(msgspec.Struct, frozen=True, kw_only=True):
    """SaslAuth is one way to authenticate that a server offers, or that a client chose."""

    method: str = ""
    mechanism: str = ""
    protocol: str = ""
    server_id: str = ""
    challenge: bytes = b""


class SaslMessage(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 0
    state: int = SUCCESS
    token: bytes = b""
    auths: tuple[SaslAuth, ...] = ()


_AUTH = MessageCodec(
    SaslAuth,
    RequiredField(1, "method", STRING),
    RequiredField(2, "mechanism", STRING),
    # A server compares the choice with its offer, in which both are stated, the protocol as an empty text.
    RequiredField(3, "protocol", STRING),
    RequiredField(4, "server_id", STRING),
    ScalarField(5, "challenge", DATA),
)
SASL_CODEC = MessageCodec(
    SaslMessage,
    ScalarField(1, "version", UINT32),
    RequiredField(2, "state", INT32),
    ScalarField(3, "token", DATA),
    MessageListField(4, "auths", _AUTH),
)


class DigestExchange(msgspec.Struct, frozen=True):
    """DigestExchange is a client's response to a challenge, and the answer that proves that the server knows the
    password as well.
    """

    response: bytes
    expected: str


def select_token_auth(offered: tuple[SaslAuth, ...]) -> SaslAuth:
    """Return the server's offer of a token; raise WireError when there is none."""
    for auth in offered:
        if auth.method == TOKEN and auth.mechanism == DIGEST_MD5:
            return auth
    listed = ", ".join(auth.method for auth in offered) or "nothing"
    raise WireError(f"the server takes no token; it offers {listed}")


def respond_to_challenge(auth: SaslAuth, token: HadoopToken, cnonce: str) -> DigestExchange:
    """Compute the response to the challenge of an offer; raise WireError for a challenge that cannot be met."""
    asked = parse_directives(auth.challenge)
    nonce, realm = asked.get("nonce", ""), asked.get("realm", "")
    if not nonce:
        raise WireError("the challenge has no nonce")
    if asked.get("algorithm") != _ALGORITHM:
        raise WireError(f"the challenge has the algorithm {asked.get('algorithm', '')!r} and not {_ALGORITHM}")
    offered = [word.strip() for word in asked.get("qop", _QOP).split(",")]
    if _QOP not in offered:
        raise WireError(f"the server demands the protection {', '.join(offered)} (hadoop.rpc.protection), not {_QOP}")
    user, uri = b64encode(token.identifier).decode(), f"{auth.protocol}/{auth.server_id}"
    proofs = compute_digest(user, b64encode(token.password).decode(), realm, nonce, cnonce, uri)
    directives = (
        "charset=utf-8",
        f'username="{user}"',
        f'realm="{_escaped(realm)}"',
        f'nonce="{_escaped(nonce)}"',
        f"nc={_NONCE_COUNT}",
        f'cnonce="{cnonce}"',
        f'digest-uri="{_escaped(uri)}"',
        "maxbuf=65536",
        f"response={proofs[0]}",
        f"qop={_QOP}",
    )
    return DigestExchange(",".join(directives).encode(), proofs[1])


def compute_digest(user: str, password: str, realm: str, nonce: str, cnonce: str, uri: str) -> tuple[str, str]:
    """Return what proves that a client knows the password, and what proves it of the server."""
    secret = md5(f"{user}:{realm}:{password}".encode(), usedforsecurity=False).digest()
    session = _hex(secret + f":{nonce}:{cnonce}".encode())

    def proof(operation: str) -> str:
        target = _hex(f"{operation}:{uri}".encode())
        return _hex(f"{session}:{nonce}:{_NONCE_COUNT}:{cnonce}:{_QOP}:{target}".encode())

    return proof("AUTHENTICATE"), proof("")


def check_server_proof(token: bytes, exchange: DigestExchange) -> None:
    """Raise WireError unless the server proved that it knows the password."""
    given = parse_directives(token).get("rspauth", "")
    if not hmac.compare_digest(given.encode(), exchange.expected.encode()):
        raise WireError("the server did not prove that it knows the token's password")


def parse_directives(data: bytes) -> dict[str, str]:
    """Parse `name=value` pairs with commas between them, some in quotes. Of a name that repeats the first counts."""
    if len(data) > MAX_CHALLENGE:
        raise WireError(f"a SASL challenge of {len(data)} bytes is longer than {MAX_CHALLENGE}")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise WireError("a SASL challenge is not UTF-8") from None
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        if text[at] in " ,\t":
            at += 1
            continue
        name, equals, _ = text[at:].partition("=")
        if not equals:
            raise WireError("a SASL directive has no value")
        value, at = _directive_value(text, at + len(name) + 1)
        found.setdefault(name.strip().lower(), value)
    return found


def _directive_value(text: str, at: int) -> tuple[str, int]:
    if not text.startswith('"', at):
        end = text.find(",", at)
        end = len(text) if end < 0 else end
        return text[at:end].strip(), end
    value: list[str] = []
    at += 1
    while at < len(text):
        if text[at] == '"':
            return "".join(value), at + 1
        at += text[at] == "\\"
        value.append(text[at : at + 1])
        at += 1
    raise WireError("a quoted SASL directive does not end")


def _hex(data: bytes) -> str:
    return md5(data, usedforsecurity=False).hexdigest()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
