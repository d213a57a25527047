"""The top controllers of pods and their replica counts: a Deployment rather than its ReplicaSet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from koord.api.builtin import DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS, STATEFUL_SETS
from koord.api.meta import Object
from koord.descheduler.shell.lookup import Found
from koord.descheduler.snapshot import Workload
from koord.kube.informer import Informer
from koord.kube.informers import Informers

DEPLOYMENT = "Deployment"
_UID, _OWNER = "descheduler-uid", "descheduler-owner"


class Workloads:
    """Looks up workloads by the uid that pods name as their controller."""

    def __init__(self, informers: Informers) -> None:
        self._deployments = informers.of(DEPLOYMENTS)
        self._replica_sets = informers.of(REPLICA_SETS)
        self._kinds: tuple[Informer[Any], ...] = (
            self._replica_sets,
            informers.of(STATEFUL_SETS),
            informers.of(REPLICATION_CONTROLLERS),
        )
        for informer in (self._deployments, *self._kinds):
            _index(informer, _UID, lambda obj: [obj.metadata.uid])
        _index(self._replica_sets, _OWNER, _deployment_of)

    def mapping(self) -> Mapping[str, Workload]:
        return Found(self.get, lambda: [uid for kind in self._kinds for uid in kind.index_values(_UID)])

    def get(self, uid: str) -> Workload | None:
        obj = next((obj for kind in self._kinds for obj in kind.by_index(_UID, uid)), None)
        if obj is None:
            return None
        for owner in _deployment_of(obj):
            for deployment in self._deployments.by_index(_UID, owner):
                members = [one.metadata.uid for one in self._replica_sets.by_index(_OWNER, owner)]
                return _workload(DEPLOYMENT, deployment, members)
        return _workload(obj.kind, obj, [uid])


def workloads(deployments: Iterable[Any], replica_sets: Iterable[Any], plain: Iterable[Any]) -> dict[str, Workload]:
    """Return all workloads of plain lists. `plain` are controllers of their own pods, such as StatefulSets."""
    found: dict[str, Workload] = {}
    by_uid = {deployment.metadata.uid: deployment for deployment in deployments}
    sets: dict[str, list[str]] = {}
    lone: list[Any] = []
    for replica_set in replica_sets:
        known = [uid for uid in _deployment_of(replica_set) if uid in by_uid]
        if known:
            sets.setdefault(known[0], []).append(replica_set.metadata.uid)
        else:
            lone.append(replica_set)
    for uid, members in sets.items():
        found.update(dict.fromkeys(members, _workload(DEPLOYMENT, by_uid[uid], members)))
    for obj in (*lone, *plain):
        found[obj.metadata.uid] = _workload(obj.kind, obj, [obj.metadata.uid])
    return found


def _index(informer: Informer[Any], name: str, key_fn: Any) -> None:
    if not informer.has_index(name):
        informer.add_index(name, key_fn)


def _deployment_of(obj: Object) -> list[str]:
    return [o.uid for o in obj.metadata.owner_references if o.controller and o.kind == DEPLOYMENT]


def _workload(kind: str, obj: Any, controllers: Sequence[str]) -> Workload:
    replicas = obj.spec.replicas
    return Workload(
        kind=kind,
        namespace=obj.metadata.namespace,
        name=obj.metadata.name,
        uid=obj.metadata.uid,
        replicas=1 if replicas is None else replicas,  # left out means one
        controllers=frozenset(controllers),
    )
