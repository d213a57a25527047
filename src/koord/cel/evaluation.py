"""Evaluate a parsed CEL expression, and check beforehand that it names only what there is.

`&&` and `||` ignore an error of one side when the other side decides. Every step costs, so that no expression runs for
long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from koord.cel.extension_functions import EXTENSION_FUNCTIONS, EXTENSION_METHODS
from koord.cel.functions import (
    STANDARD_FUNCTIONS,
    STANDARD_METHODS,
    TYPE_NAMES,
    CelType,
    EvaluationFault,
    OptionalValue,
    apply_function,
    has_field,
    select_field,
)
from koord.cel.kubernetes_functions import KUBERNETES_FUNCTIONS, KUBERNETES_METHODS
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

FUNCTIONS = {**STANDARD_FUNCTIONS, **EXTENSION_FUNCTIONS, **KUBERNETES_FUNCTIONS}
METHODS = {**STANDARD_METHODS, **EXTENSION_METHODS, **KUBERNETES_METHODS}
COST_LIMIT_EXCEEDED = "operation cancelled: actual cost limit exceeded"
MAX_STEPS = 100_000  # of one expression; Kubernetes bounds the cost in units of its own


def evaluate(node: Node, variables: Mapping[str, Any], max_steps: int = MAX_STEPS) -> Any | CelError:
    """Return the value of an expression, or why it has none."""
    try:
        return _Evaluation(max_steps).value(node, variables)
    except EvaluationFault as fault:
        return CelError(str(fault))


def names_in(node: Node) -> frozenset[str]:
    """Return every identifier in an expression."""
    match node:
        case Literal():
            return frozenset()
        case Identifier(name):
            return frozenset((name,))
        case Select(operand, _) | Presence(operand, _):
            return names_in(operand)
        case Conditional(condition, yes, no):
            return names_in(condition) | names_in(yes) | names_in(no)
        case ListOf(items):
            return frozenset[str]().union(*(names_in(item) for item in items))
        case MapOf(entries):
            return frozenset[str]().union(*(names_in(part) for entry in entries for part in entry))
        case Comprehension(_, operand, _, body, condition):
            return names_in(operand) | names_in(body) | (frozenset() if condition is None else names_in(condition))
        case Call(_, arguments, target):
            parts = arguments if target is None else (target, *arguments)
            return frozenset[str]().union(*(names_in(part) for part in parts))


def unknown_names(node: Node, variables: frozenset[str]) -> list[str]:
    """Return what an expression names that is neither a variable nor a function here, for its check beforehand."""
    match node:
        case Literal():
            return []
        case Identifier(name):
            if name in variables or name in TYPE_NAMES:
                return []
            hint = ": expressions cannot ask for authorization here" if name == "authorizer" else ""
            return [f"undeclared reference to '{name}' (in container ''){hint}"]
        case Select(operand, _) | Presence(operand, _):
            return unknown_names(operand, variables)
        case Conditional(condition, yes, no):
            return [found for part in (condition, yes, no) for found in unknown_names(part, variables)]
        case ListOf(items):
            return [found for item in items for found in unknown_names(item, variables)]
        case MapOf(entries):
            return [found for entry in entries for part in entry for found in unknown_names(part, variables)]
        case Comprehension(macro, operand, variable, body, condition, value_variable):
            inner = variables | {variable, value_variable}
            parts = [body] if condition is None else [body, condition]
            if macro == "cel.bind" and "cel" not in variables:  # selectors of devices alone have it
                return ["undeclared reference to 'cel' (in container '')"]
            return [*unknown_names(operand, variables), *(f for part in parts for f in unknown_names(part, inner))]
        case Call(function, arguments, target):
            parts = [*arguments] if target is None else [target, *arguments]
            known = function in (FUNCTIONS if target is None else METHODS) or function in ("_&&_", "_||_")
            own = [] if known else [f"undeclared reference to '{function}' (in container '')"]
            return [*own, *(found for part in parts for found in unknown_names(part, variables))]


class _Evaluation:
    def __init__(self, max_steps: int) -> None:
        self._steps_left = max_steps

    def value(self, node: Node, variables: Mapping[str, Any]) -> Any:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise EvaluationFault(COST_LIMIT_EXCEEDED)
        match node:
            case Literal(value):
                return value
            case Identifier(name):
                return self._identifier(name, variables)
            case Select(operand, field):
                return select_field(self.value(operand, variables), field)
            case Presence(operand, field):
                return has_field(self.value(operand, variables), field)
            case Conditional(condition, yes, no):
                return self.value(yes if self._truth(condition, variables) else no, variables)
            case ListOf(items):
                return [self.value(item, variables) for item in items]
            case MapOf(entries):
                return {self.value(key, variables): self.value(value, variables) for key, value in entries}
            case Comprehension():
                return self._comprehension(node, variables)
            case Call("_&&_" | "_||_" as operator, (left, right)):
                return self._decide(operator == "_||_", ((left, variables), (right, variables)))
            case Call(function, arguments, target):
                found = [self.value(part, variables) for part in (*(() if target is None else (target,)), *arguments)]
                return apply_function((FUNCTIONS if target is None else METHODS)[function], function, found)

    def _identifier(self, name: str, variables: Mapping[str, Any]) -> Any:
        if name in variables:
            value = variables[name]
            if isinstance(value, CelError):
                raise EvaluationFault(value.message)
            return value
        if name in TYPE_NAMES:
            return CelType(name)
        raise EvaluationFault(f"no such attribute(s): {name}")

    def _truth(self, node: Node, variables: Mapping[str, Any]) -> bool:
        value = self.value(node, variables)
        if not isinstance(value, bool):
            raise EvaluationFault("no such overload")
        return value

    def _decide(self, decisive: bool, sides: Iterable[tuple[Node, Mapping[str, Any]]]) -> bool:
        """Return the value of a conjunction or disjunction: one side with the decisive value is enough."""
        fault: EvaluationFault | None = None
        for side, variables in sides:
            try:
                if self._truth(side, variables) is decisive:
                    return decisive
            except EvaluationFault as found:
                if self._steps_left < 0:
                    raise
                fault = fault or found
        if fault is not None:
            raise fault
        return not decisive

    def _comprehension(self, node: Comprehension, variables: Mapping[str, Any]) -> Any:
        over = self.value(node.operand, variables)
        macro = node.macro
        if macro in ("cel.bind", "optMap", "optFlatMap"):
            return self._bound(node, over, variables)
        if not isinstance(over, list | Mapping):
            raise EvaluationFault("no such overload")
        scopes = ((element, {**variables, **bound}) for element, bound in _elements(node, over))
        if macro in ("all", "exists"):
            return self._decide(macro == "exists", ((node.body, inner) for _, inner in scopes))
        chosen: list[Any] = []
        for element, inner in scopes:
            if macro in ("filter", "exists_one", "existsOne"):
                if self._truth(node.body, inner):
                    chosen.append(element)
            elif node.condition is None or self._truth(node.condition, inner):
                made = self.value(node.body, inner)
                chosen.append((element, made) if macro == "transformMap" else made)
        match macro:
            case "exists_one" | "existsOne":
                return len(chosen) == 1
            case "transformMap":
                return dict(chosen)
            case "transformMapEntry":
                return _merged(chosen)
        return chosen

    def _bound(self, node: Comprehension, value: Any, variables: Mapping[str, Any]) -> Any:
        """Return the body with one variable bound: to a value, or to that of an optional if it has one."""
        if node.macro == "cel.bind":
            return self.value(node.body, {**variables, node.variable: value})
        if not isinstance(value, OptionalValue):
            raise EvaluationFault("no such overload")
        if not value.is_present:
            return value
        made = self.value(node.body, {**variables, node.variable: value.value()})
        return OptionalValue(made) if node.macro == "optMap" else made


def _elements(node: Comprehension, over: list[Any] | Mapping[Any, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield each element, index or key that a macro runs over, with its variables."""
    if not node.value_variable:
        for element in over:
            yield element, {node.variable: element}
        return
    for key, value in over.items() if isinstance(over, Mapping) else enumerate(over):
        yield key, {node.variable: key, node.value_variable: value}


def _merged(maps: Iterable[Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for one in maps:
        if not isinstance(one, Mapping):
            raise EvaluationFault("no such overload")
        for key, value in one.items():
            if key in found:
                raise EvaluationFault(f"insert failed: key {key} already exists")
            found[key] = value
    return found
