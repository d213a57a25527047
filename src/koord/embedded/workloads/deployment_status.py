"""A Deployment's status and conditions, in the words that `kubectl rollout status` expects. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from koord.api.kubernetes.apps import Deployment, DeploymentCondition, DeploymentStatus
from koord.embedded.workloads.deployment_rollout import ReplicaSetFamily, rollout_bounds, total_size
from koord.embedded.workloads.pod_template import desired_replicas

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
