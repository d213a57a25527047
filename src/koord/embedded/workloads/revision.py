"""The annotations with which a Deployment numbers revisions and remembers sizes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.api.apps import Deployment, ReplicaSet
from koord.kube.verb import Plain

REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_OWN = frozenset((REVISION, HISTORY, DESIRED, MAXIMUM, LAST_APPLIED, "deprecated.deployment.rollback.to"))
_HISTORY_BYTES = 2000


def number(annotations: Mapping[str, str], key: str) -> int | None:
    try:
        return int(annotations[key])
    except (KeyError, ValueError):
        return None


def revision_of(replica_set: ReplicaSet) -> int:
    return number(replica_set.metadata.annotations, REVISION) or 0


def next_revision(old: Iterable[ReplicaSet]) -> int:
    return max((revision_of(replica_set) for replica_set in old), default=0) + 1


def sizes(desired: int, maximum: int) -> dict[str, str]:
    return {DESIRED: str(desired), MAXIMUM: str(maximum)}


def first_annotations(deployment: Deployment, revision: int) -> dict[str, str]:
    """Return the annotations of a new ReplicaSet."""
    copied = {key: value for key, value in deployment.metadata.annotations.items() if key not in _OWN}
    return {**copied, REVISION: str(revision)}


def annotation_changes(deployment: Deployment, new: ReplicaSet, revision: int) -> dict[str, str]:
    """Return the annotations to change on the current ReplicaSet. A reused one gets a new number and remembers
    the old.
    """
    have = new.metadata.annotations
    wanted = {key: value for key, value in deployment.metadata.annotations.items() if key not in _OWN}
    before = revision_of(new)
    if before < revision:
        wanted[REVISION] = str(revision)
        if before:
            wanted[HISTORY] = _remembered(have.get(HISTORY, ""), str(before))
    return {key: value for key, value in wanted.items() if have.get(key) != value}


def _remembered(history: str, revision: str) -> str:
    """Append a revision to the history, which drops its oldest entries beyond a limit."""
    known = history.split(",") if history else []
    if revision in known:
        return history
    known.append(revision)
    while len(",".join(known)) > _HISTORY_BYTES:
        known.pop(0)
    return ",".join(known)


def revision_patch(deployment: Deployment, revision: str) -> Plain | None:
    """Return the patch that gives the Deployment the number of its current ReplicaSet, or None."""
    if not revision or deployment.metadata.annotations.get(REVISION) == revision:
        return None
    return {"metadata": {"annotations": {REVISION: revision}}}
