"""Decide what a Deployment does next: which ReplicaSets it creates, resizes and prunes, and its status.
Pure.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from koord.api.apps import Deployment, DeploymentStatus, ReplicaSet
from koord.api.builtin import DEPLOYMENTS
from koord.api.meta import LabelSelector
from koord.api.model import to_dict
from koord.embedded.workloads import revision, rollout, rollout_status
from koord.embedded.workloads.ownership import reference
from koord.embedded.workloads.rollout import Family, Sizes, size
from koord.embedded.workloads.template import POD_TEMPLATE_HASH, labels_of, template_hash
from koord.kube.verb import Plain

DEFAULT_HISTORY = 10


class View(msgspec.Struct, frozen=True, kw_only=True):
    deployment: Deployment
    sets: tuple[ReplicaSet, ...]
    old_pods_remain: bool = False  # of any ReplicaSet but the current one; read only when recreating
    now: datetime


class SetChange(msgspec.Struct, frozen=True, kw_only=True):
    set: ReplicaSet
    replicas: int | None = None
    annotations: dict[str, str] = {}
    min_ready_seconds: int | None = None


class NewSet(msgspec.Struct, frozen=True, kw_only=True):
    replicas: int
    revision: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    make: NewSet | None = None
    changes: tuple[SetChange, ...] = ()
    remove: tuple[ReplicaSet, ...] = ()
    revision: str = ""  # that the Deployment should carry; "" leaves it
    status: DeploymentStatus


def decide(seen: View) -> Plan:
    now = seen.now
    deployment = rollout_status.with_pause(seen.deployment, now)
    family = rollout.family_of(deployment, seen.sets)
    number = revision.next_revision(family.old)
    if deployment.metadata.deletion_timestamp is not None:
        return Plan(status=rollout_status.counted(deployment, family, now))
    scaling = deployment.spec.paused or rollout.is_scaling(deployment, family)
    # A rollout that only changes its size makes no progress and misses no deadline.
    judge = rollout_status.counted if scaling else rollout_status.rollout_status
    status = judge(deployment, family, now)
    if scaling:
        sizes: Sizes | None = rollout.scale(deployment, family)
    elif deployment.spec.strategy.type == rollout.RECREATE:
        sizes = rollout.recreate(deployment, family, seen.old_pods_remain)
    else:
        sizes = None if family.new is None else rollout.roll(deployment, family)
    if sizes is None:
        make = NewSet(replicas=rollout.first_size(deployment, family), revision=number)
        return Plan(make=make, revision=str(number), status=status)
    new = family.new
    carried = str(max(number, revision.revision_of(new))) if new is not None else ""
    remove: tuple[ReplicaSet, ...] = ()
    if deployment.spec.paused or rollout_status.complete(deployment, status):
        remove = surplus(deployment, family)
    return Plan(
        changes=_changes(deployment, family, sizes, number),
        remove=remove,
        revision=carried,
        status=_found(deployment, family, status, now),
    )


def _changes(deployment: Deployment, family: Family, sizes: Sizes, number: int) -> tuple[SetChange, ...]:
    """Return one write for each ReplicaSet: its size, the sizes that it remembers, and the annotations of the
    current one.
    """
    bounds = rollout.bounds_of(deployment)
    remembered = revision.sizes(bounds.replicas, bounds.most)
    changes = []
    for s in family.all:
        replicas = sizes.get(s.metadata.name)
        annotations: dict[str, str] = {}
        # Of the ReplicaSets that keep their size only live ones and the current one are annotated: only theirs are read.
        if replicas is not None or size(s) > 0 or s is family.new:
            have = s.metadata.annotations
            annotations = {key: value for key, value in remembered.items() if have.get(key) != value}
        wait = None
        if s is family.new:
            annotations |= revision.annotation_changes(deployment, s, number)
            if s.spec.min_ready_seconds != deployment.spec.min_ready_seconds:
                wait = deployment.spec.min_ready_seconds
        if replicas is not None or annotations or wait is not None:
            changes.append(SetChange(set=s, replicas=replicas, annotations=annotations, min_ready_seconds=wait))
    return tuple(changes)


def _found(deployment: Deployment, family: Family, status: DeploymentStatus, now: datetime) -> DeploymentStatus:
    if (
        family.new is None
        or rollout_status.deadline_s(deployment) is None
        or rollout_status.condition(status.conditions, rollout_status.PROGRESSING) is not None
    ):
        return status
    message = f'Found new replica set "{family.new.metadata.name}"'
    conditions = rollout_status.with_condition(
        status.conditions, rollout_status.PROGRESSING, "True", "FoundNewReplicaSet", message, now
    )
    return msgspec.structs.replace(status, conditions=conditions)


def surplus(deployment: Deployment, family: Family) -> tuple[ReplicaSet, ...]:
    """Return the old ReplicaSets past the history limit, lowest revision first; one that still has pods is
    kept.
    """
    limit = deployment.spec.revision_history_limit
    limit = DEFAULT_HISTORY if limit is None else limit
    kept = [s for s in family.old if s.metadata.deletion_timestamp is None]
    excess = len(kept) - limit
    if excess <= 0:
        return ()
    ordered = sorted(kept, key=lambda s: (revision.revision_of(s), rollout.age_order(s)))
    idle = [
        s
        for s in ordered[:excess]
        if size(s) == 0 and s.status.replicas == 0 and s.metadata.generation <= s.status.observed_generation
    ]
    return tuple(idle)


def new_set(deployment: Deployment, wanted: NewSet) -> Plain:
    template = deployment.spec.template
    digest = template_hash(template, deployment.status.collision_count)
    labels = {**labels_of(template), POD_TEMPLATE_HASH: digest}
    given = deployment.spec.selector or LabelSelector()
    selector = to_dict(msgspec.structs.replace(given, match_labels={**given.match_labels, POD_TEMPLATE_HASH: digest}))
    bounds = rollout.bounds_of(deployment)
    annotations = {
        **revision.first_annotations(deployment, wanted.revision),
        **revision.sizes(bounds.replicas, bounds.most),
    }
    meta = deployment.metadata
    spec: Plain = {
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
            "ownerReferences": [reference(DEPLOYMENTS, deployment)],
        },
        "spec": spec,
    }
