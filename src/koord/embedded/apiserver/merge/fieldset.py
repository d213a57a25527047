"""This module represents field sets as FieldsV1 itself: nested dicts keyed by path steps.

A step is spelled `f:name`, `k:{"name":"x"}`, `v:"x"` or `i:3`; its canonical spelling is its identity. A
step that maps to `{}` is in the set; one that maps to more is in the set only if it holds `.`. Trees share
their unchanged parts and are never changed after they are built, so a set costs nothing to store, copy or
send. Every function keeps siblings in the order in which kube-apiserver writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from koord.values import go_format
from koord.values.go_format import quoted

SELF = "."  # marks that the field itself is owned, beside some of what is below it

# Go's JSON writer escapes these so that JSON can sit inside HTML; Python's does not.
_HTML_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPED = frozenset(_HTML_ESCAPES) | {"\b", "\f"}


def _go_json(value: Any) -> str:
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        if not _ESCAPED.isdisjoint(value):
            text = text.replace("\\b", "\\u0008").replace("\\f", "\\u000c")
            text = "".join(_HTML_ESCAPES.get(c, c) for c in text)
        return text
    if isinstance(value, float):
        return go_format.format_float(value)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=65536, typed=True)
def value_step(value: Any) -> str:
    """Return the step to an item of a set list."""
    return "v:" + _go_json(value)


@lru_cache(maxsize=65536, typed=True)
def key_step(name: str, value: Any) -> str:
    """Return the step to an item of a list map whose only key is `name`."""
    return f"k:{{{_go_json(name)}:{_go_json(value)}}}"


def keys_step(pairs: Sequence[tuple[str, Any]]) -> str:
    """Return the step to an item of a list map with several keys."""
    return "k:{" + ",".join(f"{_go_json(k)}:{_go_json(v)}" for k, v in sorted(pairs, key=lambda pair: pair[0])) + "}"


@lru_cache(maxsize=65536)
def canonical_step(element: str) -> str | None:
    """Return the canonical spelling of a step; None for an unknown type. Raises ValueError when it is no step."""
    if len(element) < 2 or element[1] != ":":
        raise ValueError(f"missing colon: {element}")
    kind, rest = element[0], element[2:]
    if kind == "f":
        return element
    if kind == "i":
        return f"i:{int(rest)}"
    if kind == "v":
        return "v:" + _go_json(json.loads(rest))
    if kind == "k":
        keys = json.loads(rest)
        if not isinstance(keys, dict):
            raise ValueError(f"a key must be an object: {element}")
        return keys_step(list(keys.items()))
    return None


_RANK = {"f": 0, "k": 1, "v": 2, "i": 3}


@lru_cache(maxsize=65536)
def step_order(element: str) -> tuple[Any, ...]:
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
def step_text(element: str) -> str:
    """Format a step for messages: `.name`, `[name="x"]`, `[="x"]`, `[3]`."""
    kind, rest = element[0], element[2:]
    if kind == "f":
        return "." + rest
    if kind == "k":
        keys = json.loads(rest)
        return "[" + ",".join(f"{name}={_value_text(value)}" for name, value in keys.items()) + "]"
    if kind == "v":
        return f"[={_value_text(json.loads(rest))}]"
    return f"[{rest}]"


def _value_text(value: Any) -> str:
    if value is None:
        return "null"
    return quoted(value) if isinstance(value, str) else go_format.format_v(value)


FieldSet = dict[str, Any]
FieldPath = tuple[str, ...]

EMPTY: FieldSet = {}
MEMBER: FieldSet = {}  # what a step without anything below it maps to


def sort_steps(steps: Iterable[str]) -> list[str]:
    found = sorted(steps)
    # "." and "f:..." sort right as text; keyed and set items sort by value, numbers as numbers.
    if found and found[-1] > "g":
        found.sort(key=step_order)
    return found


def union(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return the fields in either set."""
    if not b or a is b:
        return a
    if not a:
        return b
    out = dict(a)
    grown = False
    for step, below in b.items():
        mine = out.get(step)
        if mine is None:
            out[step] = below
            grown = True
        elif mine is not below and step != SELF:
            out[step] = _union_below(mine, below)
    return {step: out[step] for step in sort_steps(out)} if grown else out


