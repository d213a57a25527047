"""This module holds the profiles that the manager applies: config.koordinator.sh/v1alpha1, which the pod webhook
puts on matching pods, and quota.koordinator.sh/v1alpha1, from which the manager keeps the root quota of a node
pool.
"""

from __future__ import annotations

from typing import Annotated, Any

from koord.api.kubernetes.meta import LabelSelector, Object
from koord.api.model import Submodel
from koord.api.schema_markers import PRESERVE_UNKNOWN, REQUIRED, Int32, IntOrString, SchemaRule, never_omitted


class ClusterColocationProfileSpec(Submodel, frozen=True, kw_only=True):
    """An absent or empty selector matches every pod: here null does not mean nothing, as it does elsewhere."""

    namespace_selector: LabelSelector | None = None
    selector: LabelSelector | None = None
    probability: IntOrString | None = None
    qos_class: Annotated[str, SchemaRule(enum=("LSE", "LSR", "LS", "BE", "SYSTEM"))] = ""
    priority_class_name: str = ""
    koordinator_priority: Int32 | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    label_keys_mapping: dict[str, str] = {}  # source key -> destination key
    annotation_keys_mapping: dict[str, str] = {}
    label_suffixes: dict[str, str] = {}
    scheduler_name: str = ""
    patch: Annotated[dict[str, Any], PRESERVE_UNKNOWN] | None = None


class ClusterColocationProfileStatus(Submodel, frozen=True, kw_only=True):
    """Empty upstream."""


class ClusterColocationProfile(Object, frozen=True, kw_only=True):
    """ClusterColocationProfile states what matching pods get at creation: a QoS class, a priority, labels, a
    scheduler, a patch.
    """

    spec: ClusterColocationProfileSpec = ClusterColocationProfileSpec()
    status: ClusterColocationProfileStatus = ClusterColocationProfileStatus()


class ElasticQuotaProfileSpec(Submodel, frozen=True, kw_only=True):
    quota_name: Annotated[str, REQUIRED] = never_omitted("")
    quota_labels: dict[str, str] = {}
    resource_ratio: str | None = None  # decimal text such as "0.9", times the pool's total
    node_selector: Annotated[LabelSelector, REQUIRED] | None = None


class ElasticQuotaProfileStatus(Submodel, frozen=True, kw_only=True):
    """Empty upstream."""


class ElasticQuotaProfile(Object, frozen=True, kw_only=True):
    """Sizes the root ElasticQuota of the selected nodes, in its own namespace."""

    spec: ElasticQuotaProfileSpec = ElasticQuotaProfileSpec()
    status: ElasticQuotaProfileStatus = ElasticQuotaProfileStatus()
