"""This module is the interface between a client and an API server: one request in, one response or one watch
stream out.

Two transports exist: HTTP (koord.kube.http) and in-process to the embedded server
(koord.embedded.apiserver.inprocess), which moves objects without turning them into JSON and back. Nothing
above this module knows which one it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from koord.api.model import convert, decode
from koord.kube.config.connection import BadConfig

T = TypeVar("T")

JSON = "application/json"
YAML = "application/yaml"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

# All that a decoder raises over bytes that are not what they should be; msgspec lets the last one through as it is.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError)


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """ApiRequest is a REST request to an API server, before it is bytes on a wire."""

    method: str  # GET, POST, PUT, PATCH, DELETE
    path: str  # "/api/v1/namespaces/x/pods", already unescaped
    query: Mapping[str, str] = {}
    body: Any = None  # plain dicts and lists (shared, never mutated by the receiver), or bytes
    content_type: str = JSON
    accept: str = JSON
    user: str = ""  # who asks; the server fills it in from the credentials
    user_agent: str = ""


class ResponseBody(Protocol):
    """ResponseBody is a response's body in any form. A form is made when asked for: do not ask twice."""

    def raw(self) -> bytes: ...

    def plain(self) -> Any:
        """Return dicts and lists. They are shared: never mutate them."""

    def typed(self, model: type[T]) -> T: ...


class BytesResponseBody:
    """BytesResponseBody is a body that arrived as bytes."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def raw(self) -> bytes:
        return self._raw

    def plain(self) -> Any:
        return decode(self._raw, object)

    def typed(self, model: type[T]) -> T:
        return decode(self._raw, model)


class UnstructuredBody:
    """UnstructuredBody is a body that is already dicts and lists."""

    __slots__ = ("_plain",)

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def raw(self) -> bytes:
        return msgspec.json.encode(self._plain)

    def plain(self) -> Any:
        return self._plain

    def typed(self, model: type[T]) -> T:
        return convert(self._plain, model)


class ApiResponse(msgspec.Struct, frozen=True, kw_only=True):
    status: int  # HTTP status code
    body: ResponseBody
    headers: Mapping[str, str] = {}
    content_type: str = JSON

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class WatchFrame(Protocol):
    """WatchFrame is one watch event: `type` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR; the body has the object."""

    @property
    def type(self) -> str: ...

    @property
    def body(self) -> ResponseBody: ...


class WatchStream(Protocol):
    """WatchStream is an open watch. Iterate it for frames; the end of iteration is the normal end of the stream."""

    def __aiter__(self) -> AsyncIterator[WatchFrame]: ...

    async def close(self) -> None: ...


class Unreachable(Exception):
    """Unreachable means that no response could be had: connection refused, reset, timed out, TLS failure.

    `sent` is False only when it is certain that no byte of the request left: then even a create may be tried
    again.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Transport(Protocol):
    async def send(self, request: ApiRequest) -> ApiResponse:
        """Send one request and return its response, errors included. Raise Unreachable when there is none."""

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        """Open a watch; an ApiResponse instead of a stream is the server's error (410, 403, ...)."""

    async def close(self) -> None: ...


# Credentials can be unusable for a while, as when a token file is being rotated: that must not end a running program.
TRANSIENT_ERRORS: tuple[type[Exception], ...] = (Unreachable, BadConfig, msgspec.DecodeError)
