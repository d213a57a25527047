"""The quota topology: which quotas exist, their parents and children, and the namespaces that they claim.

The state is a function of two things only: the live objects, and the admitted writes that are not yet
observed.
`handle` is the only mutator, and leaves at every step what a rebuild from those two would give. An admitted
write
hides the live object until that object shows it, or until it expires: it may have failed after admission.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from koord.api.annotations import quota_resources, quota_tree
from koord.api.annotations.codec import Malformed
from koord.api.protocol import A_QUOTA_ALLOCATED, A_QUOTA_GUARANTEED, ROOT_QUOTA
from koord.api.sigs_scheduling import ElasticQuota
from koord.values import resources as vector
from koord.values.resources import Resources

_NOT_YET = datetime.max.replace(tzinfo=UTC)


class QuotaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One ElasticQuota in the topology. Names are global: a tree knows a quota by name, wherever its object lives."""

    name: str
    namespace: str = ""
    created: datetime = _NOT_YET  # an object that is being created is younger than all that exist
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
    def of(quota: ElasticQuota) -> QuotaInfo:
        """Build it from the object. Raise QuantityError when min or max holds no quantity."""
        meta = quota.metadata
        labels = quota_tree.parse(meta.labels)
        return QuotaInfo(
            name=meta.name,
            namespace=meta.namespace,
            created=meta.creation_timestamp or _NOT_YET,
            parent="" if meta.name == ROOT_QUOTA else labels.parent,
            is_parent=labels.is_parent,
            allow_lent_resource=labels.allow_lent_resource,
            allow_force_update=labels.allow_force_update,
            tree_id=labels.tree_id,
            is_tree_root=labels.is_tree_root,
            min=vector.parse(quota.spec.min),
            max=vector.parse(quota.spec.max),
            guaranteed=_published(quota, A_QUOTA_GUARANTEED),
            allocated=_published(quota, A_QUOTA_ALLOCATED),
            namespaces=quota_resources.namespaces(meta.annotations),
        )

    def says_the_same_as(self, other: QuotaInfo) -> bool:
        """Return whether users asked for the same: the scheduler's figures and the object's age do not count."""
        return self._asked() == other._asked()

    def _asked(self) -> QuotaInfo:
        return msgspec.structs.replace(self, created=_NOT_YET, guaranteed={}, allocated={})


def _published(quota: ElasticQuota, key: str) -> Resources:
    """Parse the scheduler's figures; unwritten or unreadable ones are empty."""
    found = quota_resources.parse(quota.metadata.annotations, key)
    return {} if found is None or isinstance(found, Malformed) else vector.parse(found)
