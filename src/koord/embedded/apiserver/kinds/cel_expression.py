"""This module validates CEL expressions of admission webhooks and policies when these are written.

An expression that names a function or a variable that this server does not have is refused: a rule that is stored must
be one that can be enforced.
"""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.model import Obj
from koord.cel.evaluation import evaluate, names_in, unknown_names
from koord.cel.functions import type_of
from koord.cel.syntax import CelError, parse
from koord.embedded.apiserver.api_errors import ApiFieldError, duplicate, invalid_value, required, too_many
from koord.values import names

MAX_MATCH_CONDITIONS = 64
WEBHOOK_VARIABLES = frozenset(("object", "oldObject", "request", "namespaceObject"))


def expression_errors(
    text: str, path: str, variables: frozenset[str], *, is_condition: bool = False, blank: str = ""
) -> list[ApiFieldError]:
    """Return why an expression cannot be evaluated. `is_condition`: its value must be true or false."""
    if not text.strip():
        return [required(path, blank)]
    node = parse(text)
    if isinstance(node, CelError):
        return [invalid_value(path, text, f"compilation failed: {node.message}")]
    errors = [invalid_value(path, text, f"compilation failed: {why}") for why in unknown_names(node, variables)]
    if is_condition and not errors and not names_in(node):  # without variables its type is known now
        value = evaluate(node, {})
        if not isinstance(value, bool | CelError):
            errors.append(invalid_value(path, text, f"must evaluate to bool but got {type_of(value)}"))
    return errors


def match_condition_errors(rows: list[Obj], path: str, variables: frozenset[str]) -> Iterator[ApiFieldError]:
    if len(rows) > MAX_MATCH_CONDITIONS:
        yield too_many(path, len(rows), MAX_MATCH_CONDITIONS)
        return
    seen: set[str] = set()
    for i, row in enumerate(rows):
        at, name = f"{path}[{i}]", row.get("name", "")
        yield from expression_errors(row.get("expression", ""), f"{at}.expression", variables, is_condition=True)
        if not name:
            yield required(f"{at}.name")
            continue
        yield from (invalid_value(f"{at}.name", name, reason) for reason in names.qualified_name(name))
        if name in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)
