"""This module validates probes and lifecycle handlers of containers."""

from __future__ import annotations

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, required
from koord.embedded.apiserver.kinds import validators
from koord.values import names


def port_or_name_errors(value: int | str, path: str) -> validators.FieldErrors:
    if isinstance(value, int):
        return validators.PORT_NUMBER(value, path)
    return [invalid_value(path, value, reason) for reason in names.port_name(value)]


def _exec_errors(found: Obj, path: str) -> validators.FieldErrors:
    return validators.NO_ERRORS if found.get("command") else [required(f"{path}.command")]


def _http_header_errors(found: list[Obj], path: str) -> validators.FieldErrors:
    return [
        invalid_value(path, header.get("name", ""), reason)
        for header in found
        for reason in names.http_header_name(header.get("name", ""))
    ]


_HANDLERS: dict[str, validators.Validator] = {
    "exec": _exec_errors,
    "httpGet": validators.fields(
        {
            "port": validators.even_if_absent(port_or_name_errors, 0),
            "scheme": validators.even_if_absent(validators.one_of("HTTP", "HTTPS")),
            "httpHeaders": _http_header_errors,
        }
    ),
    "tcpSocket": validators.fields({"port": validators.even_if_absent(port_or_name_errors, 0)}),
    "grpc": validators.fields({"port": validators.even_if_absent(validators.PORT_NUMBER, 0)}),
}


def _handler_errors(found: Obj, path: str, grace: int | None) -> list[ApiFieldError]:
    """Return the errors of a handler, which must have exactly one action; `grace` bounds a sleep, in seconds."""
    errors: list[ApiFieldError] = []
    chosen = 0
    for key in ("exec", "httpGet", "tcpSocket", "grpc", "sleep"):
        if found.get(key) is None:
            continue
        chosen += 1
        at = f"{path}.{key}"
        if chosen > 1:
            errors.append(forbidden_field(at, "may not specify more than 1 handler type"))
        elif key == "sleep":
            errors += _sleep_errors(found[key], at, grace)
        else:
            errors += _HANDLERS[key](found[key], at)
    if not chosen:
        errors.append(required(path, "must specify a handler type"))
    return errors


def _sleep_errors(found: Obj, path: str, grace: int | None) -> validators.FieldErrors:
    seconds = found.get("seconds", 0)
    if grace is None or 0 <= seconds <= grace:
        return validators.NO_ERRORS
    detail = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
    return [invalid_value(path, seconds, detail)]


_TIMING_RULES = validators.fields(
    dict.fromkeys(
        ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"),
        validators.NOT_NEGATIVE,
    )
)


def _probe_errors(found: Obj, path: str) -> list[ApiFieldError]:
    errors = _handler_errors({key: found[key] for key in _HANDLERS if key in found}, path, None)
    errors += _TIMING_RULES(found, path)
    grace = found.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        errors.append(invalid_value(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0"))
    return errors


def container_probe_errors(container: Obj, path: str) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        found = container.get(key)
        if found is None:
            continue
        at = f"{path}.{key}"
        errors += _probe_errors(found, at)
        if key == "readinessProbe":
            if found.get("terminationGracePeriodSeconds") is not None:
                value = found["terminationGracePeriodSeconds"]
                detail = "must not be set for readinessProbes"
                errors.append(invalid_value(f"{at}.terminationGracePeriodSeconds", value, detail))
        elif found.get("successThreshold") not in (None, 1):
            errors.append(invalid_value(f"{at}.successThreshold", found["successThreshold"], "must be 1"))
    return errors


def lifecycle_errors(found: Obj, path: str, grace: int | None) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    for key in ("postStart", "preStop"):
        if found.get(key) is not None:
            errors += _handler_errors(found[key], f"{path}.{key}", grace)
    return errors
