"""Decide how a Deployment spreads its replicas over ReplicaSets: rolling, recreating, scaling, and the
annotations that number revisions. Pure.

Conditions are written in `deployment_status`; the controller carries the sizes out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from koord.api.apps import Deployment, ReplicaSet
from koord.embedded.workloads import revision
from koord.embedded.workloads.template import same_template
from koord.values.int_or_string import scaled

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
DEFAULT_SHARE = "25%"
RECREATE = "Recreate"


class Bounds(msgspec.Struct, frozen=True):
    """The replica bounds that a rollout must keep."""

    replicas: int
    surge: int
    unavailable: int

    @property
    def most(self) -> int:
        return self.replicas + self.surge

    @property
    def least_available(self) -> int:
        return max(0, self.replicas - self.unavailable)


def wanted(deployment: Deployment) -> int:
    replicas = deployment.spec.replicas
    return 1 if replicas is None else replicas


def bounds_of(deployment: Deployment) -> Bounds:
    replicas = wanted(deployment)
    strategy = deployment.spec.strategy
    if strategy.type == RECREATE:
        return Bounds(replicas, 0, 0)
    rolling = strategy.rolling_update
    given_surge = rolling.max_surge if rolling is not None else None
    given_unavailable = rolling.max_unavailable if rolling is not None else None
    surge = scaled(DEFAULT_SHARE if given_surge is None else given_surge, replicas, round_up=True)
    unavailable = scaled(DEFAULT_SHARE if given_unavailable is None else given_unavailable, replicas, round_up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1  # two percentages may both round to nothing, and then nothing could ever move
    return Bounds(replicas, surge, min(unavailable, replicas))


def size(replica_set: ReplicaSet) -> int:
    replicas = replica_set.spec.replicas
    return 1 if replicas is None else replicas


def total(sets: Iterable[ReplicaSet]) -> int:
    return sum(size(replica_set) for replica_set in sets)


def available(replica_set: ReplicaSet) -> int:
    """Return the available replicas of a set, at most its size: a status may lag behind a scale-down."""
    return min(replica_set.status.available_replicas, size(replica_set))


def _lags(replica_set: ReplicaSet) -> bool:
    """Return whether the status of a ReplicaSet is older than the last change of its size."""
    return replica_set.status.observed_generation < replica_set.metadata.generation


def age_order(replica_set: ReplicaSet) -> tuple[datetime, str]:
    return replica_set.metadata.creation_timestamp or _LONG_AGO, replica_set.metadata.name


class Family(msgspec.Struct, frozen=True):
    """The ReplicaSets of a Deployment: the one of the present template, if there is one, and the others,
    oldest first.
    """

    new: ReplicaSet | None
    old: tuple[ReplicaSet, ...]

    @property
    def all(self) -> tuple[ReplicaSet, ...]:
        return self.old if self.new is None else (*self.old, self.new)


def family_of(deployment: Deployment, sets: Iterable[ReplicaSet]) -> Family:
    """Group the ReplicaSets of a Deployment. Of several with the present template the oldest counts: who
    writes last must not decide.
    """
    ordered = sorted(sets, key=age_order)
    new = next((s for s in ordered if same_template(s.spec.template, deployment.spec.template)), None)
    return Family(new, tuple(s for s in ordered if s is not new))


Sizes = dict[str, int]  # set name -> its new size; sets that keep theirs are left out


def first_size(deployment: Deployment, family: Family) -> int:
    """Return the size of the current ReplicaSet, now or when it is made: all that the bounds leave room for."""
    bounds = bounds_of(deployment)
    have = size(family.new) if family.new is not None else 0
    if deployment.spec.strategy.type == RECREATE:
        return bounds.replicas
    room = bounds.most - total(family.all)
    return have if room <= 0 else have + max(0, min(room, bounds.replicas - have))


def roll(deployment: Deployment, family: Family) -> Sizes:
    """Return the sizes after one step of a rolling update; the current ReplicaSet exists."""
    new = family.new
    assert new is not None, "a rolling update has a set to roll to"
    bounds = bounds_of(deployment)
    if size(new) > bounds.replicas:
        return {new.metadata.name: bounds.replicas}
    if size(new) < bounds.replicas and (grown := first_size(deployment, family)) != size(new):
        return {new.metadata.name: grown}
    return _shrink_old(bounds, family, new)


def _shrink_old(bounds: Bounds, family: Family, new: ReplicaSet) -> Sizes:
    old = [s for s in family.old if size(s) > 0]
    if not old:
        return {}
    if any(_lags(s) for s in family.all):
        return {}  # it says what was, and to shrink on that could leave too few
    may_go = total(family.all) - bounds.least_available - (size(new) - available(new))
    if may_go <= 0:
        return {}
    left = {s.metadata.name: size(s) for s in old}
    cleaned = 0
    for s in old:  # what is not available serves nobody: it goes first, wherever it is
        fewer = min(may_go - cleaned, left[s.metadata.name] - available(s))
        if fewer > 0:
            left[s.metadata.name] -= fewer
            cleaned += fewer
    spare = sum(available(s) for s in family.all) - bounds.least_available
    for s in old:
        fewer = min(spare, left[s.metadata.name])
        if fewer > 0:
            left[s.metadata.name] -= fewer
            spare -= fewer
    return {s.metadata.name: left[s.metadata.name] for s in old if left[s.metadata.name] != size(s)}


def recreate(deployment: Deployment, family: Family, old_pods_remain: bool) -> Sizes | None:
    """Return the sizes after one step: old pods must be gone before new ones start. None when the new
    ReplicaSet is to be created.
    """
    down = {s.metadata.name: 0 for s in family.old if size(s) > 0}
    if down or old_pods_remain:
        return down
    if family.new is None:
        return None
    replicas = wanted(deployment)
    return {} if size(family.new) == replicas else {family.new.metadata.name: replicas}


def is_scaling(deployment: Deployment, family: Family) -> bool:
    """Return whether a ReplicaSet was sized for another total than the present one."""
    replicas = wanted(deployment)
    desired = (revision.number(s.metadata.annotations, revision.DESIRED) for s in family.all if size(s) > 0)
    return any(number is not None and number != replicas for number in desired)


def scale(deployment: Deployment, family: Family) -> Sizes:
    """Bring the sum of the ReplicaSets to the Deployment's size; during a rollout every one keeps its share."""
    replicas = wanted(deployment)
    alive = [s for s in family.all if size(s) > 0]
    if len(alive) <= 1:
        only = alive[0] if alive else family.new or (family.old[-1] if family.old else None)
        return {} if only is None or size(only) == replicas else {only.metadata.name: replicas}
    if _saturated(deployment, family.new):
        return {s.metadata.name: 0 for s in family.old if size(s) > 0}
    if deployment.spec.strategy.type == RECREATE:
        return {}
    return _proportional(deployment, alive)


