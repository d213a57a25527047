"""This module represents a server's error as a value, which verbs return in place of an object.

It also words the failures of HTTP calls as Go's client does: users search for those texts.
"""

from __future__ import annotations

import ssl
from typing import TypeVar

import aiohttp
import msgspec

from koord.api.kubernetes.meta import Status, StatusDetails
from koord.kube.transport.interface import DECODE_ERRORS, ApiResponse, ResponseBody

T = TypeVar("T")

# What an HTTP code means when the body is not a Status: a proxy or load balancer answered, not the API server.
_REASON_BY_STATUS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Gone",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_MAX_SHOWN_CHARS = 300  # characters of a foreign body worth repeating
WATCH_DECODING_REASON = "ClientWatchDecoding"


class ApiError(msgspec.Struct, frozen=True, kw_only=True):
    """ApiError is an error Status of the server, as a value."""

    status: Status
    retry_after_s: float | None = None  # how long the server asked to be left alone

    @property
    def code(self) -> int:
        return self.status.code

    @property
    def reason(self) -> str:
        return self.status.reason

    @property
    def message(self) -> str:
        return self.status.message

    @property
    def details(self) -> StatusDetails | None:
        return self.status.details

    @property
    def not_found(self) -> bool:
        return self.code == 404

    @property
    def already_exists(self) -> bool:
        return self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Return whether the object is not the one (uid) or not the version that the write was meant for.

        A patch that names another uid is answered 422, because the server sees a change of an immutable field. A
        JSON patch's failed `test` is also 422, without a cause, and cannot be told from a wrong patch.
        """
        if self.code == 422:
            return self.details is not None and any(cause.field == "metadata.uid" for cause in self.details.causes)
        return self.code == 409 and not self.already_exists

    @property
    def expired(self) -> bool:
        """Return whether the resource version or continue token is too old, so that a new list is needed."""
        return self.code == 410 or self.reason in ("Expired", "Gone")

    @property
    def gone(self) -> bool:
        return self.expired

    @property
    def invalid(self) -> bool:
        return self.code == 422 and not self.conflict

    @property
    def forbidden(self) -> bool:
        return self.code == 403

    @property
    def unauthorized(self) -> bool:
        return self.code == 401

    @property
    def too_many(self) -> bool:
        """Return whether there were too many requests or, for an eviction, the disruption budget is exhausted."""
        return self.code == 429

    @property
    def undecodable(self) -> bool:
        """Return whether this is not the server's error but an object or frame that its model cannot hold."""
        return self.reason == WATCH_DECODING_REASON

    def __str__(self) -> str:
        return f"{self.code} {self.reason}: {self.message}"


class ApiErrorRaised(Exception):
    """ApiErrorRaised is raised by `unwrap` for an ApiError."""

    def __init__(self, refused: ApiError) -> None:
        super().__init__(str(refused))
        self.refused = refused


def unwrap(result: T | ApiError) -> T:
    """Return the result or raise ApiErrorRaised, for scripts and tests that do not handle errors."""
    if isinstance(result, ApiError):
        raise ApiErrorRaised(result)
    return result


def retry_after_s(answer: ApiResponse) -> float | None:
    """Return the Retry-After header in seconds; its date form is never sent by an API server and counts as absent."""
    for name, value in answer.headers.items():
        if name.lower() == "retry-after" and value.strip().isdecimal():
            return float(value)
    return None


def error_from_response(answer: ApiResponse) -> ApiError:
    status = _status(answer.body)
    if status is None:
        text = answer.body.raw()[:_MAX_SHOWN_CHARS].decode(errors="replace").strip()
        status = Status(status="Failure", message=text or f"the server answered {answer.status}", code=answer.status)
    if not status.code or not status.reason:
        status = msgspec.structs.replace(
            status,
            code=status.code or answer.status,
            reason=status.reason or _REASON_BY_STATUS.get(answer.status, "Unknown"),
        )
    after = retry_after_s(answer)
    if after is None and status.details is not None and status.details.retry_after_seconds:
        after = float(status.details.retry_after_seconds)
    return ApiError(status=status, retry_after_s=after)


def error_from_watch_frame(body: ResponseBody) -> ApiError:
    """Convert the Status inside an ERROR frame of a watch."""
    status = _status(body)
    if status is None:
        return undecodable_error(f"the watch reported an error that is not a Status: {body.raw()[:_MAX_SHOWN_CHARS]!r}")
    after = float(status.details.retry_after_seconds) if status.details and status.details.retry_after_seconds else None
    return ApiError(status=status, retry_after_s=after)


def undecodable_error(why: str) -> ApiError:
    return ApiError(status=Status(status="Failure", code=500, reason=WATCH_DECODING_REASON, message=why))


def _status(body: ResponseBody) -> Status | None:
    try:
        status = body.typed(Status)
    except DECODE_ERRORS:
        return None
    # Any JSON object decodes as a Status with nothing in it; a real one says at least one of these.
    return status if status.code or status.reason or status.status == "Failure" else None


def go_error_text(error: Exception) -> str:
    """Return the failure as Go's client words it, for the cases that people search for."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"tls: failed to verify certificate: {_go_certificate_error(error)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        place = f"{error.host}:{error.port}"
        if isinstance(error.os_error, ConnectionRefusedError):
            return f"dial tcp {place}: connect: connection refused"
        return f"dial tcp {place}: {error.os_error}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return str(error)


def _go_certificate_error(error: aiohttp.ClientConnectorCertificateError) -> str:
    inner = error.certificate_error
    if isinstance(inner, ssl.SSLCertVerificationError):
        if inner.verify_code in (18, 19, 20, 21):  # self-signed, or an issuer that nobody here knows
            return "x509: certificate signed by unknown authority"
        return f"x509: {inner.verify_message}"
    return str(inner)
