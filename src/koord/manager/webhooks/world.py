"""What pod and reservation admission know of the cluster while they decide. The serving side fills it in.

A view is cheap to make: everything in it is either ready (compiled profiles) or a look into a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from koord.api.meta import LabelSelector
from koord.api.scheduling import PriorityClass
from koord.manager.webhooks.exclusion import SYSTEM
from koord.manager.webhooks.pod_validating.required_label import Rule
from koord.manager.webhooks.profile.compiled import Profile


class QuotaView(Protocol):
    """The part of the quota topology that pods need; QuotaTopology implements it."""

    def quota_of(self, labels: Mapping[str, str], namespace: str, *, default: bool = True) -> str:
        """Return the name of a pod's quota, which need not exist. Without `default` only the label counts."""

    def get(self, name: str) -> object | None: ...

    def is_parent(self, name: str) -> bool: ...

    def tree_id(self, name: str) -> str: ...

    def owner_of(self, namespace: str) -> str | None:
        """Return the quota whose annotation lists the namespace."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The caches that pod and reservation admission reads. It is cheap to build: compiled profiles and cache
    lookups.
    """
    gates: Mapping[str, bool]
    profiles: tuple[Profile, ...]  # in the order of their names
    namespace_labels: Callable[[str], Mapping[str, str] | None]
    priority_class: Callable[[str], PriorityClass | None]
    draw: Callable[[], int]  # 0 to 99, for profiles with a probability
    quotas: QuotaView
    pool_of_tree: Callable[[str], LabelSelector | None]  # nodeSelector of the tree's first ElasticQuotaProfile
    excluded: frozenset[str] = SYSTEM  # namespaces that are left alone
    rules: tuple[Rule, ...] = ()  # of the enhanced validator; none while it is switched off
