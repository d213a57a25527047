"""This module represents field sets as FieldsV1 itself: nested dicts keyed by path steps.

A step is spelled `f:name`, `k:{"name":"x"}`, `v:"x"` or `i:3`; its canonical spelling is its identity. A
step that maps to `{}` is in the set; one that maps to more is in the set only if it holds `.`. Trees share
their unchanged parts and are never changed after they are built, so a set costs nothing to store, copy or
send. Every function keeps siblings in the order in which kube-apiserver writes them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from koord.api.merge import gotext
from koord.values.quotation import quoted

SELF = "."  # marks that the field itself is owned, beside some of what is below it

# Go's JSON writer escapes these so that JSON can sit inside HTML; Python's does not.
_HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_UGLY = frozenset(_HTML) | {"\b", "\f"}


def _json(value: Any) -> str:
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        if not _UGLY.isdisjoint(value):
            text = text.replace("\\b", "\\u0008").replace("\\f", "\\u000c")
            text = "".join(_HTML.get(c, c) for c in text)
        return text
    if isinstance(value, float):
        return gotext.number(value)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=65536, typed=True)
def of_value(value: Any) -> str:
    """Return the step to an item of a set list."""
    return "v:" + _json(value)


@lru_cache(maxsize=65536, typed=True)
def of_key(name: str, value: Any) -> str:
    """Return the step to an item of a list map whose only key is `name`."""
    return f"k:{{{_json(name)}:{_json(value)}}}"


def of_keys(pairs: Sequence[tuple[str, Any]]) -> str:
    """Return the step to an item of a list map with several keys."""
    return "k:{" + ",".join(f"{_json(k)}:{_json(v)}" for k, v in sorted(pairs, key=lambda pair: pair[0])) + "}"


@lru_cache(maxsize=65536)
def canonical(element: str) -> str | None:
    """Return the canonical spelling of a step that a client wrote; None for an unknown type of step.

    Raises ValueError when it is not a step at all.
    """
    if len(element) < 2 or element[1] != ":":
        raise ValueError(f"missing colon: {element}")
    kind, rest = element[0], element[2:]
    if kind == "f":
        return element
    if kind == "i":
        return f"i:{int(rest)}"
    if kind == "v":
        return "v:" + _json(json.loads(rest))
    if kind == "k":
        keys = json.loads(rest)
        if not isinstance(keys, dict):
            raise ValueError(f"a key must be an object: {element}")
        return of_keys(list(keys.items()))
    return None


_RANK = {"f": 0, "k": 1, "v": 2, "i": 3}


@lru_cache(maxsize=65536)
def order(element: str) -> tuple[Any, ...]:
    """Return the sort key of a step among its siblings: fields, then list map items, then set items, then indexes."""
    if element == SELF:
        return (-1,)
    kind, rest = element[0], element[2:]
    if kind == "k":
        return (1, tuple((name, *_value_order(value)) for name, value in json.loads(rest).items()))
    if kind == "v":
        return (2, *_value_order(json.loads(rest)))
    if kind == "i":
        return (3, int(rest))
    return (_RANK[kind], rest)


def _value_order(value: Any) -> tuple[Any, ...]:
    """Return a sort key: numbers before strings before booleans."""
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int | float):
        return (0, value)
    if isinstance(value, str):
        return (1, value)
    return (3, json.dumps(value, sort_keys=True))


@lru_cache(maxsize=65536)
def text(element: str) -> str:
    """Format a step for messages: `.name`, `[name="x"]`, `[="x"]`, `[3]`."""
    kind, rest = element[0], element[2:]
    if kind == "f":
        return "." + rest
    if kind == "k":
        keys = json.loads(rest)
        return "[" + ",".join(f"{name}={_shown(value)}" for name, value in keys.items()) + "]"
    if kind == "v":
        return f"[={_shown(json.loads(rest))}]"
    return f"[{rest}]"


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return quoted(value) if isinstance(value, str) else gotext.plain(value)
