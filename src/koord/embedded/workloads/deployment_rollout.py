"""Decide how a Deployment spreads its replicas over ReplicaSets: rolling, recreating, scaling, and the
annotations that number revisions. Pure.

Conditions are written in `deployment_status`; the controller carries the sizes out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from koord.api.kubernetes.workload import Deployment, ReplicaSet
from koord.embedded.workloads.pod_control import desired_replicas, same_template
from koord.kube.client.request_builder import Unstructured
from koord.values.int_or_string import scaled_value

_OLDEST = datetime.min.replace(tzinfo=UTC)
DEFAULT_SHARE = "25%"
RECREATE = "Recreate"


class RolloutBounds(msgspec.Struct, frozen=True):
    """The replica bounds that a rollout must keep."""

    replicas: int
    surge: int
    unavailable: int

    @property
    def max_replicas(self) -> int:
        return self.replicas + self.surge

    @property
    def min_available(self) -> int:
        return max(0, self.replicas - self.unavailable)


def rollout_bounds(deployment: Deployment) -> RolloutBounds:
    replicas = desired_replicas(deployment)
    strategy = deployment.spec.strategy
    if strategy.type == RECREATE:
        return RolloutBounds(replicas, 0, 0)
    rolling = strategy.rolling_update
    given_surge = rolling.max_surge if rolling is not None else None
    given_unavailable = rolling.max_unavailable if rolling is not None else None
    surge = scaled_value(DEFAULT_SHARE if given_surge is None else given_surge, replicas, round_up=True)
    unavailable = scaled_value(
        DEFAULT_SHARE if given_unavailable is None else given_unavailable, replicas, round_up=False
    )
    if surge == 0 and unavailable == 0:
        unavailable = 1  # two percentages may both round to nothing, and then nothing could ever move
    return RolloutBounds(replicas, surge, min(unavailable, replicas))


def total_size(sets: Iterable[ReplicaSet]) -> int:
    return sum(desired_replicas(replica_set) for replica_set in sets)


def available_replicas(replica_set: ReplicaSet) -> int:
    """Return the available replicas of a set, at most its size: a status may lag behind a scale-down."""
    return min(replica_set.status.available_replicas, desired_replicas(replica_set))


def creation_order(replica_set: ReplicaSet) -> tuple[datetime, str]:
    return replica_set.metadata.creation_timestamp or _OLDEST, replica_set.metadata.name


class ReplicaSetFamily(msgspec.Struct, frozen=True):
    """The ReplicaSets of a Deployment: the one of the present template, if any, and the others, oldest first."""

    new: ReplicaSet | None
    old: tuple[ReplicaSet, ...]

    @property
    def all(self) -> tuple[ReplicaSet, ...]:
        return self.old if self.new is None else (*self.old, self.new)


def replica_set_family(deployment: Deployment, sets: Iterable[ReplicaSet]) -> ReplicaSetFamily:
    """Group the ReplicaSets of a Deployment. Of several with the present template the oldest counts."""
    ordered = sorted(sets, key=creation_order)
    new = next((s for s in ordered if same_template(s.spec.template, deployment.spec.template)), None)
    return ReplicaSetFamily(new, tuple(s for s in ordered if s is not new))


ReplicaSetSizes = dict[str, int]  # set name -> its new size; sets that keep theirs are left out


def new_replica_set_size(deployment: Deployment, family: ReplicaSetFamily) -> int:
    """Return the size of the current ReplicaSet, now or when it is made: all that the bounds leave room for."""
    bounds = rollout_bounds(deployment)
    have = desired_replicas(family.new) if family.new is not None else 0
    if deployment.spec.strategy.type == RECREATE:
        return bounds.replicas
    room = bounds.max_replicas - total_size(family.all)
    return have if room <= 0 else have + max(0, min(room, bounds.replicas - have))


def roll_step(deployment: Deployment, family: ReplicaSetFamily) -> ReplicaSetSizes:
    """Return the sizes after one step of a rolling update; the current ReplicaSet exists."""
    new = family.new
    assert new is not None, "a rolling update has a set to roll to"
    bounds = rollout_bounds(deployment)
    if desired_replicas(new) > bounds.replicas:
        return {new.metadata.name: bounds.replicas}
    if desired_replicas(new) < bounds.replicas and (
        grown := new_replica_set_size(deployment, family)
    ) != desired_replicas(new):
        return {new.metadata.name: grown}
    return _shrink_old(bounds, family, new)


def _shrink_old(bounds: RolloutBounds, family: ReplicaSetFamily, new: ReplicaSet) -> ReplicaSetSizes:
    old = [s for s in family.old if desired_replicas(s) > 0]
    if not old:
        return {}
    if any(s.status.observed_generation < s.metadata.generation for s in family.all):
        return {}  # it says what was, and to shrink on that could leave too few
    may_go = total_size(family.all) - bounds.min_available - (desired_replicas(new) - available_replicas(new))
    if may_go <= 0:
        return {}
    left = {s.metadata.name: desired_replicas(s) for s in old}
    cleaned = 0
    for s in old:  # what is not available serves nobody: it goes first, wherever it is
        fewer = min(may_go - cleaned, left[s.metadata.name] - available_replicas(s))
        if fewer > 0:
            left[s.metadata.name] -= fewer
            cleaned += fewer
    spare = sum(available_replicas(s) for s in family.all) - bounds.min_available
    for s in old:
        fewer = min(spare, left[s.metadata.name])
        if fewer > 0:
            left[s.metadata.name] -= fewer
            spare -= fewer
    return {s.metadata.name: left[s.metadata.name] for s in old if left[s.metadata.name] != desired_replicas(s)}


def recreate_step(deployment: Deployment, family: ReplicaSetFamily, old_pods_remain: bool) -> ReplicaSetSizes | None:
    """Return the sizes after one step: old pods go before new ones start. None: create the new ReplicaSet."""
    down = {s.metadata.name: 0 for s in family.old if desired_replicas(s) > 0}
    if down or old_pods_remain:
        return down
    if family.new is None:
        return None
    replicas = desired_replicas(deployment)
    return {} if desired_replicas(family.new) == replicas else {family.new.metadata.name: replicas}


def is_scaling(deployment: Deployment, family: ReplicaSetFamily) -> bool:
    """Return whether a ReplicaSet was sized for another total than the present one."""
    replicas = desired_replicas(deployment)
    desired = (
        annotation_number(s.metadata.annotations, DESIRED_ANNOTATION) for s in family.all if desired_replicas(s) > 0
    )
    return any(number is not None and number != replicas for number in desired)


def scale_step(deployment: Deployment, family: ReplicaSetFamily) -> ReplicaSetSizes:
    """Bring the sum of the ReplicaSets to the Deployment's size; during a rollout every one keeps its share."""
    replicas = desired_replicas(deployment)
    alive = [s for s in family.all if desired_replicas(s) > 0]
    if len(alive) <= 1:
        only = alive[0] if alive else family.new or (family.old[-1] if family.old else None)
        return {} if only is None or desired_replicas(only) == replicas else {only.metadata.name: replicas}
    if _is_saturated(deployment, family.new):
        return {s.metadata.name: 0 for s in family.old if desired_replicas(s) > 0}
    if deployment.spec.strategy.type == RECREATE:
        return {}
    return _proportional(deployment, alive)