def _union_below(a: FieldSet, b: FieldSet) -> FieldSet:
    if not a:
        return b if not b or SELF in b else {SELF: MEMBER, **b}
    if not b:
        return a if SELF in a else {SELF: MEMBER, **a}
    return union(a, b)


def difference(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return the fields in `a` and not in `b`; a field of `b` does not remove what lies below it."""
    return _subtract(a, b, deep=False)


def without_subtrees(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return the fields in `a` that are neither in `b` nor below a field of `b`."""
    return _subtract(a, b, deep=True)


def _subtract(a: FieldSet, b: FieldSet, *, deep: bool) -> FieldSet:
    if not a or not b:
        return a
    out: FieldSet = {}
    changed = False
    for step, mine in a.items():
        theirs = b.get(step)
        if theirs is None:
            out[step] = mine
            continue
        taken = not theirs or SELF in theirs
        if deep and taken:
            changed = True
            continue
        left = _remainder(mine, theirs, taken, deep)
        if left is None:
            changed = True
        else:
            out[step] = left
            changed = changed or left is not mine
    return out if changed else a


def _remainder(mine: FieldSet, theirs: FieldSet, taken: bool, deep: bool) -> FieldSet | None:
    """Return what remains of one step, None when nothing does."""
    if not mine:
        return None if taken else mine
    owned = SELF in mine and not taken
    below = {step: v for step, v in mine.items() if step != SELF} if SELF in mine else mine
    rest = _subtract(below, theirs, deep=deep) if theirs else below
    if not rest:
        return MEMBER if owned else None
    if rest is below and owned == (SELF in mine):
        return mine
    return {SELF: MEMBER, **rest} if owned else rest


def intersection(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return the fields in both sets."""
    if a is b:
        return a
    out: FieldSet = {}
    for step, mine in a.items():
        theirs = b.get(step)
        if theirs is None or step == SELF:
            continue
        both = (not mine or SELF in mine) and (not theirs or SELF in theirs)
        below = intersection(mine, theirs) if mine and theirs else EMPTY
        if below and both:
            out[step] = below if SELF in below else {SELF: MEMBER, **below}
        elif below:
            out[step] = below
        elif both:
            out[step] = MEMBER
    return out


def leaves(a: FieldSet) -> FieldSet:
    """Return the set without the fields that have fields below them."""
    return {step: leaves(below) if below else MEMBER for step, below in a.items() if step != SELF}


def has_path(a: FieldSet, path: FieldPath) -> bool:
    below: FieldSet | None = a
    for step in path:
        below = below.get(step) if below else None
        if below is None:
            return False
    return bool(path) and (not below or SELF in below)


def paths(a: FieldSet, prefix: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield every field of the set; at each level the fields owned there come before those below."""
    for step, below in a.items():
        if step != SELF and (not below or SELF in below):
            yield (*prefix, step)
    for step, below in a.items():
        if below:
            yield from paths(below, (*prefix, step))


def from_paths(found: Iterable[FieldPath]) -> FieldSet:
    out: FieldSet = EMPTY
    for path in found:
        tree: FieldSet = MEMBER
        for step in reversed(path):
            tree = {step: tree}
        out = union(out, tree)
    return out


def path_text(path: FieldPath) -> str:
    """Format a path as conflict messages print it: `.spec.containers[name="c"].image`."""
    return "".join(step_text(step) for step in path)


def parse_fields_v1(raw: Any) -> FieldSet:
    """Return a FieldsV1 that a client wrote, made canonical; raises ValueError when it is not one."""
    if not isinstance(raw, dict):
        raise ValueError(f"a field set must be an object, not {raw!r}")
    found: FieldSet = {}
    for step, below in raw.items():
        if step == SELF:
            continue
        spelled = canonical_step(step)
        if spelled is None:
            continue  # kube-apiserver drops kinds of steps that it does not know
        deeper = parse_fields_v1(below)
        if deeper and SELF in below:
            deeper = {SELF: MEMBER, **deeper}
        found[spelled] = _union_below(found[spelled], deeper) if spelled in found else deeper
    return {step: found[step] for step in sort_steps(found)}
