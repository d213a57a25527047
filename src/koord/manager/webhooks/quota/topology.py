"""The quota topology: which quotas exist, their parents and children, and the namespaces that they claim.

The state is a function of two things only: the live objects, and the admitted writes that are not yet observed.
`handle` is the only mutator, and leaves at every step what a rebuild from those two would give. An admitted write hides
the live object until that object shows it, or until it expires: it may have failed after admission.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.quota_codecs import pod_quota_name
from koord.api.koordinator.protocol import A_QUOTA_ALLOCATED, A_QUOTA_GUARANTEED, ROOT_QUOTA
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.policy.quota import NOT_CREATED, QuotaIndex, QuotaRecord, record_fields
from koord.values import resources as vector
from koord.values.resources import Resources


class QuotaInfo(QuotaRecord, frozen=True, kw_only=True):
    """One ElasticQuota in the topology, with exact amounts, which messages show."""

    allow_force_update: bool = False
    min: Resources = {}
    max: Resources = {}
    guaranteed: Resources = {}
    allocated: Resources = {}

    @staticmethod
    def from_quota(quota: ElasticQuota) -> QuotaInfo:
        """Build it from the object. Raise QuantityError when min or max holds no quantity."""
        labels = quota_codecs.parse_quota_labels(quota.metadata.labels)
        return QuotaInfo(
            **record_fields(quota, labels),
            allow_force_update=labels.allow_force_update,
            min=vector.parse(quota.spec.min),
            max=vector.parse(quota.spec.max),
            guaranteed=_parse_published(quota, A_QUOTA_GUARANTEED),
            allocated=_parse_published(quota, A_QUOTA_ALLOCATED),
        )

    def has_same_spec(self, other: QuotaInfo) -> bool:
        """Return whether users asked for the same: the scheduler's figures and the object's age do not count."""
        return self._spec_only() == other._spec_only()

    def _spec_only(self) -> QuotaInfo:
        return msgspec.structs.replace(self, created=NOT_CREATED, guaranteed={}, allocated={})


def _parse_published(quota: ElasticQuota, key: str) -> Resources:
    """Parse the scheduler's figures; unwritten or unreadable ones are empty."""
    found = quota_codecs.parse_quota_resources(quota.metadata.annotations, key)
    return {} if found is None or isinstance(found, MalformedAnnotation) else vector.parse(found)


# Long enough for a slow watch, short enough that a write that failed elsewhere does not block a name for good.
PENDING_WRITE_TTL_S = 30.0


class QuotaObserved(msgspec.Struct, frozen=True):
    quota: QuotaInfo


class QuotaObjectDeleted(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class QuotaWriteAdmitted(msgspec.Struct, frozen=True):
    """A create or update passed validation at this time."""

    quota: QuotaInfo
    at: float


class QuotaDeleteAdmitted(msgspec.Struct, frozen=True):
    name: str
    at: float


class TimeElapsed(msgspec.Struct, frozen=True):
    now: float


TopologyEvent = QuotaObserved | QuotaObjectDeleted | QuotaWriteAdmitted | QuotaDeleteAdmitted | TimeElapsed


class _PendingWrite(msgspec.Struct, frozen=True):
    quota: QuotaInfo | None  # None: to be deleted
    until: float


class QuotaTopology(QuotaIndex[QuotaInfo]):
    def __init__(self) -> None:
        super().__init__()
        self._pending: dict[str, _PendingWrite] = {}

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

    def ancestors(self, name: str) -> Iterator[QuotaInfo]:
        """Iterate from the parent upwards, as far as it is known; a cycle is walked once."""
        met = {name}
        quota = self._quotas.get(name)
        while quota is not None and quota.parent not in met:
            met.add(quota.parent)
            quota = self._quotas.get(quota.parent)
            if quota is not None:
                yield quota

    def quota_of(self, labels: Mapping[str, str], namespace: str, *, default: bool = True) -> str:
        """Return the name of a pod's quota, which need not exist. Without `default` only the label counts."""
        return self.quota_for((pod_quota_name(labels) or "", namespace), default=default)

    def is_parent(self, name: str) -> bool:
        quota = self._quotas.get(name)
        return quota is not None and quota.is_parent

    def tree_id(self, name: str) -> str:
        """Return the tree id; empty for quotas outside every tree and for unknown ones."""
        quota = self._quotas.get(name)
        return quota.tree if quota is not None else ""

    def to_json(self) -> dict[str, Any]:
        known = sorted({ROOT_QUOTA, *self._quotas, *self._children})
        return {
            "quotaInfoMap": {name: _quota_json(self._quotas[name]) for name in sorted(self._quotas)},
            "quotaHierarchyInfo": {name: sorted(self._children.get(name, ())) for name in known},
        }

    # -- changing

    def handle(self, event: TopologyEvent) -> None:
        match event:
            case QuotaObserved(quota):
                pending = self._pending.get(quota.name)
                if pending is not None and pending.quota is not None and pending.quota.has_same_spec(quota):
                    del self._pending[quota.name]
                self.upsert(quota)
            case QuotaObjectDeleted(namespace, name):
                self.remove(namespace, name)
                pending = self._pending.get(name)
                if pending is not None and pending.quota is None and name not in self._objects:
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

    def _effective_quota(self, name: str) -> QuotaInfo | None:
        pending = self._pending.get(name)
        return pending.quota if pending is not None else super()._effective_quota(name)


def _quota_json(quota: QuotaInfo) -> dict[str, Any]:
    return {
        "name": quota.name,
        "parentName": quota.parent,
        "isParent": quota.is_parent,
        "allowLentResource": quota.lends,
        "max": vector.to_wire(quota.max),
        "min": vector.to_wire(quota.min),
    }
