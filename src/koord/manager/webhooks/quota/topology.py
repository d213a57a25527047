"""Which quotas exist, who is whose child, and which namespace belongs to whom.

The state is a function of two things only: the live objects, and the writes that were admitted and are not yet seen.
`handle` is the one way to change it, and leaves at every step what a rebuild from those two would give. An admitted
write hides the live object until that object shows it, or until its time is up: it may have failed after admission.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from koord.api.annotations.quota_tree import quota_of_pod
from koord.api.protocol import DEFAULT_QUOTA, ROOT_QUOTA
from koord.manager.webhooks.quota.info import QuotaInfo
from koord.values import resources as vector

# Long enough for a slow watch, short enough that a write that failed elsewhere does not block a name for good.
ADMITTED_FOR_S = 30.0


class Seen(msgspec.Struct, frozen=True):
    """The informer shows this object."""

    quota: QuotaInfo


class Gone(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class Admitted(msgspec.Struct, frozen=True):
    """A create or update passed validation at this time."""

    quota: QuotaInfo
    at: float


class Released(msgspec.Struct, frozen=True):
    """A delete passed validation at this time."""

    name: str
    at: float


class Elapsed(msgspec.Struct, frozen=True):
    """Time has advanced to `now`."""

    now: float


Event = Seen | Gone | Admitted | Released | Elapsed


class _Pending(msgspec.Struct, frozen=True):
    quota: QuotaInfo | None  # None: to be deleted
    until: float


class Topology:
    def __init__(self) -> None:
        self._live: dict[str, dict[str, QuotaInfo]] = {}  # name -> namespace of the object -> quota
        self._pending: dict[str, _Pending] = {}
        self._quotas: dict[str, QuotaInfo] = {}
        self._children: dict[str, set[str]] = {}
        self._claims: dict[str, set[str]] = {}  # namespace -> quotas that list it

    @staticmethod
    def of(live: Iterable[QuotaInfo], admitted: Iterable[Admitted | Released] = ()) -> Topology:
        """Build the state from these objects and these open admissions."""
        topology = Topology()
        for quota in live:
            topology.handle(Seen(quota))
        for event in admitted:
            topology.handle(event)
        return topology

    # -- reading

    @property
    def quotas(self) -> Mapping[str, QuotaInfo]:
        return self._quotas

    def get(self, name: str) -> QuotaInfo | None:
        return self._quotas.get(name)

    def children(self, name: str) -> list[QuotaInfo]:
        """Return the children sorted by name."""
        return [self._quotas[child] for child in sorted(self._children.get(name, ()))]

    def ancestors(self, name: str) -> Iterator[QuotaInfo]:
        """Iterate from the parent upwards, as far as it is known; a cycle is walked once."""
        met = {name}
        quota = self._quotas.get(name)
        while quota is not None and quota.parent not in met:
            met.add(quota.parent)
            quota = self._quotas.get(quota.parent)
            if quota is not None:
                yield quota

    def owner_of(self, namespace: str, *, besides: str = "") -> str | None:
        """Return the quota that lists the namespace; of several the oldest, so that a late claim takes nothing away."""
        claims = [self._quotas[name] for name in self._claims.get(namespace, ()) if name != besides]
        return min(claims, key=lambda quota: (quota.created, quota.name)).name if claims else None

    def quota_of(self, labels: Mapping[str, str], namespace: str, *, default: bool = True) -> str:
        """Return the name of a pod's quota, which need not exist. Without `default` only the label counts."""
        named = quota_of_pod(labels)
        if named or not default:
            return named or ""
        return self.quota_of_namespace(namespace) or DEFAULT_QUOTA

    def quota_of_namespace(self, namespace: str) -> str | None:
        namesake = self._quotas.get(namespace)
        if namesake is not None and namesake.namespace == namespace:
            return namespace
        return self.owner_of(namespace)

    def is_parent(self, name: str) -> bool:
        quota = self._quotas.get(name)
        return quota is not None and quota.is_parent

    def tree_id(self, name: str) -> str:
        """Return the tree id; empty for quotas outside every tree and for unknown ones."""
        quota = self._quotas.get(name)
        return quota.tree_id if quota is not None else ""

    def to_json(self) -> dict[str, Any]:
        """Return what GET /elasticQuota answers."""
        known = sorted({ROOT_QUOTA, *self._quotas, *self._children})
        return {
            "quotaInfoMap": {name: _shown(self._quotas[name]) for name in sorted(self._quotas)},
            "quotaHierarchyInfo": {name: sorted(self._children.get(name, ())) for name in known},
        }

    # -- changing

    def handle(self, event: Event) -> None:
        match event:
            case Seen(quota):
                self._live.setdefault(quota.name, {})[quota.namespace] = quota
                pending = self._pending.get(quota.name)
                if pending is not None and pending.quota is not None and pending.quota.says_the_same_as(quota):
                    del self._pending[quota.name]
                self._settle(quota.name)
            case Gone(namespace, name):
                objects = self._live.get(name, {})
                objects.pop(namespace, None)
                if not objects:
                    self._live.pop(name, None)
                    pending = self._pending.get(name)
                    if pending is not None and pending.quota is None:
                        del self._pending[name]
                self._settle(name)
            case Admitted(quota, at):
                self._pending[quota.name] = _Pending(quota, at + ADMITTED_FOR_S)
                self._settle(quota.name)
            case Released(name, at):
                self._pending[name] = _Pending(None, at + ADMITTED_FOR_S)
                self._settle(name)
            case Elapsed(now):
                for name in [name for name, pending in self._pending.items() if pending.until <= now]:
                    del self._pending[name]
                    self._settle(name)

    def _settle(self, name: str) -> None:
        """Update what is derived from one quota."""
        before, after = self._quotas.get(name), self._decide(name)
        if before is not None:
            _discard(self._children, before.parent, name)
            for namespace in before.namespaces:
                _discard(self._claims, namespace, name)
            del self._quotas[name]
        if after is not None:
            self._quotas[name] = after
            if after.parent:
                self._children.setdefault(after.parent, set()).add(name)
            for namespace in after.namespaces:
                self._claims.setdefault(namespace, set()).add(name)

    def _decide(self, name: str) -> QuotaInfo | None:
        pending = self._pending.get(name)
        if pending is not None:
            return pending.quota
        objects = self._live.get(name)
        if not objects:
            return None
        # Two objects of one name can only come in while validation was off; the older one was there first.
        return min(objects.values(), key=lambda quota: (quota.created, quota.namespace))


def _discard(sets: dict[str, set[str]], key: str, name: str) -> None:
    members = sets.get(key)
    if members is not None:
        members.discard(name)
        if not members:
            del sets[key]


def _shown(quota: QuotaInfo) -> dict[str, Any]:
    return {
        "name": quota.name,
        "parentName": quota.parent,
        "isParent": quota.is_parent,
        "allowLentResource": quota.allow_lent_resource,
        "max": vector.to_wire(quota.max),
        "min": vector.to_wire(quota.min),
    }
