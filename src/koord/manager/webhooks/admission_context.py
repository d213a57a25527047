"""The caches that the admission of pods and reservations reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod_policy import PriorityClass
from koord.manager.webhooks.admission import SYSTEM_NAMESPACES
from koord.manager.webhooks.colocation_profile import CompiledProfile


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
    """AdmissionContext is what is known at a request, cheap to build: compiled profiles and cache lookups."""

    gates: Mapping[str, bool]
    profiles: tuple[CompiledProfile, ...]  # in the order of their names
    namespace_labels: Callable[[str], Mapping[str, str] | None]
    priority_class: Callable[[str], PriorityClass | None]
    draw: Callable[[], int]  # 0 to 99, for profiles with a probability
    quotas: QuotaLookup
    node_selector_of_tree: Callable[[str], LabelSelector | None]  # nodeSelector of the tree's first ElasticQuotaProfile
    excluded: frozenset[str] = SYSTEM_NAMESPACES  # namespaces that are left alone
