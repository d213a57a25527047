"""Parse the options of each verb from the query (for DELETE also the body), with kube-apiserver's error
texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.refusal import FieldError, Refusal, bad_request

FieldValidation = Literal["Ignore", "Warn", "Strict"]

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")


def flag(query: Mapping[str, str], name: str) -> bool | None:
    """Return a boolean query parameter, None when it is absent. Anything but a spelled-out false is true, as
    in kube-apiserver.
    """
    value = query.get(name)
    return None if value is None else value.lower() not in ("false", "0")


def number(query: Mapping[str, str], name: str) -> int | None:
    value = query.get(name)
    if value is None or value == "":
        return None
    if not _WHOLE.fullmatch(value):
        raise bad_request(f'strconv.ParseInt: parsing "{value}": invalid syntax')
    return int(value)


def _refuse(kind: str, errors: Sequence[FieldError]) -> None:
    if errors:
        raise refusal.invalid(kind, "meta.k8s.io", "", errors)


def _dry_run_errors(values: Sequence[str]) -> list[FieldError]:
    if all(value == "All" for value in values):
        return []
    shown = msgspec.json.encode(list(values)).decode()
    return [FieldError("dryRun", "FieldValueNotSupported", f'Unsupported value: {shown}: supported values: "All"')]


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
    errors: list[FieldError] = []
    manager = query.get("fieldManager", "")
    if len(manager.encode()) > 128:
        errors.append(refusal.too_long("fieldManager", 128))
    elif not manager.isprintable():
        bad = next(i for i, c in enumerate(manager) if not c.isprintable())
        detail = f"invalid character '\\x{ord(manager[bad]):02x}' (at position {bad})"
        errors.append(refusal.invalid_value("fieldManager", manager, detail))
    dry_run = query.get("dryRun")
    if dry_run is not None:
        errors += _dry_run_errors([dry_run])
    wanted = query.get("fieldValidation", "")
    validation = _VALIDATIONS.get(wanted)
    if validation is None:
        errors.append(refusal.not_supported("fieldValidation", wanted, ("", "Ignore", "Strict", "Warn")))
    _refuse(kind, errors)
    return WriteOptions(dry_run is not None, manager, validation or "Warn", flag(query, "force"), wanted)


def wire_options(kind: str, options: WriteOptions) -> dict[str, Any]:
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
    labels: str = ""
    fields: str = ""
    limit: int = 0
    token: str = ""
    version: str = ""
    match: str = ""
    timeout_s: int | None = None
    bookmarks: bool = False
    initial_events: bool | None = None


NO_LIST_OPTIONS = ListOptions()


def list_options(query: Mapping[str, str], *, watch: bool) -> ListOptions:
    if not query:
        return NO_LIST_OPTIONS
    found = ListOptions(
        labels=query.get("labelSelector", ""),
        fields=query.get("fieldSelector", ""),
        limit=max(number(query, "limit") or 0, 0),
        token=query.get("continue", ""),
        version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
        timeout_s=number(query, "timeoutSeconds"),
        bookmarks=flag(query, "allowWatchBookmarks") or False,
        initial_events=flag(query, "sendInitialEvents"),
    )
    if found.match or found.initial_events is not None:
        _refuse("ListOptions", _match_errors(found, watch))
    return found


def _match_errors(options: ListOptions, watch: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    match = options.match
    if watch:
        if match and options.initial_events is None:
            errors.append(_no_match("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
        if options.initial_events is not None and match != "NotOlderThan":
            errors.append(_no_match("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
        if options.token:
            errors.append(refusal.forbidden_field("continue", "continue is forbidden for watch"))
        return errors
    if options.initial_events is not None:
        return [refusal.forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list")]
    if not options.version:
        errors.append(_no_match("resourceVersionMatch is forbidden unless resourceVersion is provided"))
    if options.token:
        errors.append(_no_match("resourceVersionMatch is forbidden when continue is provided"))
    if match not in ("Exact", "NotOlderThan"):
        errors.append(refusal.not_supported("resourceVersionMatch", match, ("Exact", "NotOlderThan", "")))
    if match == "Exact" and options.version == "0":
        errors.append(_no_match('resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
    return errors


def _no_match(detail: str) -> FieldError:
    return refusal.forbidden_field("resourceVersionMatch", detail)


class Preconditions(msgspec.Struct, frozen=True, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(msgspec.Struct, frozen=True, rename="camel"):
    grace_period_seconds: int | None = None
    preconditions: Preconditions | None = None
    orphan_dependents: bool | None = None
    propagation_policy: str | None = None
    dry_run: list[str] = []

    @property
    def is_dry_run(self) -> bool:
        return bool(self.dry_run)


NO_DELETE_OPTIONS = DeleteOptions()
_POLICIES = ("Foreground", "Background", "Orphan")


def delete_options(query: Mapping[str, str], body: Any) -> DeleteOptions:
    """Parse DeleteOptions. `body` is the decoded object or None; a body wins over the query."""
    if body is None and not query:
        return NO_DELETE_OPTIONS
    if body is None:
        found = DeleteOptions(
            grace_period_seconds=number(query, "gracePeriodSeconds"),
            orphan_dependents=flag(query, "orphanDependents"),
            propagation_policy=query.get("propagationPolicy"),
            dry_run=[query["dryRun"]] if "dryRun" in query else [],
        )
    else:
        found = _from_body(body)
    errors = _dry_run_errors(found.dry_run)
    policy = found.propagation_policy
    if policy is not None and found.orphan_dependents is not None:
        detail = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(refusal.invalid_value("propagationPolicy", policy, detail))
    elif policy is not None and policy not in _POLICIES:
        errors.append(refusal.not_supported("propagationPolicy", policy, (*_POLICIES, "nil")))
    _refuse("DeleteOptions", errors)
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


def revision_of(version: str, *, invalid: Literal["list", "other"] = "other") -> int:
    """Parse a resourceVersion; 0 when it is empty. The error for a bad one depends on the verb."""
    if not version:
        return 0
    if version.isascii() and version.isdigit() and len(version) <= 20:
        return int(version)
    why = f'resourceVersion: Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
    if invalid == "list":
        raise bad_request(f"invalid resource version: {why}")
    raise Refusal(500, "", why)


def too_large(asked: int, current: int) -> Refusal:
    """Return the error for a revision in the future: the client has talked to a server that knows more than
    this one.
    """
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Refusal(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {asked}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        headers={"Retry-After": "1"},
    )
