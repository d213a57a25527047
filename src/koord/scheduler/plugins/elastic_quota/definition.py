"""An ElasticQuota and a pod as the quota tree sees them, and the rules that hold for all quotas."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import quota_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.quota_codecs import is_quota_preemptible, pod_quota_name
from koord.api.config.scheduler.koordinator_args import ElasticQuotaArgs, defaulted_elastic_quota
from koord.api.koordinator.protocol import A_QUOTA_TOTAL_RESOURCE
from koord.api.koordinator.resource_name import DEPRECATED_BATCH
from koord.api.koordinator.sigs_scheduling import ElasticQuota
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.policy.quota import QuotaAddress, QuotaRecord, record_fields
from koord.values.resources import Counts


class QuotaDefinition(QuotaRecord, frozen=True, kw_only=True):
    """The definition of one quota with its amounts."""

    ignores_default_tree: bool = False  # a tree root whose total is not taken off the default tree
    total: Counts = {}  # of a tree root
    min: Counts = {}
    max: Counts = {}
    weight: Counts = {}

    @staticmethod
    def from_elastic_quota(quota: ElasticQuota) -> QuotaDefinition:
        """Read an ElasticQuota. Raises QuantityError when min or max holds no quantity."""
        meta = quota.metadata
        labels = quota_codecs.parse_quota_labels(meta.labels)
        total = quota_codecs.parse_quota_resources(meta.annotations, A_QUOTA_TOTAL_RESOURCE)
        return QuotaDefinition(
            **record_fields(quota, labels),
            ignores_default_tree=labels.ignore_default_tree,
            total={} if total is None or isinstance(total, MalformedAnnotation) else resource_amounts(total),
            min=_with_current_names(resource_amounts(quota.spec.min)),
            max=_with_current_names(resource_amounts(quota.spec.max)),
            weight=_with_current_names(
                resource_amounts(quota_codecs.quota_shared_weight(meta.annotations, quota.spec.max))
            ),
        )


def _with_current_names(given: Counts) -> Counts:
    """Rename deprecated batch resources; where both names are present the old one is left alone."""
    if DEPRECATED_BATCH.keys().isdisjoint(given):
        return given
    new = DEPRECATED_BATCH
    return {new[name] if name in new and new[name] not in given else name: n for name, n in given.items()}


class QuotaRules(msgspec.Struct, frozen=True, kw_only=True):
    """The plugin's arguments and feature gates that affect quotas."""

    limits_by_runtime: bool = True  # limit by what a quota is entitled to now; otherwise by its max
    scale_min: bool = True
    check_parents: bool = False
    has_default_group: bool = True  # of pods without a quota (gate DisableDefaultQuota: they belong to none)
    multi_quota_tree: bool = False  # gate MultiQuotaTree
    guarantee_usage: bool = False  # gate ElasticQuotaGuaranteeUsage
    # Pods that are being deleted count until they are gone; with gate ElasticQuotaIgnoreTerminatingPod until the end of
    # their grace period, with ElasticQuotaImmediateIgnoreTerminatingPod not at all.
    ignore_terminating: bool = False
    ignore_terminating_immediately: bool = False
    default_max: Counts = {}
    system_max: Counts = {}

    @staticmethod
    def from_args(
        args: ElasticQuotaArgs,
        *,
        disable_default_quota: bool = False,
        multi_quota_tree: bool = False,
        guarantee_usage: bool = False,
        ignore_terminating: bool = False,
        ignore_terminating_immediately: bool = False,
    ) -> QuotaRules:
        full = defaulted_elastic_quota(args)
        return QuotaRules(
            limits_by_runtime=full.enable_runtime_quota is not False,
            scale_min=full.enable_min_quota_scale is not False,
            check_parents=full.enable_check_parent_quota is True,
            has_default_group=not disable_default_quota,
            multi_quota_tree=multi_quota_tree,
            guarantee_usage=guarantee_usage,
            ignore_terminating=ignore_terminating,
            ignore_terminating_immediately=ignore_terminating_immediately,
            default_max=resource_amounts(full.default_quota_group_max),
            system_max=resource_amounts(full.system_quota_group_max),
        )


class QuotaPod(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    namespace: str
    name: str
    quota: str = ""  # by its label
    requests: Counts = {}
    preemptible: bool = True
    priority: int = 0
    has_node: bool = False  # it has a node
    started_s: float = 0.0  # when it started; of equals in priority the earlier is the more important

    @staticmethod
    def from_pod(
        *,
        uid: str,
        namespace: str,
        name: str,
        labels: Mapping[str, str],
        requests: Counts,
        priority: int = 0,
        since: float = 0.0,
    ) -> QuotaPod:
        return QuotaPod(
            uid=uid,
            namespace=namespace,
            name=name,
            quota=pod_quota_name(labels) or "",
            requests=requests,
            preemptible=is_quota_preemptible(labels),
            priority=priority,
            started_s=since,
        )

    @property
    def address(self) -> QuotaAddress:
        return (self.quota, self.namespace)