def _is_saturated(deployment: Deployment, new: ReplicaSet | None) -> bool:
    if new is None:
        return False
    replicas = desired_replicas(deployment)
    desired = annotation_number(new.metadata.annotations, DESIRED_ANNOTATION)
    return desired_replicas(new) == replicas == desired and new.status.available_replicas == replicas


def _proportional(deployment: Deployment, alive: Sequence[ReplicaSet]) -> ReplicaSetSizes:
    bounds = rollout_bounds(deployment)
    allowed = bounds.max_replicas if bounds.replicas > 0 else 0
    to_add = allowed - total_size(alive)
    # The largest take the rounding; among equals the newer grows and the older shrinks first.
    if to_add > 0:
        ordered = sorted(sorted(alive, key=creation_order, reverse=True), key=lambda s: -desired_replicas(s))
    else:
        ordered = sorted(sorted(alive, key=creation_order), key=lambda s: -desired_replicas(s))
    sizes, added = {s.metadata.name: desired_replicas(s) for s in ordered}, 0
    for s in ordered:
        share = _proportional_change(deployment, bounds, s, to_add - added) if to_add else 0
        sizes[s.metadata.name] += share
        added += share
    if ordered:
        first = ordered[0].metadata.name
        sizes[first] = max(0, sizes[first] + to_add - added)
    return {s.metadata.name: sizes[s.metadata.name] for s in ordered if sizes[s.metadata.name] != desired_replicas(s)}


