"""This module holds scheduling.sigs.k8s.io/v1alpha1: the two kinds that Koordinator shares with
scheduler-plugins.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from koord.api.kubernetes.meta import Object
from koord.api.model import Submodel
from koord.api.schema_markers import NULLABLE, Int32, ResourceList

POD_GROUP_PHASES = (
    "Pending",
    "PreScheduling",
    "Scheduling",
    "Scheduled",
    "Running",
    "Unknown",
    "Finished",
    "Failed",
)


class ElasticQuotaSpec(Submodel, frozen=True, kw_only=True):
    min: ResourceList = {}
    max: ResourceList = {}


class ElasticQuotaStatus(Submodel, frozen=True, kw_only=True):
    used: ResourceList = {}


class ElasticQuota(Object, frozen=True, kw_only=True):
    """A share of the cluster with a guarantee and a ceiling. Its tree and its runtime sit in labels and annotations."""

    spec: ElasticQuotaSpec = ElasticQuotaSpec()
    status: ElasticQuotaStatus = ElasticQuotaStatus()


class PodGroupSpec(Submodel, frozen=True, kw_only=True):
    min_member: Int32 = 0
    min_resources: ResourceList = {}
    schedule_timeout_seconds: Int32 | None = None


class PodGroupStatus(Submodel, frozen=True, kw_only=True):
    """Go clients write scheduleStartTime as null when it is not set."""

    phase: str = ""
    occupied_by: str = ""
    scheduled: Int32 = 0
    running: Int32 = 0
    succeeded: Int32 = 0
    failed: Int32 = 0
    schedule_start_time: Annotated[datetime, NULLABLE] | None = None


class PodGroup(Object, frozen=True, kw_only=True):
    """Pods that start together or not at all."""

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()