def _saturated(deployment: Deployment, new: ReplicaSet | None) -> bool:
    if new is None:
        return False
    replicas = wanted(deployment)
    desired = revision.number(new.metadata.annotations, revision.DESIRED)
    return size(new) == replicas == desired and new.status.available_replicas == replicas


def _proportional(deployment: Deployment, alive: Sequence[ReplicaSet]) -> Sizes:
    bounds = bounds_of(deployment)
    allowed = bounds.most if bounds.replicas > 0 else 0
    to_add = allowed - total(alive)
    # The largest take the rounding; among equals the newer grows and the older shrinks first.
    if to_add > 0:
        ordered = sorted(sorted(alive, key=age_order, reverse=True), key=lambda s: -size(s))
    else:
        ordered = sorted(sorted(alive, key=age_order), key=lambda s: -size(s))
    sizes, added = {s.metadata.name: size(s) for s in ordered}, 0
    for s in ordered:
        share = _share(deployment, bounds, s, to_add - added) if to_add else 0
        sizes[s.metadata.name] += share
        added += share
    if ordered:
        first = ordered[0].metadata.name
        sizes[first] = max(0, sizes[first] + to_add - added)
    return {s.metadata.name: sizes[s.metadata.name] for s in ordered if sizes[s.metadata.name] != size(s)}


def _share(deployment: Deployment, bounds: Bounds, replica_set: ReplicaSet, allowed: int) -> int:
    """Return how much one ReplicaSet grows (or shrinks), within what is left to hand out."""
    have = size(replica_set)
    if not have or not allowed:
        return 0
    if not bounds.replicas:
        change = -have
    else:
        before = revision.number(replica_set.metadata.annotations, revision.MAXIMUM) or deployment.status.replicas
        change = _rounded(have * bounds.most / before) - have if before else 0
    return min(change, allowed) if allowed > 0 else max(change, allowed)


def _rounded(value: float) -> int:
    return math.floor(value + 0.5)
