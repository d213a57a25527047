"""This module holds the strategies of ValidatingAdmissionPolicy and ValidatingAdmissionPolicyBinding."""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, duplicate, invalid_value, required
from koord.embedded.apiserver.kinds import strategy, validators
from koord.embedded.apiserver.kinds.cel_expression import expression_errors, match_condition_errors
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_absent
from koord.embedded.apiserver.kinds.validators import one_of
from koord.embedded.apiserver.kinds.webhook_configuration import rule_errors

VARIABLES = frozenset(("object", "oldObject", "request", "params", "namespaceObject", "variables"))
REASONS = ("Unauthorized", "Forbidden", "Invalid", "RequestEntityTooLarge")
_ACTIONS = ("Audit", "Deny", "Warn")


def _default_match(match: Obj | None) -> None:
    if match is None:
        return
    fill_absent(match, matchPolicy="Equivalent", namespaceSelector={}, objectSelector={})
    for rule in (*(match.get("resourceRules") or ()), *(match.get("excludeResourceRules") or ())):
        fill_absent(rule, scope="*")


def _default_policy(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, failurePolicy="Fail")
    _default_match(spec.get("matchConstraints"))


def _default_binding(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    _default_match(spec.get("matchResources"))
    if spec.get("paramRef") is not None:
        fill_absent(spec["paramRef"], parameterNotFoundAction="Deny")


def _match_errors(match: Obj, path: str) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    for field in ("resourceRules", "excludeResourceRules"):
        for i, rule in enumerate(match.get(field) or ()):
            errors += rule_errors(rule, f"{path}.{field}[{i}]")
    errors += one_of("Equivalent", "Exact")(match.get("matchPolicy", "Equivalent"), f"{path}.matchPolicy")
    errors += validators.label_selector_errors(match.get("namespaceSelector"), f"{path}.namespaceSelector")
    errors += validators.label_selector_errors(match.get("objectSelector"), f"{path}.objectSelector")
    return errors


def _expression_errors(text: str, path: str) -> list[ApiFieldError]:
    return expression_errors(text, path, VARIABLES, blank="expression is not specified")


def _named_expressions(rows: list[Obj], path: str) -> Iterator[ApiFieldError]:
    seen: set[str] = set()
    for i, row in enumerate(rows):
        name = row.get("name", "")
        if not name:
            yield required(f"{path}[{i}].name")
        elif name in seen:
            yield duplicate(f"{path}[{i}].name", name)
        seen.add(name)
        yield from _expression_errors(row.get("expression", ""), f"{path}[{i}].expression")


def _policy_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj.get("spec") or {}
    errors = [*one_of("Fail", "Ignore")(spec["failurePolicy"], "spec.failurePolicy")]
    match = spec.get("matchConstraints")
    if match is None:
        errors.append(required("spec.matchConstraints"))
    else:
        errors += _match_errors(match, "spec.matchConstraints")
        if not match.get("resourceRules"):
            errors.append(required("spec.matchConstraints.resourceRules"))
    errors += _named_expressions(spec.get("variables") or [], "spec.variables")
    errors += match_condition_errors(spec.get("matchConditions") or [], "spec.matchConditions", VARIABLES)
    validations, annotations = spec.get("validations") or [], spec.get("auditAnnotations") or []
    if not validations and not annotations:
        detail = "validations or auditAnnotations must contain at least one item"
        errors += [required("spec.validations", detail), required("spec.auditAnnotations", detail)]
    for i, row in enumerate(validations):
        errors += _validation_errors(row, f"spec.validations[{i}]")
    for i, row in enumerate(annotations):
        errors += _expression_errors(row.get("valueExpression", ""), f"spec.auditAnnotations[{i}].valueExpression")
    return errors


def _validation_errors(row: Obj, path: str) -> list[ApiFieldError]:
    errors = _expression_errors(row.get("expression", ""), f"{path}.expression")
    if row.get("messageExpression"):
        errors += _expression_errors(row["messageExpression"], f"{path}.messageExpression")
    if "\n" in (row.get("message") or "").strip():
        errors.append(invalid_value(f"{path}.message", row["message"], "message must not contain line breaks"))
    if row.get("reason"):
        errors += one_of(*REASONS)(row["reason"], f"{path}.reason")
    return errors


def _binding_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj.get("spec") or {}
    errors: list[ApiFieldError] = []
    if not spec.get("policyName"):
        errors.append(required("spec.policyName"))
    if spec.get("matchResources") is not None:
        errors += _match_errors(spec["matchResources"], "spec.matchResources")
    actions = spec.get("validationActions") or []
    if not actions:
        errors.append(required("spec.validationActions", "at least one validation action is required"))
    for i, action in enumerate(actions):
        errors += one_of(*_ACTIONS)(action, f"spec.validationActions[{i}]")
        if action in actions[:i]:
            errors.append(duplicate(f"spec.validationActions[{i}]", action))
    if {"Deny", "Warn"} <= set(actions):
        detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API "
        detail += "response and headers serves no purpose)"
        errors.append(invalid_value("spec.validationActions", actions, detail))
    return errors


VALIDATING_ADMISSION_POLICY = KindStrategy(
    default=_default_policy,
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_policy_errors,
    validate_update=lambda new, old: _policy_errors(new),
)
VALIDATING_ADMISSION_POLICY_BINDING = KindStrategy(
    default=_default_binding,
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_binding_errors,
    validate_update=lambda new, old: _binding_errors(new),
)
