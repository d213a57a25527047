"""Arbitration of waiting jobs: sort them, then check each against the rules. Every round looks at all of them.

Newest job first; then by eviction order of the pods; pods of one batch Job together, and first those of the
Job that is already being migrated.
    -> forbidden for good: the job fails
    -> not now:            it waits for the next round
    -> else:               it passes, and counts for those after it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from koord.api.koord_scheduling import PodMigrationJob
from koord.descheduler.migration.budget import Budget
from koord.descheduler.migration.moves import Moves, counts_in_arbitration, is_late, move_of, pod_of
from koord.descheduler.migration.protection import Protection
from koord.descheduler.plugins.pod_order import rank
from koord.descheduler.plugins.standing import standing
from koord.descheduler.snapshot import Snapshot
from koord.descheduler.wire import Pod

BATCH_JOB = "Job"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of arbitrating one job. `forbidden` and `waits` are reasons; a job with neither passes."""

    job: PodMigrationJob
    forbidden: str = ""
    waits: str = ""

    @property
    def passes(self) -> bool:
        return not self.forbidden and not self.waits


def arbitrate(
    waiting: Sequence[PodMigrationJob], snapshot: Snapshot, protection: Protection, budget: Budget
) -> list[Verdict]:
    """Check the waiting jobs one by one; return the results in the order of the checks."""
    counting = (move_of(job, snapshot) for job in snapshot.jobs if counts_in_arbitration(job))
    moves = Moves(move for move in counting if move is not None)
    found = []
    for job in ordered(waiting, snapshot):
        verdict = _judged(job, snapshot, moves, protection, budget)
        move = move_of(job, snapshot)
        if verdict.passes and move is not None:
            moves.add(move)
        found.append(verdict)
    return found


def _judged(job: PodMigrationJob, snapshot: Snapshot, moves: Moves, protection: Protection, budget: Budget) -> Verdict:
    pod = pod_of(job, snapshot)
    # What has no pod, or no time left, has nothing to wait for: the job itself finds out, and says so.
    if pod is None or (is_late(job, snapshot.now_s) and not job.spec.paused):
        return Verdict(job=job)
    if (why := protection.refuses(pod, snapshot)) is not None:
        return Verdict(job=job, forbidden=why)
    if (why := budget.refuses(pod, snapshot, moves)) is not None:
        return Verdict(job=job, waits=why)
    return Verdict(job=job)


def ordered(jobs: Iterable[PodMigrationJob], snapshot: Snapshot) -> list[PodMigrationJob]:
    """Sort the jobs with stable sorts, of which the last weighs most."""
    found = sorted(jobs, key=_created, reverse=True)
    found.sort(key=lambda job: _pod_rank(pod_of(job, snapshot)))
    found = _together(found, snapshot)
    moving = _moving(snapshot)
    found.sort(key=lambda job: -moving.get(_batch_owner(pod_of(job, snapshot)), 0))
    return found


def _created(job: PodMigrationJob) -> int:
    at = job.metadata.creation_timestamp
    return 0 if at is None else int(at.timestamp())


def _pod_rank(pod: Pod | None) -> tuple[bool, tuple[object, ...]]:
    """Return the sort key of a job's pod; jobs without a pod come first, since they cost nothing."""
    return (False, ()) if pod is None else (True, rank(standing(pod)))


def _batch_owner(pod: Pod | None) -> str:
    """Return the uid of the batch Job that controls the pod; empty for others."""
    if pod is None:
        return ""
    owners = pod.metadata.owner_references
    return next((owner.uid for owner in owners if owner.controller and owner.kind == BATCH_JOB), "")


def _together(jobs: list[PodMigrationJob], snapshot: Snapshot) -> list[PodMigrationJob]:
    """Move the jobs for pods of one batch Job up to the first of them."""
    places: dict[str, int] = {}
    keys = []
    for index, job in enumerate(jobs):
        owner = _batch_owner(pod_of(job, snapshot))
        keys.append(places.setdefault(owner, index) if owner else index)
    return [jobs[index] for index in sorted(range(len(jobs)), key=lambda i: (keys[i], i))]


def _moving(snapshot: Snapshot) -> dict[str, int]:
    """Count the migrating pods by batch Job."""
    found: dict[str, int] = {}
    for job in snapshot.jobs:
        owner = _batch_owner(pod_of(job, snapshot)) if counts_in_arbitration(job) else ""
        if owner:
            found[owner] = found.get(owner, 0) + 1
    return found
