"""ClaimUserCounts counts how many placed pods use each claim."""

from __future__ import annotations

from typing import Literal

from koord.scheduler.plugins.volumes.claims import named_claims
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


class ClaimUsers:
    def __init__(self, state: ClusterState) -> None:
        self._count: dict[tuple[str, str], int] = {}  # by namespace and claim
        state.listen(self._moved)

    def count(self, namespace: str, claim: str) -> int:
        return self._count.get((namespace, claim), 0)

    def _moved(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        for claim in set(named_claims(pod)):
            key = (pod.namespace, claim)
            left = self._count.get(key, 0) + (1 if what == "add" else -1)
            if left:
                self._count[key] = left
            else:
                self._count.pop(key, None)
