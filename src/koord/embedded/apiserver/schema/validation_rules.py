"""The rules in CEL of a CRD's schema (x-kubernetes-validations): they are checked when the CRD is written, and
evaluated when its objects are.

A rule sees the value at its place as `self`, and as `oldSelf` what was there before an update, where that can be told:
items of a list that is no map of keys cannot be. A rule that does not speak of `oldSelf` is not evaluated for a value
that did not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from koord.cel.evaluation import COST_LIMIT_EXCEEDED, evaluate, names_in, unknown_names
from koord.cel.functions import OptionalValue
from koord.cel.syntax import CelError, Node
from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, required
from koord.embedded.apiserver.schema.rule_cost import estimated_cost
from koord.embedded.apiserver.schema.rule_types import typed_value, undefined_fields
from koord.embedded.apiserver.schema.schema_node import SchemaNode, ValidationRule

ItemCorrelation = Callable[[list[Any], Any, SchemaNode], Sequence[Any] | None]

ABSENT: Any = object()
MAX_RULE_STEPS = 200_000  # of one evaluation
COST_BUDGET = 10_000_000  # of one rule, estimated for the largest object that its schema allows
_VARIABLES = frozenset(("self", "oldSelf"))
_REASONS = ("FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate")
_TOO_COSTLY = (
    "estimated rule cost exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, "
    "maxProperties, and maxLength where arrays, maps, and strings are declared)"
)
_REQUEST_BYTES = 3 << 20  # the largest request: what bounds a list without maxItems


# -- when the CRD is written


def definition_rule_errors(
    node: SchemaNode, path: str, *, times: int = 1, correlatable: bool = True
) -> Iterator[ApiFieldError]:
    """Yield the errors of every rule below a place that occurs up to `times` in one object."""
    if not node.has_validations:
        return
    for at, rule in enumerate(node.validations):
        where = f"{path}.x-kubernetes-validations[{at}]"
        yield from _rule_errors(rule, node, where, times, correlatable=correlatable)
    for key, field in node.fields.items():
        yield from definition_rule_errors(field, f"{path}.properties[{key}]", times=times, correlatable=correlatable)
    if node.values is not None:
        many = times * max_length(node)
        yield from definition_rule_errors(
            node.values, f"{path}.additionalProperties", times=many, correlatable=correlatable
        )
    if node.items is not None:
        keyed = correlatable and node.list_type == "map"
        many = times * max_length(node)
        yield from definition_rule_errors(node.items, f"{path}.items", times=many, correlatable=keyed)


def _rule_errors(
    rule: ValidationRule, node: SchemaNode, path: str, times: int, *, correlatable: bool
) -> Iterator[ApiFieldError]:
    if not rule.text.strip():
        yield required(f"{path}.rule", "rule is not specified")
        return
    tree = rule.tree
    yield from _expression_errors(rule.text, tree, node, f"{path}.rule", optional_old=rule.optional_old)
    if not isinstance(tree, CelError):
        if not correlatable and "oldSelf" in names_in(tree):
            detail = "oldSelf cannot be used on the uncorrelatable portion of the schema"
            yield invalid_value(f"{path}.rule", rule.text, detail)
        cost = times * estimated_cost(tree, node, max_length)
        if cost > COST_BUDGET:
            factor = cost / COST_BUDGET
            shown = "more than 100x" if factor > 100 else f"{factor:.1f}x"
            yield forbidden_field(f"{path}.rule", _TOO_COSTLY.format(factor=shown))
    if rule.message_expression:
        where = f"{path}.messageExpression"
        yield from _expression_errors(
            rule.message_expression, rule.message_tree, node, where, optional_old=rule.optional_old
        )
    if "\n" in rule.message:
        yield invalid_value(f"{path}.message", rule.message, "message must not contain line breaks")
    if rule.reason and rule.reason not in _REASONS:
        yield invalid_value(f"{path}.reason", rule.reason, f"must be one of {', '.join(_REASONS)}")


def _expression_errors(
    text: str, tree: Node | CelError | None, node: SchemaNode, path: str, *, optional_old: bool
) -> Iterator[ApiFieldError]:
    if tree is None or isinstance(tree, CelError):
        why = tree.message if tree is not None else "expression is not specified"
        yield invalid_value(path, text, f"compilation failed: {why}")
        return
    known = {"self": node, "oldSelf": None if optional_old else node}
    for why in (*unknown_names(tree, _VARIABLES), *undefined_fields(tree, known, root=node)):
        yield invalid_value(path, text, f"compilation failed: {why}")


def max_length(node: SchemaNode) -> int:
    """Return how many items or entries a value can have: as stated, or as fit into a request."""
    stated = node.rules.get("maxItems" if node.kind == "list" else "maxProperties")
    if stated is not None:
        return int(stated)
    child = node.items if node.kind == "list" else node.values
    least = {"string": 2, "object": 2, "map": 2, "list": 2, "boolean": 4}.get(child.kind if child else "", 1)
    return _REQUEST_BYTES // (least + 1)


# -- when an object is written


class RuleEvaluation:
    """Evaluates the rules of a schema on an object. `correlate` finds the old items of a list's items."""

    def __init__(self, correlate: ItemCorrelation, is_equal: Callable[[Any, Any], bool]) -> None:
        self._correlate = correlate
        self._is_equal = is_equal

    def errors(self, value: Any, node: SchemaNode, path: str = "", old: Any = ABSENT) -> list[ApiFieldError]:
        if not node.has_validations or value is None:
            return []
        found: list[ApiFieldError] = []
        is_unchanged = old is not ABSENT and self._is_equal(value, old)
        for rule in node.validations:
            is_due = not is_unchanged or rule.is_transition
            if is_due and not (rule.is_transition and old is ABSENT and not rule.optional_old):
                found += _violations(rule, value, node, path, old)
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for key in sorted(value):
                child = node.fields.get(key, node.values)
                if child is not None:
                    at = (f"{path}.{key}" if path else key) if key in node.fields else f"{path}[{key}]"
                    found += self.errors(value[key], child, at, before.get(key, ABSENT))
        elif isinstance(value, list) and node.items is not None:
            known = self._correlate(value, old, node)
            for at, item in enumerate(value):
                was = ABSENT if not known or known[at] is None else known[at]
                found += self.errors(item, node.items, f"{path}[{at}]", was)
        return found


