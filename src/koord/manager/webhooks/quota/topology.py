"""The quota topology: which quotas exist, their parents and children, and the namespaces that they claim.

The state is a function of two things only: the live objects, and the admitted writes that are not yet
observed.
`handle` is the only mutator, and leaves at every step what a rebuild from those two would give. An admitted
write
hides the live object until that object shows it, or until it expires: it may have failed after admission.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.quota_codecs import pod_quota_name
from koord.api.koordinator.protocol import A_QUOTA_ALLOCATED, A_QUOTA_GUARANTEED, DEFAULT_QUOTA, ROOT_QUOTA
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.values import resources as vector
from koord.values.resources import Resources

_NOT_CREATED = datetime.max.replace(tzinfo=UTC)


class QuotaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One ElasticQuota in the topology. Names are global: a tree knows a quota by name, wherever its object lives."""

    name: str
    namespace: str = ""
    created: datetime = _NOT_CREATED  # an object that is being created is younger than all that exist
    parent: str = ROOT_QUOTA  # "" for the root quota alone
    is_parent: bool = False
    allow_lent_resource: bool = True
    allow_force_update: bool = False
    tree_id: str = ""
    is_tree_root: bool = False
    min: Resources = {}
    max: Resources = {}
    guaranteed: Resources = {}
    allocated: Resources = {}
    namespaces: tuple[str, ...] = ()

    @staticmethod
    def from_quota(quota: ElasticQuota) -> QuotaInfo:
        """Build it from the object. Raise QuantityError when min or max holds no quantity."""
        meta = quota.metadata
        labels = quota_codecs.parse_quota_labels(meta.labels)
        return QuotaInfo(
            name=meta.name,
            namespace=meta.namespace,
            created=meta.creation_timestamp or _NOT_CREATED,
            parent="" if meta.name == ROOT_QUOTA else labels.parent,
            is_parent=labels.is_parent,
            allow_lent_resource=labels.allow_lent_resource,
            allow_force_update=labels.allow_force_update,
            tree_id=labels.tree_id,
            is_tree_root=labels.is_tree_root,
            min=vector.parse(quota.spec.min),
            max=vector.parse(quota.spec.max),
            guaranteed=_parse_published(quota, A_QUOTA_GUARANTEED),
            allocated=_parse_published(quota, A_QUOTA_ALLOCATED),
            namespaces=quota_codecs.quota_namespaces(meta.annotations),
        )

    def has_same_spec(self, other: QuotaInfo) -> bool:
        """Return whether users asked for the same: the scheduler's figures and the object's age do not count."""
        return self._spec_only() == other._spec_only()

    def _spec_only(self) -> QuotaInfo:
        return msgspec.structs.replace(self, created=_NOT_CREATED, guaranteed={}, allocated={})


def _parse_published(quota: ElasticQuota, key: str) -> Resources:
    """Parse the scheduler's figures; unwritten or unreadable ones are empty."""
    found = quota_codecs.parse_quota_resources(quota.metadata.annotations, key)
    return {} if found is None or isinstance(found, MalformedAnnotation) else vector.parse(found)


# Long enough for a slow watch, short enough that a write that failed elsewhere does not block a name for good.
PENDING_WRITE_TTL_S = 30.0


class QuotaObserved(msgspec.Struct, frozen=True):
    """The informer shows this object."""

    quota: QuotaInfo


class QuotaObjectDeleted(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class QuotaWriteAdmitted(msgspec.Struct, frozen=True):
    """A create or update passed validation at this time."""

    quota: QuotaInfo
    at: float


class QuotaDeleteAdmitted(msgspec.Struct, frozen=True):
    """A delete passed validation at this time."""

    name: str
    at: float


class TimeElapsed(msgspec.Struct, frozen=True):
    """Time has advanced to `now`."""

    now: float


TopologyEvent = QuotaObserved | QuotaObjectDeleted | QuotaWriteAdmitted | QuotaDeleteAdmitted | TimeElapsed


class _PendingWrite(msgspec.Struct, frozen=True):
    quota: QuotaInfo | None  # None: to be deleted
    until: float


class QuotaTopology:
    def __init__(self) -> None:
        self._live: dict[str, dict[str, QuotaInfo]] = {}  # name -> namespace of the object -> quota
        self._pending: dict[str, _PendingWrite] = {}
        self._quotas: dict[str, QuotaInfo] = {}
        self._children: dict[str, set[str]] = {}
        self._claims: dict[str, set[str]] = {}  # namespace -> quotas that list it

    @staticmethod
    def build(
        live: Iterable[QuotaInfo], admitted: Iterable[QuotaWriteAdmitted | QuotaDeleteAdmitted] = ()
    ) -> QuotaTopology:
        """Build the state from these objects and these open admissions."""
        topology = QuotaTopology()
        for quota in live:
            topology.handle(QuotaObserved(quota))
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
        named = pod_quota_name(labels)
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
            "quotaInfoMap": {name: _quota_json(self._quotas[name]) for name in sorted(self._quotas)},
            "quotaHierarchyInfo": {name: sorted(self._children.get(name, ())) for name in known},
        }

    # -- changing

    def handle(self, event: TopologyEvent) -> None:
        match event:
            case QuotaObserved(quota):
                self._live.setdefault(quota.name, {})[quota.namespace] = quota
                pending = self._pending.get(quota.name)
                if pending is not None and pending.quota is not None and pending.quota.has_same_spec(quota):
                    del self._pending[quota.name]
                self._refresh(quota.name)
            case QuotaObjectDeleted(namespace, name):
                objects = self._live.get(name, {})
                objects.pop(namespace, None)
                if not objects:
                    self._live.pop(name, None)
                    pending = self._pending.get(name)
                    if pending is not None and pending.quota is None:
                        del self._pending[name]
                self._refresh(name)
            case QuotaWriteAdmitted(quota, at):
                self._pending[quota.name] = _PendingWrite(quota, at + PENDING_WRITE_TTL_S)
                self._refresh(quota.name)
            case QuotaDeleteAdmitted(name, at):
                self._pending[name] = _PendingWrite(None, at + PENDING_WRITE_TTL_S)
                self._refresh(name)
            case TimeElapsed(now):
                for name in [name for name, pending in self._pending.items() if pending.until <= now]:
                    del self._pending[name]
                    self._refresh(name)

    def _refresh(self, name: str) -> None:
        """Update what is derived from one quota."""
        before, after = self._quotas.get(name), self._effective_quota(name)
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

    def _effective_quota(self, name: str) -> QuotaInfo | None:
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


def _quota_json(quota: QuotaInfo) -> dict[str, Any]:
    return {
        "name": quota.name,
        "parentName": quota.parent,
        "isParent": quota.is_parent,
        "allowLentResource": quota.allow_lent_resource,
        "max": vector.to_wire(quota.max),
        "min": vector.to_wire(quota.min),
    }
