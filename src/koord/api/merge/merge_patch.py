"""RFC 7386, with the way kube-apiserver's library treats nulls inside lists."""

from __future__ import annotations

from typing import Any

from koord.api.merge import gotext
from koord.api.merge.outcome import Obj, PatchFailed, bad_patch

_DEEP = (dict, list)


def merge_patch(doc: Obj, patch: Any) -> Obj | PatchFailed:
    """Return the document after a decoded merge patch; parts that neither side changes are shared with both."""
    if patch is None:
        return bad_patch("Invalid JSON Patch")
    if not isinstance(patch, dict):
        kind = gotext.json_kind(patch)
        return bad_patch(
            f"error decoding patch: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
        )
    return _merged(doc, patch)


def _merged(doc: Obj, patch: Obj) -> Obj:
    out = dict(doc)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
            continue
        current = out.get(key)
        if not isinstance(current, dict):
            out[key] = without_nulls(value)
        elif isinstance(value, dict):
            out[key] = _merged(current, value)
        else:
            out[key] = value  # a list that replaces an object keeps the nulls of its objects, any other loses them
    return out


def without_nulls(value: Any) -> Any:
    """Remove null fields of objects at every depth; null items of lists stay."""
    if isinstance(value, dict):
        return {k: without_nulls(v) if isinstance(v, _DEEP) else v for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) if isinstance(v, _DEEP) else v for v in value]
    return value
