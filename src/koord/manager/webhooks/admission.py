"""The admission decision, the context that pod and reservation admission reads, and the excluded namespaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from koord.api.koordinator.protocol import NAMESPACE
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod_policy import PriorityClass
from koord.manager.webhooks.colocation_profile.compiled import CompiledProfile
from koord.manager.webhooks.pod_validating.required_labels import RequiredLabelRule


class AdmissionAllowed(msgspec.Struct, frozen=True):
    """The request is allowed. `object` is the whole object to store; None leaves it as it came."""

    object: dict[str, Any] | None = None


class AdmissionDenied(msgspec.Struct, frozen=True):
    code: int
    message: str


AdmissionDecision = AdmissionAllowed | AdmissionDenied


SYSTEM_NAMESPACES = frozenset({"kube-system", NAMESPACE})


def excluded_namespaces(own_namespace: str = NAMESPACE) -> frozenset[str]:
    """Return the namespaces whose pods admission never touches. `own_namespace` is where this program runs.

    A webhook that refuses or changes the pods that it needs to run can lock a cluster up. The webhook
    configurations
    exclude such pods; this is the same rule for calls that come all the same. It goes by namespace, since a
    label that
    anybody may set would be a way around the webhooks.
    """
    return SYSTEM_NAMESPACES | {own_namespace}


class QuotaLookup(Protocol):
    """The part of the quota topology that pods need; QuotaTopology implements it."""

    def quota_of(self, labels: Mapping[str, str], namespace: str, *, default: bool = True) -> str:
        """Return the name of a pod's quota, which need not exist. Without `default` only the label counts."""

    def get(self, name: str) -> object | None: ...

    def is_parent(self, name: str) -> bool: ...

    def tree_id(self, name: str) -> str: ...

    def owner_of(self, namespace: str) -> str | None:
        """Return the quota whose annotation lists the namespace."""


class AdmissionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The caches that pod and reservation admission reads. It is cheap to build: compiled profiles and cache
    lookups.
    """

    gates: Mapping[str, bool]
    profiles: tuple[CompiledProfile, ...]  # in the order of their names
    namespace_labels: Callable[[str], Mapping[str, str] | None]
    priority_class: Callable[[str], PriorityClass | None]
    draw: Callable[[], int]  # 0 to 99, for profiles with a probability
    quotas: QuotaLookup
    node_selector_of_tree: Callable[[str], LabelSelector | None]  # nodeSelector of the tree's first ElasticQuotaProfile
    excluded: frozenset[str] = SYSTEM_NAMESPACES  # namespaces that are left alone
    rules: tuple[RequiredLabelRule, ...] = ()  # of the enhanced validator; none while it is switched off
