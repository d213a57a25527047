"""Evaluate CEL expressions on an admission request: its facts as variables, and the conditions on which a hook or a
policy is asked at all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koord.api.model import Obj
from koord.cel.evaluation import evaluate
from koord.cel.syntax import CelError, parse

_parse = functools.lru_cache(maxsize=4096)(parse)


class ExpressionFault(msgspec.Struct, frozen=True):
    """An expression that has no value, in words."""

    message: str


def request_facts(request: Obj) -> dict[str, Any]:
    """Return the variables that a request gives to expressions; `request` is that of its AdmissionReview.

    The namespace is null, as it is to conditions of webhooks: a policy puts the object in its place.
    """
    about = {key: value for key, value in request.items() if key not in ("object", "oldObject")}
    objects = {key: request.get(key) for key in ("object", "oldObject")}
    return {**objects, "request": about, "namespaceObject": None}


def expression_value(expression: str, variables: Mapping[str, Any]) -> Any:
    node = _parse(expression)
    return node if isinstance(node, CelError) else evaluate(node, variables)


def expression_fault(expression: str, found: Any) -> ExpressionFault:
    why = found.message if isinstance(found, CelError) else "no such overload"
    return ExpressionFault(f"expression '{expression}' resulted in error: {why}")


def decide_match(expressions: Iterable[str], facts: Mapping[str, Any]) -> bool | ExpressionFault:
    """Return whether all conditions hold. One that is false decides, whatever faults others have."""
    fault: ExpressionFault | None = None
    for expression in expressions:
        holds = expression_value(expression, facts)
        if holds is False:
            return False
        if holds is not True:
            fault = fault or expression_fault(expression, holds)
    return fault or True
