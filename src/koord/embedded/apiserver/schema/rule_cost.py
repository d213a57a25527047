"""Estimate what a CEL rule costs at most: its steps, those of a macro for each element that the schema allows."""

from __future__ import annotations

from collections.abc import Callable

from koord.cel.syntax import (
    Call,
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
from koord.embedded.apiserver.schema.rule_types import schema_of, variable_schemas
from koord.embedded.apiserver.schema.schema_node import SchemaNode

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
