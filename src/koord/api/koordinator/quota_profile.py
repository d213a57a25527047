"""This module holds quota.koordinator.sh/v1alpha1: a profile from which the manager keeps the root quota of a
node pool.
"""

from __future__ import annotations

from typing import Annotated

from koord.api.kubernetes.meta import LabelSelector, Object
from koord.api.model import Submodel
from koord.api.schema_markers import REQUIRED, never_omitted


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
