"""Decide what a Deployment does next: which ReplicaSets it creates, resizes and prunes, and its status. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.workload import Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet
from koord.api.model import to_dict
from koord.embedded.workloads import deployment_rollout
from koord.embedded.workloads.controller_ref import controller_reference
from koord.embedded.workloads.deployment_rollout import (
    ReplicaSetFamily,
    ReplicaSetSizes,
    rollout_bounds,
    total_size,
)
from koord.embedded.workloads.pod_control import POD_TEMPLATE_HASH, desired_replicas, template_hash, template_labels
from koord.kube.client.request_builder import Unstructured

DEFAULT_HISTORY_LIMIT = 10


class DeploymentView(msgspec.Struct, frozen=True, kw_only=True):
    deployment: Deployment
    sets: tuple[ReplicaSet, ...]
    old_pods_remain: bool = False  # of any ReplicaSet but the current one; read only when recreating
    now: datetime


class ReplicaSetChange(msgspec.Struct, frozen=True, kw_only=True):
    set: ReplicaSet
    replicas: int | None = None
    annotations: dict[str, str] = {}
    min_ready_seconds: int | None = None


class NewReplicaSet(msgspec.Struct, frozen=True, kw_only=True):
    replicas: int
    revision: int


class DeploymentPlan(msgspec.Struct, frozen=True, kw_only=True):
    create: NewReplicaSet | None = None
    changes: tuple[ReplicaSetChange, ...] = ()
    remove: tuple[ReplicaSet, ...] = ()
    revision: str = ""  # that the Deployment should carry; "" leaves it
    status: DeploymentStatus


def decide_deployment(view: DeploymentView) -> DeploymentPlan:
    now = view.now
    deployment = with_pause_condition(view.deployment, now)
    family = deployment_rollout.replica_set_family(deployment, view.sets)
    number = deployment_rollout.next_revision(family.old)
    if deployment.metadata.deletion_timestamp is not None:
        return DeploymentPlan(status=replica_counts(deployment, family, now))
    scaling = deployment.spec.paused or deployment_rollout.is_scaling(deployment, family)
    # A rollout that only changes its size makes no progress and misses no deadline.
    judge = replica_counts if scaling else rollout_status
    status = judge(deployment, family, now)
    if scaling:
        sizes: ReplicaSetSizes | None = deployment_rollout.scale_step(deployment, family)
    elif deployment.spec.strategy.type == deployment_rollout.RECREATE:
        sizes = deployment_rollout.recreate_step(deployment, family, view.old_pods_remain)
    else:
        sizes = None if family.new is None else deployment_rollout.roll_step(deployment, family)
    if sizes is None:
        make = NewReplicaSet(replicas=deployment_rollout.new_replica_set_size(deployment, family), revision=number)
        return DeploymentPlan(create=make, revision=str(number), status=status)
    new = family.new
    carried = str(max(number, deployment_rollout.replica_set_revision(new))) if new is not None else ""
    remove: tuple[ReplicaSet, ...] = ()
    if deployment.spec.paused or is_complete(deployment, status):
        remove = replica_sets_to_prune(deployment, family)
    return DeploymentPlan(
        changes=_replica_set_changes(deployment, family, sizes, number),
        remove=remove,
        revision=carried,
        status=_with_found_condition(deployment, family, status, now),
    )


def _replica_set_changes(
    deployment: Deployment, family: ReplicaSetFamily, sizes: ReplicaSetSizes, number: int
) -> tuple[ReplicaSetChange, ...]:
    """Return one write for each ReplicaSet: its size, the sizes that it remembers, and its annotations."""
    bounds = deployment_rollout.rollout_bounds(deployment)
    remembered = deployment_rollout.size_annotations(bounds.replicas, bounds.max_replicas)
    changes = []
    for s in family.all:
        replicas = sizes.get(s.metadata.name)
        annotations: dict[str, str] = {}
        # Of the ReplicaSets that keep their size only live ones and the current one are annotated: only theirs are
        # read.
        if replicas is not None or desired_replicas(s) > 0 or s is family.new:
            have = s.metadata.annotations
            annotations = {key: value for key, value in remembered.items() if have.get(key) != value}
        wait = None
        if s is family.new:
            annotations |= deployment_rollout.replica_set_annotation_changes(deployment, s, number)
            if s.spec.min_ready_seconds != deployment.spec.min_ready_seconds:
                wait = deployment.spec.min_ready_seconds
        if replicas is not None or annotations or wait is not None:
            changes.append(ReplicaSetChange(set=s, replicas=replicas, annotations=annotations, min_ready_seconds=wait))
    return tuple(changes)


def _with_found_condition(
    deployment: Deployment, family: ReplicaSetFamily, status: DeploymentStatus, now: datetime
) -> DeploymentStatus:
    if (
        family.new is None
        or progress_deadline_s(deployment) is None
        or deployment_condition(status.conditions, PROGRESSING) is not None
    ):
        return status
    message = f'Found new replica set "{family.new.metadata.name}"'
    conditions = with_deployment_condition(status.conditions, PROGRESSING, "True", "FoundNewReplicaSet", message, now)
    return msgspec.structs.replace(status, conditions=conditions)


def replica_sets_to_prune(deployment: Deployment, family: ReplicaSetFamily) -> tuple[ReplicaSet, ...]:
    """Return the old ReplicaSets past the history limit, lowest revision first; one that still has pods is kept."""
    limit = deployment.spec.revision_history_limit
    limit = DEFAULT_HISTORY_LIMIT if limit is None else limit
    kept = [s for s in family.old if s.metadata.deletion_timestamp is None]
    excess = len(kept) - limit
    if excess <= 0:
        return ()
    ordered = sorted(
        kept, key=lambda s: (deployment_rollout.replica_set_revision(s), deployment_rollout.creation_order(s))
    )
    idle = [
        s
        for s in ordered[:excess]
        if desired_replicas(s) == 0 and s.status.replicas == 0 and s.metadata.generation <= s.status.observed_generation
    ]
    return tuple(idle)


def replica_set_body(deployment: Deployment, wanted: NewReplicaSet) -> Unstructured:
    template = deployment.spec.template
    digest = template_hash(template, deployment.status.collision_count)
    labels = {**template_labels(template), POD_TEMPLATE_HASH: digest}
    given = deployment.spec.selector or LabelSelector()
    selector = to_dict(msgspec.structs.replace(given, match_labels={**given.match_labels, POD_TEMPLATE_HASH: digest}))
    bounds = deployment_rollout.rollout_bounds(deployment)
    annotations = {
        **deployment_rollout.new_replica_set_annotations(deployment, wanted.revision),
        **deployment_rollout.size_annotations(bounds.replicas, bounds.max_replicas),
    }
    meta = deployment.metadata
    spec: Unstructured = {
        "replicas": wanted.replicas,
        "selector": selector,
        "template": {**template, "metadata": {**(template.get("metadata") or {}), "labels": labels}},
    }
    if deployment.spec.min_ready_seconds:
        spec["minReadySeconds"] = deployment.spec.min_ready_seconds
    return {
        "metadata": {
            "name": f"{meta.name}-{digest}",
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [controller_reference(DEPLOYMENTS, deployment)],
        },
        "spec": spec,
    }


AVAILABLE = "Available"
PROGRESSING = "Progressing"
REPLICA_FAILURE = "ReplicaFailure"
NEW_AVAILABLE = "NewReplicaSetAvailable"
DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
PAUSED = "DeploymentPaused"
DEFAULT_DEADLINE_S = 600
NO_DEADLINE = (1 << 31) - 1


def progress_deadline_s(deployment: Deployment) -> int | None:
    given = deployment.spec.progress_deadline_seconds
    if given is None:
        return DEFAULT_DEADLINE_S
    return None if given == NO_DEADLINE else given


def deployment_condition(conditions: tuple[DeploymentCondition, ...], type: str) -> DeploymentCondition | None:
    return next((found for found in conditions if found.type == type), None)


def with_deployment_condition(
    conditions: tuple[DeploymentCondition, ...], type: str, status: str, reason: str, message: str, now: datetime
) -> tuple[DeploymentCondition, ...]:
    """Set a condition unless its status and reason are the same; the transition time moves only with the status."""
    old = deployment_condition(conditions, type)
    if old is not None and old.status == status and old.reason == reason:
        return conditions
    return _set_condition(conditions, type, status, reason, message, now)


def _set_condition(
    conditions: tuple[DeploymentCondition, ...], type: str, status: str, reason: str, message: str, now: datetime
) -> tuple[DeploymentCondition, ...]:
    old = deployment_condition(conditions, type)
    since = old.last_transition_time if old is not None and old.status == status else now
    made = DeploymentCondition(
        type=type, status=status, reason=reason, message=message, last_update_time=now, last_transition_time=since
    )
    return (*(found for found in conditions if found.type != type), made)


def _without_condition(conditions: tuple[DeploymentCondition, ...], type: str) -> tuple[DeploymentCondition, ...]:
    return tuple(found for found in conditions if found.type != type)


def replica_counts(deployment: Deployment, family: ReplicaSetFamily, now: datetime) -> DeploymentStatus:
    """Return the status with its replica counts and the Available condition."""
    sets = family.all
    new, old = family.new, deployment.status
    ready_to_serve = sum(s.status.available_replicas for s in sets)
    terminating = [s.status.terminating_replicas for s in sets]
    enough = ready_to_serve >= rollout_bounds(deployment).min_available
    conditions = with_deployment_condition(
        old.conditions,
        AVAILABLE,
        "True" if enough else "False",
        "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        "Deployment has minimum availability." if enough else "Deployment does not have minimum availability.",
        now,
    )
    return DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=sum(s.status.replicas for s in sets),
        updated_replicas=new.status.replicas if new is not None else 0,
        ready_replicas=sum(s.status.ready_replicas for s in sets),
        available_replicas=ready_to_serve,
        unavailable_replicas=max(0, total_size(sets) - ready_to_serve),
        terminating_replicas=None if None in terminating else sum(n or 0 for n in terminating),
        collision_count=old.collision_count,
        conditions=conditions,
    )


def is_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    replicas = desired_replicas(deployment)
    return (
        status.updated_replicas == replicas
        and status.replicas == replicas
        and status.available_replicas == replicas
        and status.observed_generation >= deployment.metadata.generation
    )


def _has_progressed(old: DeploymentStatus, new: DeploymentStatus) -> bool:
    return (
        new.updated_replicas > old.updated_replicas
        or new.replicas - new.updated_replicas < old.replicas - old.updated_replicas
        or new.ready_replicas > old.ready_replicas
        or new.available_replicas > old.available_replicas
    )


def _has_timed_out(deployment: Deployment, conditions: tuple[DeploymentCondition, ...], now: datetime) -> bool:
    found, limit = deployment_condition(conditions, PROGRESSING), progress_deadline_s(deployment)
    if found is None or limit is None or found.reason == NEW_AVAILABLE:
        return False
    if found.reason == DEADLINE_EXCEEDED:
        return True
    return found.last_update_time is not None and found.last_update_time + timedelta(seconds=limit) < now


def rollout_status(deployment: Deployment, family: ReplicaSetFamily, now: datetime) -> DeploymentStatus:
    """Return the status with its replica counts and the Progressing condition."""
    status = replica_counts(deployment, family, now)
    conditions = status.conditions
    what = f'ReplicaSet "{family.new.metadata.name}"' if family.new else f'Deployment "{deployment.metadata.name}"'
    known = deployment_condition(conditions, PROGRESSING)
    over = known is not None and known.reason == NEW_AVAILABLE and status.replicas == status.updated_replicas
    if progress_deadline_s(deployment) is None:
        conditions = _without_condition(conditions, PROGRESSING)
    elif not over:
        if is_complete(deployment, status):
            message = f"{what} has successfully progressed."
            conditions = with_deployment_condition(conditions, PROGRESSING, "True", NEW_AVAILABLE, message, now)
        elif _has_progressed(deployment.status, status):
            # Written anew every time: the deadline counts from the last sign of progress.
            conditions = _set_condition(
                conditions, PROGRESSING, "True", "ReplicaSetUpdated", f"{what} is progressing.", now
            )
        elif _has_timed_out(deployment, conditions, now):
            message = f"{what} has timed out progressing."
            conditions = with_deployment_condition(conditions, PROGRESSING, "False", DEADLINE_EXCEEDED, message, now)
    return msgspec.structs.replace(status, conditions=_with_replica_failure(conditions, family, now))


def _with_replica_failure(
    conditions: tuple[DeploymentCondition, ...], family: ReplicaSetFamily, now: datetime
) -> tuple[DeploymentCondition, ...]:
    """Copy the ReplicaFailure condition of a ReplicaSet to the Deployment; the current ReplicaSet's comes first."""
    sets = ([family.new] if family.new is not None else []) + list(family.old)
    for s in sets:
        for found in s.status.conditions:
            if found.type == REPLICA_FAILURE and found.status == "True":
                return with_deployment_condition(conditions, REPLICA_FAILURE, "True", found.reason, found.message, now)
    return _without_condition(conditions, REPLICA_FAILURE)


