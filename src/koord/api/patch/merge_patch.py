"""This module applies and creates JSON merge patches (RFC 7386) with kube-apiserver's treatment of nulls inside lists,
and defines the failure that all patches return as a value.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.values import go_format

Obj = dict[str, Any]


class PatchFailed(msgspec.Struct, frozen=True):
    """PatchFailed is a failure as a value: the code, reason and message of the Status to respond with."""

    code: int
    message: str
    reason: str = ""
    details: dict[str, Any] | None = None


def bad_patch(message: str) -> PatchFailed:
    return PatchFailed(400, message, "BadRequest")


def unprocessable() -> PatchFailed:
    """Return the one sentence behind which kube-apiserver hides what was wrong with a JSON patch."""
    return PatchFailed(422, "the server rejected our request due to an error in our request", "Invalid", {})


def server_error(message: str) -> PatchFailed:
    """Return an error that kube-apiserver never gave a code: it leaves it as a 500 without a reason."""
    return PatchFailed(500, message)


_DEEP = (dict, list)


def merge_patch(doc: Obj, patch: Any) -> Obj | PatchFailed:
    """Return the document after a decoded merge patch; parts that neither side changes are shared with both."""
    if patch is None:
        return bad_patch("Invalid JSON Patch")
    if not isinstance(patch, dict):
        kind = go_format.json_kind_name(patch)
        return bad_patch(
            f"error decoding patch: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
        )
    return _merge(doc, patch)


def _merge(doc: Obj, patch: Obj) -> Obj:
    out = dict(doc)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
            continue
        current = out.get(key)
        if not isinstance(current, dict):
            out[key] = without_null_fields(value)
        elif isinstance(value, dict):
            out[key] = _merge(current, value)
        else:
            out[key] = value  # a list that replaces an object keeps the nulls of its objects, any other loses them
    return out


def without_null_fields(value: Any) -> Any:
    """Remove null fields of objects at every depth; null items of lists stay."""
    if isinstance(value, dict):
        return {k: without_null_fields(v) if isinstance(v, _DEEP) else v for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_null_fields(v) if isinstance(v, _DEEP) else v for v in value]
    return value


def create_merge_patch(old: Obj, new: Obj) -> Obj:
    """Return the merge patch from one object to the other; empty when they are equal."""
    patch: Obj = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif isinstance(value, dict) and isinstance(old[key], dict):
            if inner := create_merge_patch(old[key], value):
                patch[key] = inner
        elif not strictly_equal(old[key], value):
            patch[key] = value
    return patch


def strictly_equal(a: Any, b: Any) -> bool:
    """Return whether two values are written alike: 1 is neither 1.0 nor true."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(strictly_equal(v, b[k]) for k, v in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(strictly_equal, a, b))
    return type(a) is type(b) and bool(a == b)
