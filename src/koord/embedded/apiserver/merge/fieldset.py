"""These functions operate on sets of fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from koord.embedded.apiserver.merge import element
from koord.embedded.apiserver.merge.element import SELF

Fields = dict[str, Any]
Path = tuple[str, ...]

EMPTY: Fields = {}
MEMBER: Fields = {}  # what a step without anything below it maps to


def in_order(steps: Iterable[str]) -> list[str]:
    found = sorted(steps)
    # "." and "f:..." sort right as text; keyed and set items sort by value, numbers as numbers.
    if found and found[-1] > "g":
        found.sort(key=element.order)
    return found


def union(a: Fields, b: Fields) -> Fields:
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
            out[step] = _joined(mine, below)
    return {step: out[step] for step in in_order(out)} if grown else out


def _joined(a: Fields, b: Fields) -> Fields:
    if not a:
        return b if not b or SELF in b else {SELF: MEMBER, **b}
    if not b:
        return a if SELF in a else {SELF: MEMBER, **a}
    return union(a, b)


def difference(a: Fields, b: Fields) -> Fields:
    """Return the fields in `a` and not in `b`; a field of `b` does not remove what lies below it."""
    return _minus(a, b, deep=False)


def without(a: Fields, b: Fields) -> Fields:
    """Return the fields in `a` that are neither in `b` nor below a field of `b`."""
    return _minus(a, b, deep=True)


def _minus(a: Fields, b: Fields, *, deep: bool) -> Fields:
    if not a or not b:
        return a
    out: Fields = {}
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
        left = _left(mine, theirs, taken, deep)
        if left is None:
            changed = True
        else:
            out[step] = left
            changed = changed or left is not mine
    return out if changed else a


def _left(mine: Fields, theirs: Fields, taken: bool, deep: bool) -> Fields | None:
    """Return what remains of one step, None when nothing does."""
    if not mine:
        return None if taken else mine
    owned = SELF in mine and not taken
    below = {step: v for step, v in mine.items() if step != SELF} if SELF in mine else mine
    rest = _minus(below, theirs, deep=deep) if theirs else below
    if not rest:
        return MEMBER if owned else None
    if rest is below and owned == (SELF in mine):
        return mine
    return {SELF: MEMBER, **rest} if owned else rest


def intersection(a: Fields, b: Fields) -> Fields:
    """Return the fields in both sets."""
    if a is b:
        return a
    out: Fields = {}
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


def leaves(a: Fields) -> Fields:
    """Return the set without the fields that have fields below them."""
    return {step: leaves(below) if below else MEMBER for step, below in a.items() if step != SELF}


def has(a: Fields, path: Path) -> bool:
    below: Fields | None = a
    for step in path:
        below = below.get(step) if below else None
        if below is None:
            return False
    return bool(path) and (not below or SELF in below)


def paths(a: Fields, prefix: Path = ()) -> Iterator[Path]:
    """Yield every field of the set; at each level the fields owned there come before those below."""
    for step, below in a.items():
        if step != SELF and (not below or SELF in below):
            yield (*prefix, step)
    for step, below in a.items():
        if below:
            yield from paths(below, (*prefix, step))


def of_paths(found: Iterable[Path]) -> Fields:
    out: Fields = EMPTY
    for path in found:
        tree: Fields = MEMBER
        for step in reversed(path):
            tree = {step: tree}
        out = union(out, tree)
    return out


def text(path: Path) -> str:
    """Format a path as conflict messages print it: `.spec.containers[name="c"].image`."""
    return "".join(element.text(step) for step in path)


def parsed(raw: Any) -> Fields:
    """Return a FieldsV1 that a client wrote, made canonical; raises ValueError when it is not one."""
    if not isinstance(raw, dict):
        raise ValueError(f"a field set must be an object, not {raw!r}")
    found: Fields = {}
    for step, below in raw.items():
        if step == SELF:
            continue
        spelled = element.canonical(step)
        if spelled is None:
            continue  # kube-apiserver drops kinds of steps that it does not know
        deeper = parsed(below)
        if deeper and SELF in below:
            deeper = {SELF: MEMBER, **deeper}
        found[spelled] = _joined(found[spelled], deeper) if spelled in found else deeper
    return {step: found[step] for step in in_order(found)}
