"""Read from an expression of PromQL which series and labels it names, and say what does not exist.

This is no parser: promtool checks the syntax. Selectors, `by` and `on` are what a renamed metric or label would break.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

# Labels that Prometheus gives every series of a target; the chart's monitors give koordlet's the node too.
TARGET_LABELS = frozenset({"job", "instance", "namespace", "pod", "container", "endpoint"})
_NODE_TARGETS = ("koordlet_", "koordlet:", "process_", "up")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"(?<![\w:$.])([a-zA-Z_:][\w:]*)\s*(\{[^{}]*\})?(?!\w)(?!\s*\()")
_MATCHER = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_LABEL_LIST = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_KEYWORDS = frozenset({"and", "or", "unless", "bool", "offset", "group_left", "group_right"})


class Selector(msgspec.Struct, frozen=True):
    series: str
    labels: frozenset[str]


def selectors(expression: str) -> Iterator[Selector]:
    """Yield the series that an expression selects, with the labels that it matches."""
    text = _STRING.sub('""', expression)
    text = re.sub(r"\[[^\]]*\]", "", _LABEL_LIST.sub(" ", text))
    for found in _SELECTOR.finditer(text):
        if found[1] not in _KEYWORDS:
            yield Selector(found[1], frozenset(_MATCHER.findall(found[2] or "")))


def faults(expression: str, known: Mapping[str, frozenset[str]]) -> list[str]:
    """Say which series and labels of an expression do not exist. `known` are the labels of each series."""
    found: list[str] = []
    for one in selectors(expression):
        if one.series not in known:
            found.append(f"no metric {one.series}")
            continue
        found += [f"{one.series} has no label {label}" for label in one.labels - _labels(one.series, known)]
    if found:
        return found
    for word, labels, inside in _label_lists(expression):
        for one in selectors(inside):
            missing = labels - _labels(one.series, known)
            found += [f"{one.series} has no label {label}, named by `{word}`" for label in sorted(missing)]
    return found


def _labels(series: str, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    node = {"node"} if series.startswith(_NODE_TARGETS) else set()
    return known[series] | TARGET_LABELS | node


def _label_lists(expression: str) -> Iterator[tuple[str, frozenset[str], str]]:
    """Yield each list of labels with its word and the expression that must have them."""
    for found in _LABEL_LIST.finditer(expression):
        labels = frozenset(label.strip() for label in found[2].split(",") if label.strip())
        if found[1] in ("by", "without"):
            yield found[1], labels, _parenthesised(expression, found.end())
        elif found[1] in ("on", "ignoring"):
            yield found[1], labels, expression


def _parenthesised(text: str, start: int) -> str:
    """Return what stands in the parentheses that open after `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0 and text[place] == ")":
            return text[start : place + 1]
    raise ValueError(f"no closing parenthesis in {text}")