def with_pause_condition(deployment: Deployment, now: datetime) -> Deployment:
    """Set the paused or resumed condition: pausing stops the deadline, resuming restarts it, unless timed out."""
    conditions = deployment.status.conditions
    known = deployment_condition(conditions, PROGRESSING)
    if progress_deadline_s(deployment) is None or (known is not None and known.reason == DEADLINE_EXCEEDED):
        return deployment
    paused_before = known is not None and known.reason == PAUSED
    if deployment.spec.paused and not paused_before:
        conditions = with_deployment_condition(conditions, PROGRESSING, "Unknown", PAUSED, "Deployment is paused", now)
    elif not deployment.spec.paused and paused_before:
        resumed = "DeploymentResumed"
        conditions = with_deployment_condition(
            conditions, PROGRESSING, "Unknown", resumed, "Deployment is resumed", now
        )
    if conditions is deployment.status.conditions:
        return deployment
    status = msgspec.structs.replace(deployment.status, conditions=conditions)
    return msgspec.structs.replace(deployment, status=status)


def next_deadline_check_s(deployment: Deployment, status: DeploymentStatus, now: datetime) -> float | None:
    """Return the seconds until the progress deadline should be checked, or None when it is not running."""
    known, limit = deployment_condition(status.conditions, PROGRESSING), progress_deadline_s(deployment)
    if limit is None or known is None or known.last_update_time is None or deployment.spec.paused:
        return None
    if known.reason in (NEW_AVAILABLE, DEADLINE_EXCEEDED) or is_complete(deployment, status):
        return None
    due = known.last_update_time + timedelta(seconds=limit + 1)
    return max(1.0, (due - now).total_seconds())
