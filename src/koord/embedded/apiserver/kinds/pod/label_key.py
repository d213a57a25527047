"""These functions handle matchLabelKeys and mismatchLabelKeys of new pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from koord.embedded.apiserver.kinds import label
from koord.embedded.apiserver.refusal import FieldError, forbidden_field, invalid_value

Obj = dict[str, Any]
_OPERATORS = (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))


def merge_label_keys(spec: Obj, labels: Obj) -> None:
    """Merge the pod's label values into its selectors, once at creation: later label changes do not affect them."""
    if not labels or not ("affinity" in spec or "topologySpreadConstraints" in spec):
        return
    for term in _terms(spec):
        selector = term.get("labelSelector")
        if selector is None:
            continue
        added = [
            {"key": key, "operator": operator, "values": [labels[key]]}
            for field, operator in _OPERATORS
            for key in term.get(field) or ()
            if key in labels
        ]
        if added:
            expressions = [*(selector.get("matchExpressions") or ()), *added]
            term["labelSelector"] = {**selector, "matchExpressions": expressions}


def _terms(spec: Obj) -> Iterator[Obj]:
    yield from spec.get("topologySpreadConstraints") or ()
    affinity = spec.get("affinity") or {}
    for side in ("podAffinity", "podAntiAffinity"):
        found = affinity.get(side) or {}
        yield from found.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for weighted in found.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield weighted.get("podAffinityTerm") or {}


def label_key_errors(term: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    selector = term.get("labelSelector")
    for field, _ in _OPERATORS:
        listed = term.get(field) or []
        for i, name in enumerate(listed):
            errors += label.label_name(name, f"{path}.{field}[{i}]")
        if listed and selector is None:
            errors.append(forbidden_field(f"{path}.{field}", "must not be specified when labelSelector is not set"))
    matched, mismatched = term.get("matchLabelKeys") or [], term.get("mismatchLabelKeys") or []
    used = _keys(selector or {})
    errors += [
        # The real server leaves the field's name out of this path.
        invalid_value(f"{path}[{i}]", name, "exists in both matchLabelKeys and labelSelector")
        for i, name in enumerate(matched)
        if used.count(name) > 1
    ]
    errors += [
        invalid_value(f"{path}.matchLabelKeys[{i}]", name, "exists in both matchLabelKeys and mismatchLabelKeys")
        for i, name in enumerate(matched)
        if name in mismatched
    ]
    return errors


def _keys(selector: Obj) -> list[str]:
    expressions = selector.get("matchExpressions") or ()
    return [*(selector.get("matchLabels") or ()), *(expression.get("key", "") for expression in expressions)]
