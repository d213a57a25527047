"""Match requests against the rules and selectors of a hook. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koord.values.requirement import SelectorError
from koord.values.selector import Selector

Obj = dict[str, Any]


class Target(msgspec.Struct, frozen=True):
    """A request in one of the versions in which its resource is served."""

    operation: str
    group: str
    version: str
    plural: str
    subresource: str = ""
    namespaced: bool = True


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule as a webhook configuration states it; `*` stands for anything."""

    operations: tuple[str, ...] = ("*",)
    api_groups: tuple[str, ...] = ("*",)
    api_versions: tuple[str, ...] = ("*",)
    resources: tuple[str, ...] = ("*",)  # "pods", "pods/status", "pods/*", "*/scale", "*/*"
    scope: str = "*"

    def matches(self, target: Target) -> bool:
        return (
            _has(self.operations, target.operation)
            and _has(self.api_groups, target.group)
            and _has(self.api_versions, target.version)
            and self._in_scope(target)
            and any(_is_resource(pattern, target) for pattern in self.resources)
        )

    def _in_scope(self, target: Target) -> bool:
        if self.scope in ("", "*"):
            return True
        return (self.scope == "Namespaced") == target.namespaced


def _has(stated: Sequence[str], value: str) -> bool:
    return "*" in stated or value in stated


def _is_resource(pattern: str, target: Target) -> bool:
    plural, _, subresource = pattern.partition("/")
    return plural in ("*", target.plural) and subresource in ("*", target.subresource)


def rule_of(stated: Obj) -> Rule:
    return Rule(
        operations=tuple(stated.get("operations") or ()),
        api_groups=tuple(stated.get("apiGroups") or ()),
        api_versions=tuple(stated.get("apiVersions") or ()),
        resources=tuple(stated.get("resources") or ()),
        scope=stated.get("scope") or "*",
    )


def selector_of(stated: Obj | None) -> Selector | None:
    """Parse a label selector; None selects everything. Raises SelectorError."""
    if not stated:
        return None
    expressions = [(e["key"], e["operator"], e.get("values") or ()) for e in stated.get("matchExpressions") or ()]
    made = Selector.of(stated.get("matchLabels"), expressions)
    return None if made.is_everything() else made


def labels_match(selector: Selector | None, *candidates: Mapping[str, str] | None) -> bool:
    """Return whether the selector matches any of the label sets that are present."""
    if selector is None:
        return True
    return any(selector.matches(labels) for labels in candidates if labels is not None)


__all__ = ["Rule", "SelectorError", "Target", "labels_match", "rule_of", "selector_of"]
