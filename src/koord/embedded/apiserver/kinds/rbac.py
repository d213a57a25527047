"""This module holds the strategies of Role, ClusterRole and their bindings."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import label
from koord.embedded.apiserver.kinds.internal import internal
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.kinds.template import converted
from koord.embedded.apiserver.refusal import FieldError, invalid_value, not_supported, required
from koord.values import names

Obj = dict[str, Any]
GROUP = "rbac.authorization.k8s.io"
_SUBJECTS = ("ServiceAccount", "User", "Group")


def _default_binding(obj: Obj) -> None:
    ref = obj.setdefault("roleRef", {})
    if not ref.get("apiGroup"):
        ref["apiGroup"] = GROUP
    for subject in obj.get("subjects") or ():
        if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = GROUP


def _rule(found: Obj, path: str, *, namespaced: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    if not found.get("verbs"):
        errors.append(required(f"{path}.verbs", "verbs must contain at least one value"))
    urls = found.get("nonResourceURLs")
    if urls:
        if namespaced:
            detail = "namespaced rules cannot apply to non-resource URLs"
            errors.append(invalid_value(f"{path}.nonResourceURLs", urls, detail))
        if found.get("apiGroups") or found.get("resources") or found.get("resourceNames"):
            detail = "rules cannot apply to both regular resources and non-resource URLs"
            errors.append(invalid_value(f"{path}.nonResourceURLs", urls, detail))
        return errors
    if not found.get("apiGroups"):
        errors.append(required(f"{path}.apiGroups", "resource rules must supply at least one api group"))
    if not found.get("resources"):
        errors.append(required(f"{path}.resources", "resource rules must supply at least one resource"))
    return errors


def _rules(obj: Obj, *, namespaced: bool) -> list[FieldError]:
    listed = obj.get("rules") or []
    return [error for i, rule in enumerate(listed) for error in _rule(rule, f"rules[{i}]", namespaced=namespaced)]


def _cluster_role(obj: Obj) -> list[FieldError]:
    errors = _rules(obj, namespaced=False)
    aggregation = obj.get("aggregationRule")
    if aggregation is None:
        return errors
    at = "aggregationRule.clusterRoleSelectors"
    selectors = aggregation.get("clusterRoleSelectors")
    if not selectors:
        detail = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        errors.append(required(at, detail))
    for i, selector in enumerate(selectors or ()):
        errors += label.selector(selector, f"{at}[{i}]")
        if converted(selector) is None:
            errors.append(invalid_value(f"{at}[{i}]", {}, "invalid label selector."))
    return errors


def _subject(found: Obj, path: str, *, namespaced: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    kind, name, group = found.get("kind", ""), found.get("name", ""), found.get("apiGroup", "")
    if not name:
        errors.append(required(f"{path}.name"))
    if kind == "ServiceAccount":
        if name:
            errors += [invalid_value(f"{path}.name", name, reason) for reason in names.dns1123_subdomain(name)]
        if group:
            errors.append(not_supported(f"{path}.apiGroup", group, ("",)))
        if not namespaced and not found.get("namespace"):
            errors.append(required(f"{path}.namespace"))
    elif kind in ("User", "Group"):
        if group != GROUP:
            errors.append(not_supported(f"{path}.apiGroup", group, (GROUP,)))
    else:
        errors.append(not_supported(f"{path}.kind", kind, _SUBJECTS))
    return errors


def _binding(obj: Obj, *, namespaced: bool) -> list[FieldError]:
    ref = obj["roleRef"]
    errors: list[FieldError] = []
    if ref.get("apiGroup") != GROUP:
        errors.append(not_supported("roleRef.apiGroup", ref.get("apiGroup", ""), (GROUP,)))
    kinds = ("Role", "ClusterRole") if namespaced else ("ClusterRole",)
    if ref.get("kind") not in kinds:
        errors.append(not_supported("roleRef.kind", ref.get("kind", ""), kinds))
    name = ref.get("name", "")
    if not name:
        errors.append(required("roleRef.name"))
    else:
        errors += [invalid_value("roleRef.name", name, f"may not contain '{bad}'") for bad in ("/", "%") if bad in name]
    for i, subject in enumerate(obj.get("subjects") or ()):
        errors += _subject(subject, f"subjects[{i}]", namespaced=namespaced)
    return errors


def _binding_update(new: Obj, old: Obj, *, namespaced: bool) -> list[FieldError]:
    errors = _binding(new, namespaced=namespaced)
    if new["roleRef"] != old["roleRef"]:
        errors.append(invalid_value("roleRef", internal("RoleRef", new["roleRef"]), "cannot change roleRef"))
    return errors


ROLE = Strategy(
    validate_create=lambda obj: _rules(obj, namespaced=True),
    validate_update=lambda new, old: _rules(new, namespaced=True),
    creates_on_update=True,
)
CLUSTER_ROLE = Strategy(
    validate_create=_cluster_role,
    validate_update=lambda new, old: _cluster_role(new),
    creates_on_update=True,
)
ROLE_BINDING = Strategy(
    default=_default_binding,
    validate_create=lambda obj: _binding(obj, namespaced=True),
    validate_update=lambda new, old: _binding_update(new, old, namespaced=True),
    creates_on_update=True,
)
CLUSTER_ROLE_BINDING = Strategy(
    default=_default_binding,
    validate_create=lambda obj: _binding(obj, namespaced=False),
    validate_update=lambda new, old: _binding_update(new, old, namespaced=False),
    creates_on_update=True,
)
