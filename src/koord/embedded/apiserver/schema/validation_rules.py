"""The rules in CEL of a CRD's schema (x-kubernetes-validations): they are checked when the CRD is written, and
evaluated when its objects are.

A rule sees the value at its place as `self`, and as `oldSelf` what was there before an update, where that can be told:
items of a list that is no map of keys cannot be. A rule that does not speak of `oldSelf` is not evaluated for a value
that did not change.

Values and fields of a schema as CEL sees them: numbers are doubles, dates are timestamps, and a field that the
schema does not have cannot be named.

Estimate what a CEL rule costs at most: its steps, those of a macro for each element that the schema allows.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from koord.cel.evaluation import COST_LIMIT_EXCEEDED, evaluate, names_in, unknown_names
from koord.cel.functions import OptionalValue
from koord.cel.syntax import (
    Call,
    CelError,
    Comprehension,
    Conditional,
    Identifier,
    ListOf,
    Literal,
    MapOf,
    Node,
    Presence,
    Select,
)
from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, required
from koord.embedded.apiserver.schema.schema_node import SchemaNode, ValidationRule
from koord.values import duration, timestamp

# Fields of every object, which a schema need not name.
_OBJECT_FIELDS = ("apiVersion", "kind", "metadata")


def typed_value(value: Any, node: SchemaNode | None) -> Any:
    """Return a JSON value with the types that its schema gives it."""
    if node is None or value is None:
        return value
    if isinstance(value, dict):
        return {key: typed_value(item, node.fields.get(key, node.values)) for key, item in value.items()}
    if isinstance(value, list):
        return [typed_value(item, node.items) for item in value]
    if node.kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if node.kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if node.kind == "string" and isinstance(value, str):
        return _typed_text(value, node.format)
    return value


def _typed_text(value: str, form: str) -> Any:
    """Return the text as its format says; as it is where it has another form, which validation reports."""
    try:
        if form in ("date-time", "date"):
            return timestamp.parse(value if form == "date-time" else f"{value}T00:00:00Z")
        if form == "duration":
            return timedelta(seconds=duration.parse_seconds(value))
        if form == "byte":
            return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        return value
    return value


def undefined_fields(tree: Node, known: dict[str, SchemaNode | None], root: SchemaNode) -> list[str]:
    """Return what an expression selects of variables with a schema and of their parts that the schemas do not have."""
    return list(dict.fromkeys(_undefined(tree, known, root=root)))


def schema_of(node: Node, known: dict[str, SchemaNode | None]) -> SchemaNode | None:
    """Return the schema of the value of an expression; None where it is not known."""
    match node:
        case Identifier(name):
            return known.get(name)
        case Select(operand, field):
            parent = schema_of(operand, known)
            return None if parent is None else parent.fields.get(field, parent.values)
        case Call("_[_]", (operand, _)):
            parent = schema_of(operand, known)
            return None if parent is None else parent.items or parent.values
        case Comprehension("filter", operand):
            return schema_of(operand, known)
    return None


def variable_schemas(macro: Comprehension, known: dict[str, SchemaNode | None]) -> dict[str, SchemaNode | None]:
    """Return the schemas of a macro's variables; keys, indexes and values that are not of the schema have none."""
    over = schema_of(macro.operand, known)
    if macro.macro == "cel.bind":
        return {macro.variable: over}
    if macro.value_variable:
        return {macro.variable: None, macro.value_variable: None if over is None else over.items or over.values}
    return {macro.variable: over.items if over is not None and over.kind == "list" else None}


def _undefined(node: Node, known: dict[str, SchemaNode | None], root: SchemaNode) -> Iterator[str]:
    match node:
        case Select(operand, field) | Presence(operand, field):
            yield from _undefined(operand, known, root)
            parent = schema_of(operand, known)
            if parent is not None and not _has_field(parent, field, is_root=parent is root):
                yield f"undefined field '{field}'"
        case Call(_, arguments, target):
            for part in (*(() if target is None else (target,)), *arguments):
                yield from _undefined(part, known, root)
        case Conditional(condition, yes, no):
            for part in (condition, yes, no):
                yield from _undefined(part, known, root)
        case ListOf(items):
            for part in items:
                yield from _undefined(part, known, root)
        case MapOf(entries):
            for entry in entries:
                for part in entry:
                    yield from _undefined(part, known, root)
        case Comprehension(_, operand, _, body, condition):
            yield from _undefined(operand, known, root)
            inner = {**known, **variable_schemas(node, known)}
            for part in (body, *(() if condition is None else (condition,))):
                yield from _undefined(part, inner, root)
        case Literal() | Identifier():
            return


def _has_field(schema: SchemaNode, field: str, *, is_root: bool) -> bool:
    if schema.kind == "any" or field in schema.fields or schema.values is not None:
        return True
    return (is_root or schema.embedded) and field in _OBJECT_FIELDS


_UNKNOWN_LENGTH = 1000  # of what the schema does not tell: a list that the expression itself makes
_PER_ELEMENT = frozenset(("isSorted", "sum", "min", "max", "indexOf", "lastIndexOf", "join", "@in"))
_ONCE = ("cel.bind", "optMap", "optFlatMap")  # macros without a loop


def estimated_cost(tree: Node, schema: SchemaNode, max_length: Callable[[SchemaNode], int]) -> int:
    return _cost(tree, {"self": schema, "oldSelf": schema}, max_length)


def _cost(node: Node, known: dict[str, SchemaNode | None], max_length: Callable[[SchemaNode], int]) -> int:
    def length(operand: Node) -> int:
        over = schema_of(operand, known)
        return max_length(over) if over is not None and over.kind in ("list", "map") else _UNKNOWN_LENGTH

    def cost(*parts: Node) -> int:
        return sum(_cost(part, known, max_length) for part in parts)

    match node:
        case Literal() | Identifier():
            return 1
        case Select(operand, _) | Presence(operand, _):
            return 1 + cost(operand)
        case Conditional(condition, yes, no):
            return 1 + cost(condition) + max(cost(yes), cost(no))
        case ListOf(items):
            return 1 + cost(*items)
        case MapOf(entries):
            return 1 + sum(cost(*entry) for entry in entries)
        case Call(function, arguments, target):
            parts = (*(() if target is None else (target,)), *arguments)
            walked = (target or arguments[-1]) if function in _PER_ELEMENT and parts else None
            return 1 + cost(*parts) + (length(walked) if walked is not None else 0)
        case Comprehension(macro, operand, _, body, condition):
            inner = {**known, **variable_schemas(node, known)}
            parts = (body, *(() if condition is None else (condition,)))
            each = 1 + sum(_cost(part, inner, max_length) for part in parts)
            times = 1 if macro in _ONCE else length(operand)
            return cost(operand) + times * each


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
