"""Match requests to hooks by rules and selectors, and convert objects to the version that a hook wants and back.

Evaluate CEL expressions on an admission request: its facts as variables, and the conditions on which a hook or a
policy is asked at all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koord.api.model import Obj
from koord.cel.evaluation import evaluate
from koord.cel.syntax import CelError, parse
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.catalog import ResourceCatalog, ServedResource
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from koord.embedded.apiserver.rest.virtual_resources import scale_from_object, with_scaled_replicas
from koord.embedded.apiserver.store.collection import ResourceCollection
from koord.values.selector import Selector

_parse = functools.lru_cache(maxsize=4096)(parse)


class ExpressionFault(msgspec.Struct, frozen=True):
    """An expression that has no value, in words."""

    message: str


def request_facts(request: Obj) -> dict[str, Any]:
    """Return the variables that a request gives to expressions; `request` is that of its AdmissionReview.

    The namespace is null, as it is to conditions of webhooks: a policy puts the object in its place.
    """
    about = {key: value for key, value in request.items() if key not in ("object", "oldObject")}
    objects = {key: request.get(key) for key in ("object", "oldObject")}
    return {**objects, "request": about, "namespaceObject": None}


def expression_value(expression: str, variables: Mapping[str, Any]) -> Any:
    node = _parse(expression)
    return node if isinstance(node, CelError) else evaluate(node, variables)


def expression_fault(expression: str, found: Any) -> ExpressionFault:
    why = found.message if isinstance(found, CelError) else "no such overload"
    return ExpressionFault(f"expression '{expression}' resulted in error: {why}")


def decide_match(expressions: Iterable[str], facts: Mapping[str, Any]) -> bool | ExpressionFault:
    """Return whether all conditions hold. One that is false decides, whatever faults others have."""
    fault: ExpressionFault | None = None
    for expression in expressions:
        holds = expression_value(expression, facts)
        if holds is False:
            return False
        if holds is not True:
            fault = fault or expression_fault(expression, holds)
    return fault or True


class ReviewKind(msgspec.Struct, frozen=True):
    group: str
    version: str
    kind: str


def review_kind(resource: ServedResource, subresource: str) -> ReviewKind:
    part = resource.subresources.get(subresource)
    if part is None:
        return ReviewKind(resource.group, resource.version, resource.kind)
    own = bool(part.group or part.version)
    return ReviewKind(part.group if own else resource.group, part.version if own else resource.version, part.kind)


def rule_target(attributes: AdmissionAttributes, resource: ServedResource) -> RuleTarget:
    return RuleTarget(
        attributes.operation,
        resource.group,
        resource.version,
        resource.plural,
        attributes.subresource,
        resource.namespaced,
    )


def matching_version(
    rules: Sequence[WebhookRule], attributes: AdmissionAttributes, catalog: ResourceCatalog, *, exact: bool
) -> ServedResource | None:
    """Return the version of the resource that the rules ask for: the request's own, else another of the same object."""
    asked = attributes.resource
    target = rule_target(attributes, asked)
    if any(rule.matches(target) for rule in rules):
        return asked
    if exact:
        return None
    for other in catalog.served_versions(asked.storage):
        if other is not asked:
            target = rule_target(attributes, other)
            if any(rule.matches(target) for rule in rules):
                return other
    return None


def object_for_hook(attributes: AdmissionAttributes, resource: ServedResource, obj: Obj | None) -> Obj | None:
    """Return `obj` (new or old) as the hook sees it. It is shared: never change it."""
    if obj is None:
        return None
    if attributes.subresource == "scale":
        return scale_from_object(obj, attributes.resource.scale)
    if attributes.subresource in ("binding", "eviction") and attributes.namespace:
        return {**obj, "metadata": {**(obj.get("metadata") or {}), "namespace": attributes.namespace}}
    return convert_version(obj, attributes.resource, resource)


def object_from_hook(attributes: AdmissionAttributes, resource: ServedResource, obj: Obj) -> Obj:
    """Return the object of a hook in the version of the request."""
    if attributes.subresource == "scale":
        assert attributes.obj is not None, "a scale is never deleted"
        new = with_scaled_replicas(attributes.obj, obj, attributes.resource.scale)
        new["metadata"] = attributes.obj["metadata"]
        return new
    return convert_version(obj, resource, attributes.resource)


def convert_version(obj: Obj, source: ServedResource, target: ServedResource) -> Obj:
    if source is target:
        return obj
    stored = source.conversion.to_storage(obj) if source.conversion else obj
    return target.conversion.from_storage(stored) if target.conversion else stored


class RuleTarget(msgspec.Struct, frozen=True):
    """A request in one of the versions in which its resource is served."""

    operation: str
    group: str
    version: str
    plural: str
    subresource: str = ""
    namespaced: bool = True


class WebhookRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule as a webhook configuration states it; `*` stands for anything."""

    operations: tuple[str, ...] = ("*",)
    api_groups: tuple[str, ...] = ("*",)
    api_versions: tuple[str, ...] = ("*",)
    resources: tuple[str, ...] = ("*",)  # "pods", "pods/status", "pods/*", "*/scale", "*/*"
    scope: str = "*"

    def matches(self, target: RuleTarget) -> bool:
        return (
            _includes(self.operations, target.operation)
            and _includes(self.api_groups, target.group)
            and _includes(self.api_versions, target.version)
            and self._in_scope(target)
            and any(_matches_resource(pattern, target) for pattern in self.resources)
        )

    def _in_scope(self, target: RuleTarget) -> bool:
        if self.scope in ("", "*"):
            return True
        return (self.scope == "Namespaced") == target.namespaced


def _includes(stated: Sequence[str], value: str) -> bool:
    return "*" in stated or value in stated


def _matches_resource(pattern: str, target: RuleTarget) -> bool:
    plural, _, subresource = pattern.partition("/")
    return plural in ("*", target.plural) and subresource in ("*", target.subresource)


def parse_rule(stated: Obj) -> WebhookRule:
    return WebhookRule(
        operations=tuple(stated.get("operations") or ()),
        api_groups=tuple(stated.get("apiGroups") or ()),
        api_versions=tuple(stated.get("apiVersions") or ()),
        resources=tuple(stated.get("resources") or ()),
        scope=stated.get("scope") or "*",
    )


def parse_selector(stated: Obj | None) -> Selector | None:
    """Parse a label selector; None selects everything. Raises SelectorError."""
    if not stated:
        return None
    made = Selector.from_unstructured(stated)
    return None if made.is_everything() else made


def namespace_matches(
    selector: Selector | None, attributes: AdmissionAttributes, namespaces: ResourceCollection
) -> bool:
    """Return whether the selector matches the namespace of a request, or the namespace that it is about."""
    if selector is None:
        return True
    if attributes.resource.storage == "namespaces":
        obj = attributes.obj or attributes.old_obj or {}
        return any_labels_match(selector, (obj.get("metadata") or {}).get("labels") or {})
    if not attributes.namespace:
        return True  # a cluster's objects are in no namespace that could be selected
    record = namespaces.get("", attributes.namespace)
    if record is None:
        raise api_errors.not_found("namespaces", "", attributes.namespace)
    return any_labels_match(selector, record.labels)


def any_labels_match(selector: Selector | None, *candidates: Mapping[str, str] | None) -> bool:
    """Return whether the selector matches any of the label sets that are present."""
    if selector is None:
        return True
    return any(selector.matches(labels) for labels in candidates if labels is not None)
