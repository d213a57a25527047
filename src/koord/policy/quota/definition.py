"""An ElasticQuota and a pod as the quota tree sees them, and the rules that hold for all quotas."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from koord.api.annotations import quota_resources, quota_tree
from koord.api.annotations.codec import Malformed
from koord.api.config.scheduler.elastic_quota import ElasticQuotaArgs, defaulted
from koord.api.pod_resources import amounts
from koord.api.protocol import A_QUOTA_TOTAL_RESOURCE, ROOT_QUOTA
from koord.api.resource_name import DEPRECATED_BATCH
from koord.api.sigs_scheduling import ElasticQuota
from koord.policy.quota.amount import Counts

_NOT_YET = datetime.max.replace(tzinfo=UTC)


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of one quota. Names are global: a quota is known by its name, whatever namespace its object is
    in.
    """

    name: str
    namespace: str = ""
    created: datetime = _NOT_YET
    parent: str = ROOT_QUOTA
    is_parent: bool = False
    lends: bool = True
    tree: str = ""
    is_tree_root: bool = False
    beside_default_tree: bool = False  # a tree root whose total is not taken off the default tree
    total: Counts = {}  # of a tree root
    min: Counts = {}
    max: Counts = {}
    weight: Counts = {}
    namespaces: tuple[str, ...] = ()

    @staticmethod
    def of(quota: ElasticQuota) -> Quota:
        """Read an ElasticQuota. Raises QuantityError when min or max holds no quantity."""
        meta = quota.metadata
        labels = quota_tree.parse(meta.labels)
        total = quota_resources.parse(meta.annotations, A_QUOTA_TOTAL_RESOURCE)
        return Quota(
            name=meta.name,
            namespace=meta.namespace,
            created=meta.creation_timestamp or _NOT_YET,
            parent=labels.parent,
            is_parent=labels.is_parent,
            lends=labels.allow_lent_resource,
            tree=labels.tree_id,
            is_tree_root=labels.is_tree_root,
            beside_default_tree=labels.ignore_default_tree,
            total={} if total is None or isinstance(total, Malformed) else amounts(total),
            min=_renamed(amounts(quota.spec.min)),
            max=_renamed(amounts(quota.spec.max)),
            weight=_renamed(amounts(quota_resources.shared_weight(meta.annotations, quota.spec.max))),
            namespaces=quota_resources.namespaces(meta.annotations),
        )

    @property
    def age(self) -> tuple[datetime, str, str]:
        """Return the sort key by which, of two quotas that claim the same, the older one wins."""
        return (self.created, self.name, self.namespace)


def _renamed(given: Counts) -> Counts:
    """Rename deprecated batch resources; where both names are present the old one is left alone."""
    if DEPRECATED_BATCH.keys().isdisjoint(given):
        return given
    new = DEPRECATED_BATCH
    return {new[name] if name in new and new[name] not in given else name: n for name, n in given.items()}


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The plugin's arguments and feature gates that affect quotas."""

    runtime: bool = True  # limit by what a quota is entitled to now; otherwise by its max
    scale_min: bool = True
    check_parents: bool = False
    default_group: bool = True  # pods without a quota belong to the default group (gate DisableDefaultQuota: to none)
    many_trees: bool = False  # gate MultiQuotaTree
    guarantee_usage: bool = False  # gate ElasticQuotaGuaranteeUsage
    default_max: Counts = {}
    system_max: Counts = {}

    @staticmethod
    def of(
        args: ElasticQuotaArgs,
        *,
        disable_default_quota: bool = False,
        multi_quota_tree: bool = False,
        guarantee_usage: bool = False,
    ) -> Rules:
        full = defaulted(args)
        return Rules(
            runtime=full.enable_runtime_quota is not False,
            scale_min=full.enable_min_quota_scale is not False,
            check_parents=full.enable_check_parent_quota is True,
            default_group=not disable_default_quota,
            many_trees=multi_quota_tree,
            guarantee_usage=guarantee_usage,
            default_max=amounts(full.default_quota_group_max),
            system_max=amounts(full.system_quota_group_max),
        )
