"""This module holds rbac.authorization.k8s.io/v1 and the rules that parts of programs declare to need."""

from __future__ import annotations

import msgspec
from msgspec import field

from koord.api.kubernetes.meta import LabelSelector, Object
from koord.api.model import Submodel


class PolicyRule(Submodel, frozen=True, kw_only=True):
    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = field(default=(), name="nonResourceURLs")


class Role(Object, frozen=True, kw_only=True):
    rules: tuple[PolicyRule, ...] = ()


class AggregationRule(Submodel, frozen=True, kw_only=True):
    cluster_role_selectors: tuple[LabelSelector, ...] = ()


class ClusterRole(Object, frozen=True, kw_only=True):
    rules: tuple[PolicyRule, ...] = ()
    aggregation_rule: AggregationRule | None = None


class RoleRef(Submodel, frozen=True, kw_only=True):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class Subject(Submodel, frozen=True, kw_only=True):
    kind: str = ""
    api_group: str = ""
    name: str = ""
    namespace: str = ""


class RoleBinding(Object, frozen=True, kw_only=True):
    subjects: tuple[Subject, ...] = ()
    role_ref: RoleRef = RoleRef()


class ClusterRoleBinding(Object, frozen=True, kw_only=True):
    subjects: tuple[Subject, ...] = ()
    role_ref: RoleRef = RoleRef()


READ_VERBS = ("get", "list", "watch")


class RbacRule(msgspec.Struct, frozen=True):
    """RbacRule is one permission that a program needs. `namespace` limits it to a Role, `names` to such objects."""

    group: str  # "" is the core group
    resources: tuple[str, ...]  # plural, with "/status" and the like where that is what is written
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    namespace: str = ""
