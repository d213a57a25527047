"""The continue token that carries a list from one page to the next: the last key and the revision."""

from __future__ import annotations

import base64
import binascii

import msgspec

from koord.embedded.apiserver.refusal import Refusal, bad_request

_FORMAT = "meta.k8s.io/v1"
INCONSISTENT = -1  # go on from the key, in the present state
_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class Continuation(msgspec.Struct, frozen=True):
    revision: int
    after: str  # the last key that was served, relative to the namespace of the list


class _Token(msgspec.Struct):
    v: str = ""
    rv: int = 0
    start: str = ""


def encode(page: Continuation) -> str:
    raw = msgspec.json.encode(_Token(_FORMAT, page.revision, page.after + "\0"))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(token: str) -> Continuation:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        found = msgspec.json.decode(raw, type=_Token)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from None
    why = ""
    if found.v != _FORMAT:
        why = f'server does not recognize this encoded version "{found.v}"'
    elif not found.rv:
        why = f"incorrect encoded start resourceVersion (version {_FORMAT})"
    elif not found.start:
        why = f"encoded start key empty (version {_FORMAT})"
    if why:
        raise bad_request(f"invalid continue token: continue key is not valid: {why}")
    return Continuation(found.rv, found.start.rstrip("\0"))


class Expired(Refusal):
    """A 410 error with a token that continues inconsistently, for clients that prefer that to starting over."""

    def __init__(self, page: Continuation) -> None:
        super().__init__(410, "Expired", _TOO_OLD)
        self._token = encode(Continuation(INCONSISTENT, page.after))

    def status(self) -> dict[str, object]:
        body: dict[str, object] = super().status()
        body["metadata"] = {"continue": self._token}
        return body
