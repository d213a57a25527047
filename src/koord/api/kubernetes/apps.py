"""This module holds apps/v1: the workload kinds. Templates stay unstructured: objects are made from them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from koord.api.kubernetes.meta import LabelSelector, Object
from koord.api.model import IntOrString, LegacyCondition, RawTemplate, Submodel


class RollingUpdateDeployment(Submodel, frozen=True, kw_only=True):
    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DeploymentStrategy(Submodel, frozen=True, kw_only=True):
    type: str = ""  # RollingUpdate, Recreate
    rolling_update: RollingUpdateDeployment | None = None


class DeploymentSpec(Submodel, frozen=True, kw_only=True):
    replicas: int | None = None
    selector: LabelSelector | None = None
    template: RawTemplate = {}
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None


class DeploymentCondition(Submodel, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    last_update_time: datetime | None = None
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class DeploymentStatus(Submodel, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int | None = None
    conditions: tuple[DeploymentCondition, ...] = ()
    collision_count: int | None = None


class Deployment(Object, frozen=True, kw_only=True):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(Submodel, frozen=True, kw_only=True):
    replicas: int | None = None
    min_ready_seconds: int = 0
    selector: LabelSelector | None = None
    template: RawTemplate = {}


class ReplicaSetStatus(Submodel, frozen=True, kw_only=True):
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int | None = None
    observed_generation: int = 0
    conditions: tuple[LegacyCondition, ...] = ()


class ReplicaSet(Object, frozen=True, kw_only=True):
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class RollingUpdateStatefulSet(Submodel, frozen=True, kw_only=True):
    partition: int | None = None
    max_unavailable: IntOrString | None = None


class StatefulSetUpdateStrategy(Submodel, frozen=True, kw_only=True):
    type: str = ""  # RollingUpdate, OnDelete
    rolling_update: RollingUpdateStatefulSet | None = None


class StatefulSetClaimRetentionPolicy(Submodel, frozen=True, kw_only=True):
    when_deleted: str = ""  # Retain, Delete
    when_scaled: str = ""


class StatefulSetOrdinals(Submodel, frozen=True, kw_only=True):
    start: int = 0


class StatefulSetSpec(Submodel, frozen=True, kw_only=True):
    replicas: int | None = None
    selector: LabelSelector | None = None
    template: RawTemplate = {}
    volume_claim_templates: tuple[RawTemplate, ...] = ()
    service_name: str = ""
    pod_management_policy: str = ""  # OrderedReady, Parallel
    update_strategy: StatefulSetUpdateStrategy = StatefulSetUpdateStrategy()
    revision_history_limit: int | None = None
    min_ready_seconds: int = 0
    persistent_volume_claim_retention_policy: StatefulSetClaimRetentionPolicy | None = None
    ordinals: StatefulSetOrdinals | None = None


class StatefulSetStatus(Submodel, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None
    conditions: tuple[LegacyCondition, ...] = ()


class StatefulSet(Object, frozen=True, kw_only=True):
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class RollingUpdateDaemonSet(Submodel, frozen=True, kw_only=True):
    max_unavailable: IntOrString | None = None
    max_surge: IntOrString | None = None


class DaemonSetUpdateStrategy(Submodel, frozen=True, kw_only=True):
    type: str = ""  # RollingUpdate, OnDelete
    rolling_update: RollingUpdateDaemonSet | None = None


class DaemonSetSpec(Submodel, frozen=True, kw_only=True):
    selector: LabelSelector | None = None
    template: RawTemplate = {}
    update_strategy: DaemonSetUpdateStrategy = DaemonSetUpdateStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None


class DaemonSetStatus(Submodel, frozen=True, kw_only=True):
    current_number_scheduled: int = 0
    number_misscheduled: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    observed_generation: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    collision_count: int | None = None
    conditions: tuple[LegacyCondition, ...] = ()


class DaemonSet(Object, frozen=True, kw_only=True):
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class ControllerRevision(Object, frozen=True, kw_only=True):
    """ControllerRevision holds a patch in `data` that restores the owner's template."""

    data: dict[str, Any] | None = None
    revision: int = 0