def _proportional_change(deployment: Deployment, bounds: RolloutBounds, replica_set: ReplicaSet, allowed: int) -> int:
    """Return how much one ReplicaSet grows (or shrinks), within what is left to hand out."""
    have = desired_replicas(replica_set)
    if not have or not allowed:
        return 0
    if not bounds.replicas:
        change = -have
    else:
        before = (
            annotation_number(replica_set.metadata.annotations, MAX_REPLICAS_ANNOTATION) or deployment.status.replicas
        )
        change = _round_half_up(have * bounds.max_replicas / before) - have if before else 0
    return min(change, allowed) if allowed > 0 else max(change, allowed)


def _round_half_up(value: float) -> int:
    return math.floor(value + 0.5)


REVISION_ANNOTATION = "deployment.kubernetes.io/revision"
HISTORY_ANNOTATION = "deployment.kubernetes.io/revision-history"
DESIRED_ANNOTATION = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS_ANNOTATION = "deployment.kubernetes.io/max-replicas"
LAST_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
_OWN_ANNOTATIONS = frozenset(
    (
        REVISION_ANNOTATION,
        HISTORY_ANNOTATION,
        DESIRED_ANNOTATION,
        MAX_REPLICAS_ANNOTATION,
        LAST_APPLIED_ANNOTATION,
        "deprecated.deployment.rollback.to",
    )
)
_HISTORY_BYTES = 2000


def annotation_number(annotations: Mapping[str, str], key: str) -> int | None:
    try:
        return int(annotations[key])
    except (KeyError, ValueError):
        return None


def replica_set_revision(replica_set: ReplicaSet) -> int:
    return annotation_number(replica_set.metadata.annotations, REVISION_ANNOTATION) or 0


def next_revision(old: Iterable[ReplicaSet]) -> int:
    return max((replica_set_revision(replica_set) for replica_set in old), default=0) + 1


def size_annotations(desired: int, maximum: int) -> dict[str, str]:
    return {DESIRED_ANNOTATION: str(desired), MAX_REPLICAS_ANNOTATION: str(maximum)}


def new_replica_set_annotations(deployment: Deployment, revision: int) -> dict[str, str]:
    """Return the annotations of a new ReplicaSet."""
    copied = {key: value for key, value in deployment.metadata.annotations.items() if key not in _OWN_ANNOTATIONS}
    return {**copied, REVISION_ANNOTATION: str(revision)}


def replica_set_annotation_changes(deployment: Deployment, new: ReplicaSet, revision: int) -> dict[str, str]:
    """Return the annotations to change on the current ReplicaSet; a reused one remembers its old number."""
    have = new.metadata.annotations
    wanted = {key: value for key, value in deployment.metadata.annotations.items() if key not in _OWN_ANNOTATIONS}
    before = replica_set_revision(new)
    if before < revision:
        wanted[REVISION_ANNOTATION] = str(revision)
        if before:
            wanted[HISTORY_ANNOTATION] = _append_revision(have.get(HISTORY_ANNOTATION, ""), str(before))
    return {key: value for key, value in wanted.items() if have.get(key) != value}


def _append_revision(history: str, revision: str) -> str:
    """Append a revision to the history, which drops its oldest entries beyond a limit."""
    known = history.split(",") if history else []
    if revision in known:
        return history
    known.append(revision)
    while len(",".join(known)) > _HISTORY_BYTES:
        known.pop(0)
    return ",".join(known)


def revision_patch(deployment: Deployment, revision: str) -> Unstructured | None:
    """Return the patch that gives the Deployment the number of its current ReplicaSet, or None."""
    if not revision or deployment.metadata.annotations.get(REVISION_ANNOTATION) == revision:
        return None
    return {"metadata": {"annotations": {REVISION_ANNOTATION: revision}}}
