"""This module validates the pod failure policy and the success policy of jobs."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.api_errors import (
    ApiFieldError,
    duplicate,
    invalid_value,
    not_supported,
    required,
    too_many,
)
from koord.embedded.apiserver.kinds import label_validation
from koord.embedded.apiserver.kinds.validators import one_of
from koord.values.go_format import integer, quoted

Obj = dict[str, Any]
_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_OPERATORS = ("In", "NotIn")
MAX_RULES = 20
_INTERVAL_PARTS = (
    "the fragment {} violates the requirement that an index interval can have at most two parts separated by '-'"
)
MAX_EXIT_CODES = 255


def _go_string_list(values: tuple[str, ...]) -> str:
    return "[" + " ".join(quoted(value) for value in values) + "]"


def _choice_errors(value: str, path: str, allowed: tuple[str, ...]) -> list[ApiFieldError]:
    if not value:
        return [required(path, f"valid values: {_go_string_list(allowed)}")]
    return [] if value in allowed else [not_supported(path, value, allowed)]


def failure_policy_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    template = (spec.get("template") or {}).get("spec") or {}
    known = {c.get("name", "") for key in ("containers", "initContainers") for c in template.get(key) or ()}
    errors: list[ApiFieldError] = []
    rules = spec["podFailurePolicy"].get("rules") or []
    if len(rules) > MAX_RULES:
        errors.append(too_many(f"{path}.rules", len(rules), MAX_RULES))
    for i, found in enumerate(rules):
        errors += _failure_rule_errors(found, f"{path}.rules[{i}]", known, spec)
    return errors


def _failure_rule_errors(found: Obj, path: str, known: set[str], spec: Obj) -> list[ApiFieldError]:
    action = found.get("action", "")
    errors = _choice_errors(action, f"{path}.action", _ACTIONS)
    if action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
        errors.append(invalid_value(f"{path}.action", action, "requires the backoffLimitPerIndex to be set"))
    codes, conditions = found.get("onExitCodes"), found.get("onPodConditions")
    if codes is not None:
        errors += _exit_code_errors(codes, f"{path}.onExitCodes", known)
    for i, condition in enumerate(conditions or ()):
        at = f"{path}.onPodConditions[{i}]"
        errors += label_validation.qualified_name_errors(condition.get("type", ""), f"{at}.type")
        errors += one_of("False", "True", "Unknown")(condition.get("status", ""), f"{at}.status")
    if codes is not None and conditions:
        errors.append(_invalid_without_value(path, "specifying both OnExitCodes and OnPodConditions is not supported"))
    if codes is None and not conditions:
        errors.append(_invalid_without_value(path, "specifying one of OnExitCodes and OnPodConditions is required"))
    return errors


def _invalid_without_value(path: str, detail: str) -> ApiFieldError:
    """Return an invalid-value error without the value, which is how kube-apiserver reports it here."""
    return ApiFieldError(path, "FieldValueInvalid", f"Invalid value: {detail}")


def _exit_code_errors(found: Obj, path: str, known: set[str]) -> list[ApiFieldError]:
    operator, values = found.get("operator", ""), found.get("values") or []
    errors = _choice_errors(operator, f"{path}.operator", _OPERATORS)
    name = found.get("containerName")
    if name is not None and name not in known:
        detail = "must be one of the container or initContainer names in the pod template"
        errors.append(invalid_value(f"{path}.containerName", name, detail))
    at = f"{path}.values"
    if not values:
        errors.append(invalid_value(at, values, "at least one value is required"))
    elif len(values) > MAX_EXIT_CODES:
        errors.append(too_many(at, len(values), MAX_EXIT_CODES))
    seen: set[int] = set()
    for i, value in enumerate(values):
        if operator == "In" and value == 0:
            errors.append(invalid_value(f"{at}[{i}]", value, "must not be 0 for the In operator"))
        if value in seen:
            errors.append(duplicate(f"{at}[{i}]", value))
        seen.add(value)
    if values != sorted(values):
        errors.append(invalid_value(at, values, "must be ordered"))
    return errors


# Success -----------------------------------------------------------------------------------------------------------


def success_policy_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    rules, at = spec["successPolicy"].get("rules") or [], f"{path}.rules"
    errors: list[ApiFieldError] = []
    if not rules:
        detail = "at least one rules must be specified when the successPolicy is specified"
        errors.append(required(at, detail))
    if len(rules) > MAX_RULES:
        errors.append(too_many(at, len(rules), MAX_RULES))
    for i, found in enumerate(rules):
        errors += _success_rule_errors(found, f"{at}[{i}]", spec.get("completions") or 0)
    return errors


def _success_rule_errors(found: Obj, path: str, completions: int) -> list[ApiFieldError]:
    count, indexes = found.get("succeededCount"), found.get("succeededIndexes")
    if count is None and indexes is None:
        return [required(path, "at least one of succeededCount or succeededIndexes must be specified")]
    errors: list[ApiFieldError] = []
    total = 0
    if indexes is not None:
        total, refusal = _count_indexes(indexes, completions)
        if refusal:
            detail = f"error parsing succeededIndexes: {refusal}"
            errors.append(invalid_value(f"{path}.succeededIndexes", indexes, detail))
    if count is not None:
        at = f"{path}.succeededCount"
        if count < 0:
            errors.append(invalid_value(at, count, "must be greater than or equal to 0"))
        if count > completions:
            detail = f"must be less than or equal to {completions} (the number of specified completions)"
            errors.append(invalid_value(at, count, detail))
        if indexes is not None and count > total:
            detail = (
                f"must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            )
            errors.append(invalid_value(at, count, detail))
    return errors


def _count_indexes(text: str, completions: int) -> tuple[int, str]:
    """Return how many indexes a text such as "0-2,5" names, and why it cannot be parsed, empty when it can."""
    if not text:
        return 0, ""
    total, last = 0, -1
    for part in text.split(","):
        ends = part.split("-")
        if len(ends) > 2:
            return (
                0,
                _INTERVAL_PARTS.format(quoted(part)),
            )
        numbers = []
        for end in ends:
            number = integer(end)
            if number is None:
                return 0, f"cannot convert string to integer for index: {quoted(end)}"
            if number >= completions:
                return 0, f"too large index: {quoted(end)}"
            numbers.append(number)
        if last >= numbers[0]:
            return 0, f"non-increasing order, previous: {last}, current: {numbers[0]}"
        if len(numbers) == 2 and numbers[0] >= numbers[1]:
            return 0, f"non-increasing order, previous: {numbers[0]}, current: {numbers[1]}"
        total += numbers[-1] - numbers[0] + 1
        last = numbers[-1]
    return total, ""
