"""The errors of the API: each is a metav1.Status with kube-apiserver's code, reason and wording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class ApiFieldError(msgspec.Struct, frozen=True):
    """One validation error of one field, as kube-apiserver phrases it.

    `reason` is the cause on the wire (FieldValueInvalid, FieldValueRequired, FieldValueNotSupported,
    FieldValueDuplicate, FieldValueForbidden, FieldValueTooLong, FieldValueTooMany, FieldValueTypeInvalid,
    FieldValueNotFound); `message` is the text without the field path, e.g. `Required value: must be set`.
    """

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def _go_value(value: Any) -> str:
    """Format a bad value as Go prints it inside messages: strings quoted, scalars bare, composites as JSON."""
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return msgspec.json.encode(value).decode()


def invalid_value(field: str, value: Any, detail: str) -> ApiFieldError:
    return ApiFieldError(field, "FieldValueInvalid", f"Invalid value: {_go_value(value)}: {detail}")


def required(field: str, detail: str = "") -> ApiFieldError:
    return ApiFieldError(field, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")


def not_supported(field: str, value: Any, allowed: Sequence[str]) -> ApiFieldError:
    listed = ", ".join(_go_value(v) for v in allowed)
    return ApiFieldError(
        field, "FieldValueNotSupported", f"Unsupported value: {_go_value(value)}: supported values: {listed}"
    )


def duplicate(field: str, value: Any) -> ApiFieldError:
    return ApiFieldError(field, "FieldValueDuplicate", f"Duplicate value: {_go_value(value)}")


def not_found_field(field: str, value: Any, detail: str = "") -> ApiFieldError:
    text = f"Not found: {_go_value(value)}"
    return ApiFieldError(field, "FieldValueNotFound", f"{text}: {detail}" if detail else text)


def forbidden_field(field: str, detail: str) -> ApiFieldError:
    return ApiFieldError(field, "FieldValueForbidden", f"Forbidden: {detail}")


def too_long(field: str, limit: int) -> ApiFieldError:
    return ApiFieldError(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> ApiFieldError:
    text = f"Too many: {count}: must have at most {limit} item{'' if limit == 1 else 's'}"
    return ApiFieldError(field, "FieldValueTooMany", text)


class StatusError(Exception):
    """Raised anywhere inside the server to end a request; the transport turns it into a Status body and its code."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = headers or {}

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if not self.reason:
            del body["reason"]
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body


def _qualified_resource(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _details(name: str, group: str, kind: str, **more: Any) -> dict[str, Any]:
    """Build the details of a Status. `kind` on the wire is the plural for most errors and the kind for Invalid."""
    details = {"name": name, "group": group, "kind": kind, **more}
    return {k: v for k, v in details.items() if v not in ("", None)}


def not_found(plural: str, group: str, name: str) -> StatusError:
    text = f'{_qualified_resource(plural, group)} "{name}" not found'
    return StatusError(404, "NotFound", text, details=_details(name, group, plural))


def no_such_path() -> StatusError:
    """Return the error for a path where no resource is served. kubectl knows it by its empty details."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(plural: str, group: str, name: str) -> StatusError:
    text = f'{_qualified_resource(plural, group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, details=_details(name, group, plural))


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    text = f'Operation cannot be fulfilled on {_qualified_resource(plural, group)} "{name}": {why}'
    return StatusError(409, "Conflict", text, details=_details(name, group, plural))


OPTIMISTIC_LOCK_ERROR = "the object has been modified; please apply your changes to the latest version and try again"


def invalid(kind: str, group: str, name: str, errors: Sequence[ApiFieldError]) -> StatusError:
    qualified = f"{kind}.{group}" if group else kind
    seen = list(dict.fromkeys(str(e) for e in errors))
    listed = seen[0] if len(seen) == 1 else f"[{', '.join(seen)}]"
    causes = [{"reason": e.reason, "message": e.message, "field": e.field} for e in errors]
    return StatusError(
        422, "Invalid", f'{qualified} "{name}" is invalid: {listed}', details=_details(name, group, kind, causes=causes)
    )


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def forbidden(plural: str, group: str, name: str, why: str) -> StatusError:
    text = f'{_qualified_resource(plural, group)} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", text, details=_details(name, group, plural))


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def method_not_allowed() -> StatusError:
    return StatusError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource", details={}
    )


def unsupported_media(message: str) -> StatusError:
    return StatusError(415, "UnsupportedMediaType", message)


def too_many_requests(message: str, retry_after_seconds: int, details: dict[str, Any] | None = None) -> StatusError:
    body = {**(details or {})}
    if retry_after_seconds:
        body["retryAfterSeconds"] = retry_after_seconds
    headers = {"Retry-After": str(retry_after_seconds)} if retry_after_seconds else {}
    return StatusError(429, "TooManyRequests", message, details=body, headers=headers)


def internal(message: str) -> StatusError:
    return StatusError(
        500, "InternalError", f"Internal error occurred: {message}", details={"causes": [{"message": message}]}
    )
