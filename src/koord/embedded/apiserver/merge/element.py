"""One step of a field path in its FieldsV1 spelling: `f:name`, `k:{"name":"x"}`, `v:"x"`, `i:3`.

The canonical spelling is the identity of a step, so sets of fields are plain dicts keyed by it and need no parsing.
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
    """The step to an item of a set."""
    return "v:" + _json(value)


@lru_cache(maxsize=65536, typed=True)
def of_key(name: str, value: Any) -> str:
    """The step to an item of a list whose only key is `name`."""
    return f"k:{{{_json(name)}:{_json(value)}}}"


def of_keys(pairs: Sequence[tuple[str, Any]]) -> str:
    """The step to an item of a list keyed by several fields."""
    return "k:{" + ",".join(f"{_json(k)}:{_json(v)}" for k, v in sorted(pairs, key=lambda pair: pair[0])) + "}"


@lru_cache(maxsize=65536)
def canonical(element: str) -> str | None:
    """The canonical spelling of a step that a client wrote; None for a kind of step nobody knows yet.

    Raises ValueError when it is no step at all.
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
    """Where a step sorts among its siblings: fields, then keyed items, then set items, then indexes."""
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
    """Numbers before strings before booleans, each among themselves."""
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int | float):
        return (0, value)
    if isinstance(value, str):
        return (1, value)
    return (3, json.dumps(value, sort_keys=True))


@lru_cache(maxsize=65536)
def text(element: str) -> str:
    """A step as people read it: `.name`, `[name="x"]`, `[="x"]`, `[3]`."""
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