def _violations(rule: ValidationRule, value: Any, node: SchemaNode, path: str, old: Any) -> list[ApiFieldError]:
    variables = {"self": typed_value(value, node)}
    if rule.is_transition:
        before = None if old is ABSENT else typed_value(old, node)
        variables["oldSelf"] = before
        if rule.optional_old:
            variables["oldSelf"] = OptionalValue() if old is ABSENT else OptionalValue(before)
    if isinstance(rule.tree, CelError):
        return [_violation(rule, value, path, f"rule compilation error: {rule.tree.message}")]
    holds = evaluate(rule.tree, variables, MAX_RULE_STEPS)
    if holds is True:
        return []
    if isinstance(holds, CelError):
        if holds.message == COST_LIMIT_EXCEEDED:
            return [_violation(rule, value, path, f"call cost exceeds limit for rule: {rule.text}")]
        return [_violation(rule, value, path, f"{holds.message} evaluating rule: {rule.text}")]
    return [_violation(rule, value, path, _message(rule, variables))]


def _message(rule: ValidationRule, variables: Mapping[str, Any]) -> str:
    if rule.message_tree is not None and not isinstance(rule.message_tree, CelError):
        made = evaluate(rule.message_tree, variables, MAX_RULE_STEPS)
        if isinstance(made, str) and made.strip() and "\n" not in made:
            return made
    return rule.message or f"failed rule: {rule.text.strip()}"


def _violation(rule: ValidationRule, value: Any, path: str, message: str) -> ApiFieldError:
    shown = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else value
    where = (path + rule.field_path if path else rule.field_path.removeprefix(".")) or "<nil>"
    error = invalid_value(where, shown, message)
    if rule.reason in ("", "FieldValueInvalid"):
        return error
    words = {"FieldValueForbidden": "Forbidden", "FieldValueRequired": "Required value"}
    word = words.get(rule.reason)
    text = f"{word}: {message}" if word else f'Duplicate value: "{shown}"'
    return ApiFieldError(where, rule.reason, text)
