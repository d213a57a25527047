"""Make two servers' answers comparable: what must differ by nature (times, uids, revisions) becomes a placeholder."""

from __future__ import annotations

import re
from typing import Any

from tests.real.conformance.story import Answered, Step

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_REVISION_TEXT = re.compile(r"(resource version: |current: |requested: )\d+( \(\d+\))?")
_ESCAPED_REVISION = re.compile(r'(resourceVersion\\?":\\?")\d+')
_RECORD_REVISION = re.compile(r"(in record \()\d+")
_AGE = re.compile(r"^(\d+[smhd])+$|^<unknown>$")
# Fields whose value is a revision, a token or an address of this one server.
_OPAQUE = {"resourceVersion", "continue", "uid", "clusterIP", "podIP", "hostIP", "time", "storageVersionHash"}


def normalised(value: Any, ns: str, key: str = "") -> Any:
    if isinstance(value, dict):
        if "columnDefinitions" in value:
            # A column's description is a sentence: ours says less, in our own words.
            columns = [{**column, "description": ""} for column in value["columnDefinitions"] or ()]
            value = {**value, "columnDefinitions": columns if value["columnDefinitions"] is not None else None}
        return {_UID.sub("<uid>", k): normalised(v, ns, k) for k, v in value.items()}
    if isinstance(value, list):
        if key == "managedFields":
            # They are sorted by time, in whole seconds: whether two writes fall into one second differs by chance.
            # tests/real/test_merge.py compares the order.
            value = sorted(
                value, key=lambda e: (e.get("operation", ""), e.get("manager", ""), e.get("subresource", ""))
            )
        return [normalised(v, ns, key) for v in value]
    if isinstance(value, str):
        if key in _OPAQUE and value:
            return f"<{key}>"
        if key == "cells" and _AGE.match(value):
            return "<age>"
        value = value.replace(ns, "{ns}")
        value = _UID.sub("<uid>", _TIME.sub("<time>", value))
        value = _RECORD_REVISION.sub(r"\1<revision>", _ESCAPED_REVISION.sub(r"\1<revision>", value))
        value = re.sub(r"\b(generated-|A_)[a-z0-9]{5}\b", r"\1<random>", value)
        return _REVISION_TEXT.sub(r"\1<revision>", value)
    return value


def difference(a: Any, b: Any, path: str = "") -> list[str]:
    """Every place where two normalised values differ, as readable lines."""
    if type(a) is not type(b):
        return [f"{path or '.'}: real {_short(a)} != ours {_short(b)}"]
    if isinstance(a, dict):
        found = [f"{path}.{k}: only real has {_short(a[k])}" for k in a if k not in b]
        found += [f"{path}.{k}: only ours has {_short(b[k])}" for k in b if k not in a]
        for k in a:
            if k in b:
                found += difference(a[k], b[k], f"{path}.{k}")
        return found
    if isinstance(a, list):
        if len(a) != len(b):
            return [f"{path}: real has {len(a)} items {_short(a)}, ours {len(b)} {_short(b)}"]
        return [line for i, (x, y) in enumerate(zip(a, b, strict=True)) for line in difference(x, y, f"{path}[{i}]")]
    return [] if a == b else [f"{path or '.'}: real {_short(a)} != ours {_short(b)}"]


def _kept(body: Any, only: tuple[str, ...]) -> Any:
    if not only or not isinstance(body, dict):
        return body
    kept = {}
    for path in only:
        value: Any = body
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        kept[path] = value
    return kept


def compare(step: Step, real: Answered, ours: Answered, real_ns: str, our_ns: str) -> list[str]:
    found = []
    if real.status != ours.status:
        found.append(f"status: real {real.status} != ours {ours.status}")
    found += difference(
        normalised(_kept(real.body, step.only), real_ns), normalised(_kept(ours.body, step.only), our_ns)
    )
    found += difference(normalised(list(real.warnings), real_ns), normalised(list(ours.warnings), our_ns), ".warnings")
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:297] + "..."
