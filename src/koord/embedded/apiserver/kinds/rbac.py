"""This module holds the strategies of Role, ClusterRole and their bindings."""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, invalid_value, not_supported, required
from koord.embedded.apiserver.kinds import validators
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.strategy import KindStrategy
from koord.embedded.apiserver.kinds.validators import parse_optional_selector
from koord.values import names

RBAC_GROUP = "rbac.authorization.k8s.io"
_SUBJECT_KINDS = ("ServiceAccount", "User", "Group")


def _default_binding(obj: Obj) -> None:
    ref = obj.setdefault("roleRef", {})
    if not ref.get("apiGroup"):
        ref["apiGroup"] = RBAC_GROUP
    for subject in obj.get("subjects") or ():
        if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = RBAC_GROUP


def _policy_rule_errors(found: Obj, path: str, *, namespaced: bool) -> Iterator[ApiFieldError]:
    if not found.get("verbs"):
        yield required(f"{path}.verbs", "verbs must contain at least one value")
    urls = found.get("nonResourceURLs")
    if urls:
        if namespaced:
            detail = "namespaced rules cannot apply to non-resource URLs"
            yield invalid_value(f"{path}.nonResourceURLs", urls, detail)
        if found.get("apiGroups") or found.get("resources") or found.get("resourceNames"):
            detail = "rules cannot apply to both regular resources and non-resource URLs"
            yield invalid_value(f"{path}.nonResourceURLs", urls, detail)
        return
    if not found.get("apiGroups"):
        yield required(f"{path}.apiGroups", "resource rules must supply at least one api group")
    if not found.get("resources"):
        yield required(f"{path}.resources", "resource rules must supply at least one resource")


def _policy_rules_errors(obj: Obj, *, namespaced: bool) -> list[ApiFieldError]:
    listed = obj.get("rules") or []
    return [
        error
        for i, rule in enumerate(listed)
        for error in _policy_rule_errors(rule, f"rules[{i}]", namespaced=namespaced)
    ]


def _cluster_role_errors(obj: Obj) -> list[ApiFieldError]:
    errors = _policy_rules_errors(obj, namespaced=False)
    aggregation = obj.get("aggregationRule")
    if aggregation is None:
        return errors
    at = "aggregationRule.clusterRoleSelectors"
    selectors = aggregation.get("clusterRoleSelectors")
    if not selectors:
        detail = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        errors.append(required(at, detail))
    for i, selector in enumerate(selectors or ()):
        errors += validators.label_selector_errors(selector, f"{at}[{i}]")
        if parse_optional_selector(selector) is None:
            errors.append(invalid_value(f"{at}[{i}]", {}, "invalid label selector."))
    return errors


def _subject_errors(found: Obj, path: str, *, namespaced: bool) -> Iterator[ApiFieldError]:
    kind, name, group = found.get("kind", ""), found.get("name", ""), found.get("apiGroup", "")
    if not name:
        yield required(f"{path}.name")
    if kind == "ServiceAccount":
        if name:
            yield from [invalid_value(f"{path}.name", name, reason) for reason in names.dns1123_subdomain(name)]
        if group:
            yield not_supported(f"{path}.apiGroup", group, ("",))
        if not namespaced and not found.get("namespace"):
            yield required(f"{path}.namespace")
    elif kind in ("User", "Group"):
        if group != RBAC_GROUP:
            yield not_supported(f"{path}.apiGroup", group, (RBAC_GROUP,))
    else:
        yield not_supported(f"{path}.kind", kind, _SUBJECT_KINDS)


def _binding_errors(obj: Obj, *, namespaced: bool) -> list[ApiFieldError]:
    ref = obj["roleRef"]
    errors: list[ApiFieldError] = []
    if ref.get("apiGroup") != RBAC_GROUP:
        errors.append(not_supported("roleRef.apiGroup", ref.get("apiGroup", ""), (RBAC_GROUP,)))
    kinds = ("Role", "ClusterRole") if namespaced else ("ClusterRole",)
    if ref.get("kind") not in kinds:
        errors.append(not_supported("roleRef.kind", ref.get("kind", ""), kinds))
    name = ref.get("name", "")
    if not name:
        errors.append(required("roleRef.name"))
    else:
        errors += [invalid_value("roleRef.name", name, f"may not contain '{bad}'") for bad in ("/", "%") if bad in name]
    for i, subject in enumerate(obj.get("subjects") or ()):
        errors += _subject_errors(subject, f"subjects[{i}]", namespaced=namespaced)
    return errors


def _binding_update_errors(new: Obj, old: Obj, *, namespaced: bool) -> list[ApiFieldError]:
    errors = _binding_errors(new, namespaced=namespaced)
    if new["roleRef"] != old["roleRef"]:
        errors.append(invalid_value("roleRef", to_internal("RoleRef", new["roleRef"]), "cannot change roleRef"))
    return errors


ROLE = KindStrategy(
    validate_create=lambda obj: _policy_rules_errors(obj, namespaced=True),
    validate_update=lambda new, old: _policy_rules_errors(new, namespaced=True),
    creates_on_update=True,
)
CLUSTER_ROLE = KindStrategy(
    validate_create=_cluster_role_errors,
    validate_update=lambda new, old: _cluster_role_errors(new),
    creates_on_update=True,
)
ROLE_BINDING = KindStrategy(
    default=_default_binding,
    validate_create=lambda obj: _binding_errors(obj, namespaced=True),
    validate_update=lambda new, old: _binding_update_errors(new, old, namespaced=True),
    creates_on_update=True,
)
CLUSTER_ROLE_BINDING = KindStrategy(
    default=_default_binding,
    validate_create=lambda obj: _binding_errors(obj, namespaced=False),
    validate_update=lambda new, old: _binding_update_errors(new, old, namespaced=False),
    creates_on_update=True,
)
