"""The cluster at one moment, as a round sees it. Made from informers by the program, from files by a dry run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from koord.api.koord_scheduling import PodMigrationJob
from koord.api.node import Node
from koord.api.slo import NodeMetric
from koord.descheduler.wire import Pod

ENDED = ("Succeeded", "Failed")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Who controls a pod in the end: a Deployment rather than its ReplicaSet."""

    kind: str
    namespace: str
    name: str
    uid: str
    replicas: int  # asked for
    controllers: frozenset[str] = frozenset()  # uids that its pods name as their controller


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """`others` are objects of further kinds by plural name, as plugins asked for them when they were made."""

    now_s: float
    nodes: Mapping[str, Node] = {}
    pods: Sequence[Pod] = ()
    metrics: Mapping[str, NodeMetric] = {}
    jobs: Sequence[PodMigrationJob] = ()
    workloads: Mapping[str, Workload] = {}  # by the uid that a pod names as its controller; absent: not found
    others: Mapping[str, Sequence[Any]] = {}

    @cached_property
    def by_node(self) -> Mapping[str, Sequence[Pod]]:
        return _grouped(self.pods, lambda pod: (pod.spec.node_name,))

    @cached_property
    def by_owner(self) -> Mapping[str, Sequence[Pod]]:
        """By the uid of every owner."""
        return _grouped(self.pods, lambda pod: [owner.uid for owner in pod.metadata.owner_references])

    @cached_property
    def by_uid(self) -> Mapping[str, Pod]:
        return {pod.metadata.uid: pod for pod in self.pods}

    @cached_property
    def by_name(self) -> Mapping[tuple[str, str], Pod]:
        return {(pod.metadata.namespace, pod.metadata.name): pod for pod in self.pods}

    def on(self, node_name: str, *, ended: bool = False) -> Iterator[Pod]:
        """The pods of a node; those that ended only when asked for."""
        return (pod for pod in self.by_node.get(node_name, ()) if ended or pod.status.phase not in ENDED)


def _grouped(pods: Iterable[Pod], keys: Any) -> Mapping[str, Sequence[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        for key in keys(pod):
            found.setdefault(key, []).append(pod)
    return found
