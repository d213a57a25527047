"""This module validates probes and lifecycle handlers of containers."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds.rule import FINE, PORT_NUMBER, Errors, Rule, at_least, fields, needed, one_of
from koord.embedded.apiserver.refusal import FieldError, forbidden_field, invalid_value, required
from koord.values import names

Obj = dict[str, Any]


def port_or_name(value: int | str, path: str) -> Errors:
    if isinstance(value, int):
        return PORT_NUMBER(value, path)
    return [invalid_value(path, value, reason) for reason in names.port_name(value)]


def _exec(found: Obj, path: str) -> Errors:
    return FINE if found.get("command") else [required(f"{path}.command")]


def _headers(found: list[Obj], path: str) -> Errors:
    return [
        invalid_value(path, header.get("name", ""), reason)
        for header in found
        for reason in names.http_header_name(header.get("name", ""))
    ]


_HANDLERS: dict[str, Rule] = {
    "exec": _exec,
    "httpGet": fields(
        {"port": needed(port_or_name, 0), "scheme": needed(one_of("HTTP", "HTTPS")), "httpHeaders": _headers}
    ),
    "tcpSocket": fields({"port": needed(port_or_name, 0)}),
    "grpc": fields({"port": needed(PORT_NUMBER, 0)}),
}


def _handler(found: Obj, path: str, grace: int | None) -> list[FieldError]:
    """Return the errors of a handler, which must have exactly one action; `grace` bounds a sleep, in seconds."""
    errors: list[FieldError] = []
    chosen = 0
    for key in ("exec", "httpGet", "tcpSocket", "grpc", "sleep"):
        if found.get(key) is None:
            continue
        chosen += 1
        at = f"{path}.{key}"
        if chosen > 1:
            errors.append(forbidden_field(at, "may not specify more than 1 handler type"))
        elif key == "sleep":
            errors += _sleep(found[key], at, grace)
        else:
            errors += _HANDLERS[key](found[key], at)
    if not chosen:
        errors.append(required(path, "must specify a handler type"))
    return errors


def _sleep(found: Obj, path: str, grace: int | None) -> Errors:
    seconds = found.get("seconds", 0)
    if grace is None or 0 <= seconds <= grace:
        return FINE
    detail = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
    return [invalid_value(path, seconds, detail)]


_TIMES = fields(
    dict.fromkeys(
        ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"), at_least(0)
    )
)


def _probe(found: Obj, path: str) -> list[FieldError]:
    errors = _handler({key: found[key] for key in _HANDLERS if key in found}, path, None)
    errors += _TIMES(found, path)
    grace = found.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        errors.append(invalid_value(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0"))
    return errors


def probes(container: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        found = container.get(key)
        if found is None:
            continue
        at = f"{path}.{key}"
        errors += _probe(found, at)
        if key == "readinessProbe":
            if found.get("terminationGracePeriodSeconds") is not None:
                value = found["terminationGracePeriodSeconds"]
                detail = "must not be set for readinessProbes"
                errors.append(invalid_value(f"{at}.terminationGracePeriodSeconds", value, detail))
        elif found.get("successThreshold") not in (None, 1):
            errors.append(invalid_value(f"{at}.successThreshold", found["successThreshold"], "must be 1"))
    return errors


def lifecycle(found: Obj, path: str, grace: int | None) -> list[FieldError]:
    errors: list[FieldError] = []
    for key in ("postStart", "preStop"):
        if found.get(key) is not None:
            errors += _handler(found[key], f"{path}.{key}", grace)
    return errors
