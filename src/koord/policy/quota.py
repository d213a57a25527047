"""Index ElasticQuotas: what every program reads of one, and which of them a name or a namespace belongs to.

The scheduler's trees and the manager's topology build on it, so that webhooks and scheduler agree on a pod's quota.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.koordinator.protocol import DEFAULT_QUOTA, ROOT_QUOTA
from koord.api.koordinator.sigs_scheduling import ElasticQuota

NOT_CREATED = datetime.max.replace(tzinfo=UTC)  # an object that is being created is younger than all that exist

# The quota that a pod names ("" for none) and its namespace: pods with the same address share a quota.
QuotaAddress: TypeAlias = tuple[str, str]


class QuotaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One ElasticQuota without its amounts, which each program counts in its own units.

    Names are global: a quota is known by its name, whatever namespace its object is in.
    """

    name: str
    namespace: str = ""
    created: datetime = NOT_CREATED
    parent: str = ROOT_QUOTA  # "" for the root quota alone
    is_parent: bool = False
    lends: bool = True
    tree: str = ""
    is_tree_root: bool = False
    namespaces: tuple[str, ...] = ()

    @property
    def seniority(self) -> tuple[datetime, str, str]:
        """Return the sort key by which, of two quotas that claim the same, the older one wins."""
        return (self.created, self.name, self.namespace)


def record_fields(quota: ElasticQuota, labels: quota_codecs.QuotaLabels) -> dict[str, Any]:
    """Return the fields of a `QuotaRecord` by name, for the record of a program to be built with."""
    meta = quota.metadata
    return {
        "name": meta.name,
        "namespace": meta.namespace,
        "created": meta.creation_timestamp or NOT_CREATED,
        "parent": "" if meta.name == ROOT_QUOTA else labels.parent,
        "is_parent": labels.is_parent,
        "lends": labels.allow_lent_resource,
        "tree": labels.tree_id,
        "is_tree_root": labels.is_tree_root,
        "namespaces": quota_codecs.quota_namespaces(meta.annotations),
    }


Q = TypeVar("Q", bound=QuotaRecord)


class QuotaIndex(Generic[Q]):
    """The quotas by name. Of objects that share a name or a namespace the oldest counts, in any order of events."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Q]] = {}  # name -> namespace of the object
        self._quotas: dict[str, Q] = {}
        self._children: dict[str, set[str]] = {}
        self._claims: dict[str, set[str]] = {}  # namespace -> quotas that list it

    @property
    def quotas(self) -> Mapping[str, Q]:
        return self._quotas

    def __getitem__(self, name: str) -> Q:
        return self._quotas[name]

    def get(self, name: str) -> Q | None:
        return self._quotas.get(name)

    def __iter__(self) -> Iterator[Q]:
        return iter(self._quotas.values())

    def children(self, name: str) -> list[Q]:
        """Return the children sorted by name."""
        return [self._quotas[child] for child in sorted(self._children.get(name, ()))]

    def upsert(self, quota: Q) -> bool:
        """Add or update a quota and return whether anything changed."""
        self._objects.setdefault(quota.name, {})[quota.namespace] = quota
        return self._refresh(quota.name)

    def remove(self, namespace: str, name: str) -> bool:
        objects = self._objects.get(name, {})
        objects.pop(namespace, None)
        if not objects:
            self._objects.pop(name, None)
        return self._refresh(name)

    def _effective_quota(self, name: str) -> Q | None:
        """Return the quota that the name stands for. Two objects of one name come in while validation is off."""
        objects = self._objects.get(name)
        return min(objects.values(), key=lambda quota: quota.seniority) if objects else None

    def _refresh(self, name: str) -> bool:
        """Update what is derived from one quota."""
        before, after = self._quotas.get(name), self._effective_quota(name)
        if before == after:
            return False
        if before is not None:
            del self._quotas[name]
            _discard(self._children, before.parent, name)
            for namespace in before.namespaces:
                _discard(self._claims, namespace, name)
        if after is not None:
            self._quotas[name] = after
            if after.parent:
                self._children.setdefault(after.parent, set()).add(name)
            for namespace in after.namespaces:
                self._claims.setdefault(namespace, set()).add(name)
        return True

    def owner_of(self, namespace: str, *, besides: str = "") -> str | None:
        """Return the quota that lists the namespace; of several the oldest, so that a late claim takes nothing away."""
        claims = self._claims.get(namespace)
        if not claims:
            return None
        others = [self._quotas[name] for name in claims if name != besides]
        return min(others, key=lambda quota: quota.seniority).name if others else None

    def quota_of_namespace(self, namespace: str) -> str | None:
        namesake = self._quotas.get(namespace)
        if namesake is not None and namesake.namespace == namespace:
            return namespace
        return self.owner_of(namespace)

    def quota_for(self, address: QuotaAddress, *, default: bool) -> str:
        """Return the name of the quota that an address belongs to, which need not exist; "" is none.

        Without `default` only the name counts that a pod states itself.
        """
        named, namespace = address
        if named or not default:
            return named
        return self.quota_of_namespace(namespace) or DEFAULT_QUOTA


def _discard(sets: dict[str, set[str]], key: str, name: str) -> None:
    members = sets.get(key)
    if members is not None:
        members.discard(name)
        if not members:
            del sets[key]
