"""A pod as quotas see it: what it requests, which quota it names, and whether it has a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from koord.api.annotations.quota_tree import is_pod_preemptible, quota_of_pod
from koord.policy.quota.amount import Counts

# The quota that a pod names ("" for none) and its namespace: pods with the same address share a quota.
Address: TypeAlias = tuple[str, str]


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    namespace: str
    name: str
    quota: str = ""  # by its label
    requests: Counts = {}
    preemptible: bool = True
    priority: int = 0
    placed: bool = False  # it has a node
    since: float = 0.0  # when it started; of equals in priority the earlier is the more important

    @staticmethod
    def of(
        *,
        uid: str,
        namespace: str,
        name: str,
        labels: Mapping[str, str],
        requests: Counts,
        priority: int = 0,
        placed: bool = False,
        since: float = 0.0,
    ) -> Claimant:
        return Claimant(
            uid=uid,
            namespace=namespace,
            name=name,
            quota=quota_of_pod(labels) or "",
            requests=requests,
            preemptible=is_pod_preemptible(labels),
            priority=priority,
            placed=placed,
            since=since,
        )

    @property
    def address(self) -> Address:
        return (self.quota, self.namespace)
