"""Decide what a Deployment does next: which ReplicaSets it creates, resizes and prunes, and its status. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from koord.api.kubernetes.apps import Deployment, DeploymentStatus, ReplicaSet
from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS
from koord.api.kubernetes.meta import LabelSelector
from koord.api.model import to_dict
from koord.embedded.workloads import deployment_rollout, deployment_status
from koord.embedded.workloads.controller_ref import controller_reference
from koord.embedded.workloads.deployment_rollout import ReplicaSetFamily, ReplicaSetSizes, replica_set_size
from koord.embedded.workloads.pod_template import POD_TEMPLATE_HASH, template_hash, template_labels
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
    deployment = deployment_status.with_pause_condition(view.deployment, now)
    family = deployment_rollout.replica_set_family(deployment, view.sets)
    number = deployment_rollout.next_revision(family.old)
    if deployment.metadata.deletion_timestamp is not None:
        return DeploymentPlan(status=deployment_status.replica_counts(deployment, family, now))
    scaling = deployment.spec.paused or deployment_rollout.is_scaling(deployment, family)
    # A rollout that only changes its size makes no progress and misses no deadline.
    judge = deployment_status.replica_counts if scaling else deployment_status.rollout_status
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
    if deployment.spec.paused or deployment_status.is_complete(deployment, status):
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
        if replicas is not None or replica_set_size(s) > 0 or s is family.new:
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
        or deployment_status.progress_deadline_s(deployment) is None
        or deployment_status.deployment_condition(status.conditions, deployment_status.PROGRESSING) is not None
    ):
        return status
    message = f'Found new replica set "{family.new.metadata.name}"'
    conditions = deployment_status.with_deployment_condition(
        status.conditions, deployment_status.PROGRESSING, "True", "FoundNewReplicaSet", message, now
    )
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
        if replica_set_size(s) == 0 and s.status.replicas == 0 and s.metadata.generation <= s.status.observed_generation
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
