"""Parse the options of each verb from the query (for DELETE also the body), with kube-apiserver's error texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from koord.api.kubernetes.meta import DeleteOptions
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.api_errors import ApiFieldError, StatusError, bad_request
from koord.values import duration

FieldValidation = Literal["Ignore", "Warn", "Strict"]

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")


def query_bool(query: Mapping[str, str], name: str) -> bool | None:
    """Return a boolean query parameter, None when absent. Anything but a spelled-out false is true, as upstream."""
    value = query.get(name)
    return None if value is None else value.lower() not in ("false", "0")


def query_int(query: Mapping[str, str], name: str) -> int | None:
    value = query.get(name)
    if value is None or value == "":
        return None
    if not _WHOLE.fullmatch(value):
        raise bad_request(f'strconv.ParseInt: parsing "{value}": invalid syntax')
    return int(value)


def check_timeout(value: str) -> None:
    """Raise for a `timeout` that is no duration. Nothing takes so long here that it would matter which."""
    try:
        duration.parse(value)
    except duration.DurationError as error:
        raise bad_request(f"invalid timeout specified in the request URL - {error}") from None


def _raise_if_any(kind: str, errors: Sequence[ApiFieldError]) -> None:
    if errors:
        raise api_errors.invalid(kind, "meta.k8s.io", "", errors)


def _dry_run_errors(values: Sequence[str]) -> list[ApiFieldError]:
    if all(value == "All" for value in values):
        return []
    shown = msgspec.json.encode(list(values)).decode()
    return [ApiFieldError("dryRun", "FieldValueNotSupported", f'Unsupported value: {shown}: supported values: "All"')]


class WriteOptions(msgspec.Struct, frozen=True):
    dry_run: bool = False
    field_manager: str = ""
    field_validation: FieldValidation = "Warn"
    force: bool | None = None
    stated_validation: str = ""  # as the client put it; webhooks see that


NO_OPTIONS = WriteOptions()
_VALIDATIONS: dict[str, FieldValidation] = {"": "Warn", "Ignore": "Ignore", "Strict": "Strict", "Warn": "Warn"}


def write_options(query: Mapping[str, str], kind: str) -> WriteOptions:
    """Parse the options of a write. `kind` is CreateOptions, UpdateOptions or PatchOptions."""
    if not query:
        return NO_OPTIONS
    errors: list[ApiFieldError] = []
    manager = query.get("fieldManager", "")
    if len(manager.encode()) > 128:
        errors.append(api_errors.too_long("fieldManager", 128))
    elif not manager.isprintable():
        bad = next(i for i, c in enumerate(manager) if not c.isprintable())
        detail = f"invalid character '\\x{ord(manager[bad]):02x}' (at position {bad})"
        errors.append(api_errors.invalid_value("fieldManager", manager, detail))
    dry_run = query.get("dryRun")
    if dry_run is not None:
        errors += _dry_run_errors([dry_run])
    wanted = query.get("fieldValidation", "")
    validation = _VALIDATIONS.get(wanted)
    if validation is None:
        errors.append(api_errors.not_supported("fieldValidation", wanted, ("", "Ignore", "Strict", "Warn")))
    _raise_if_any(kind, errors)
    return WriteOptions(dry_run is not None, manager, validation or "Warn", query_bool(query, "force"), wanted)


def options_object(kind: str, options: WriteOptions) -> dict[str, Any]:
    """Return the options of a write as webhooks see them; to them a patch is an update."""
    body: dict[str, Any] = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if options.dry_run:
        body["dryRun"] = ["All"]
    if options.field_manager:
        body["fieldManager"] = options.field_manager
    if options.stated_validation:
        body["fieldValidation"] = options.stated_validation
    return body


class ListOptions(msgspec.Struct, frozen=True):
    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    timeout_s: int | None = None
    bookmarks: bool = False
    send_initial_events: bool | None = None


NO_LIST_OPTIONS = ListOptions()


def list_options(query: Mapping[str, str], *, watch: bool) -> ListOptions:
    if not query:
        return NO_LIST_OPTIONS
    found = ListOptions(
        label_selector=query.get("labelSelector", ""),
        field_selector=query.get("fieldSelector", ""),
        limit=max(query_int(query, "limit") or 0, 0),
        continue_token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        resource_version_match=query.get("resourceVersionMatch", ""),
        timeout_s=query_int(query, "timeoutSeconds"),
        bookmarks=query_bool(query, "allowWatchBookmarks") or False,
        send_initial_events=query_bool(query, "sendInitialEvents"),
    )
    if found.resource_version_match or found.send_initial_events is not None:
        _raise_if_any("ListOptions", _match_errors(found, watch))
    return found


def _match_errors(options: ListOptions, watch: bool) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    match = options.resource_version_match
    if watch:
        if match and options.send_initial_events is None:
            errors.append(_no_match("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
        if options.send_initial_events is not None and match != "NotOlderThan":
            errors.append(_no_match("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
        if options.continue_token:
            errors.append(api_errors.forbidden_field("continue", "continue is forbidden for watch"))
        return errors
    if options.send_initial_events is not None:
        return [api_errors.forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list")]
    if not options.resource_version:
        errors.append(_no_match("resourceVersionMatch is forbidden unless resourceVersion is provided"))
    if options.continue_token:
        errors.append(_no_match("resourceVersionMatch is forbidden when continue is provided"))
    if match not in ("Exact", "NotOlderThan"):
        errors.append(api_errors.not_supported("resourceVersionMatch", match, ("Exact", "NotOlderThan", "")))
    if match == "Exact" and options.resource_version == "0":
        errors.append(_no_match('resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
    return errors


def _no_match(detail: str) -> ApiFieldError:
    return api_errors.forbidden_field("resourceVersionMatch", detail)


NO_DELETE_OPTIONS = DeleteOptions()
_POLICIES = ("Foreground", "Background", "Orphan")


def delete_options(query: Mapping[str, str], body: Any) -> DeleteOptions:
    """Parse DeleteOptions. `body` is the decoded object or None; a body wins over the query."""
    if body is None and not query:
        return NO_DELETE_OPTIONS
    if body is None:
        found = DeleteOptions(
            grace_period_seconds=query_int(query, "gracePeriodSeconds"),
            orphan_dependents=query_bool(query, "orphanDependents"),
            propagation_policy=query.get("propagationPolicy"),
            dry_run=(query["dryRun"],) if "dryRun" in query else (),
        )
    else:
        found = _from_body(body)
    errors = _dry_run_errors(found.dry_run)
    policy = found.propagation_policy
    if policy is not None and found.orphan_dependents is not None:
        detail = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(api_errors.invalid_value("propagationPolicy", policy, detail))
    elif policy is not None and policy not in _POLICIES:
        errors.append(api_errors.not_supported("propagationPolicy", policy, (*_POLICIES, "nil")))
    _raise_if_any("DeleteOptions", errors)
    return found


def _from_body(body: Any) -> DeleteOptions:
    if not isinstance(body, dict):
        raise bad_request("couldn't get version/kind; json parse error: the body is not an object")
    kind = body.get("kind", "")
    if kind not in ("", "DeleteOptions"):
        version = body.get("apiVersion", "")
        raise bad_request(
            f'no kind "{kind}" is registered for version "{version}" in scheme "pkg/runtime/scheme.go:111"'
        )
    try:
        return msgspec.convert({k: v for k, v in body.items() if v is not None}, DeleteOptions)
    except msgspec.ValidationError as error:
        raise bad_request(f"cannot read DeleteOptions: {error}") from None


def parse_resource_version(version: str, *, invalid: Literal["list", "other"] = "other") -> int:
    """Parse a resourceVersion; 0 when it is empty. The error for a bad one depends on the verb."""
    if not version:
        return 0
    if version.isascii() and version.isdigit() and len(version) <= 20:
        return int(version)
    why = f'resourceVersion: Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
    if invalid == "list":
        raise bad_request(f"invalid resource version: {why}")
    raise StatusError(500, "", why)


def resource_version_too_large(asked: int, current: int) -> StatusError:
    """Return the error for a revision in the future: the client has talked to a server that knows more."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return StatusError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {asked}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        headers={"Retry-After": "1"},
    )
