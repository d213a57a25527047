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

from koord.api.koordinator.scheduling import PodMigrationJob
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.pod_selection import eviction_sort_key, pod_rank
from koord.descheduler.framework.snapshot import ClusterSnapshot
from koord.descheduler.migration.job import counts_in_arbitration, is_past_ttl, pod_of_job
from koord.descheduler.migration.plugin import (
    InFlightMigrations,
    MigrationBudget,
    MigrationProtection,
    migration_of_job,
)

BATCH_JOB = "Job"


class ArbitrationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of arbitrating one job. `forbidden` and `waits` are reasons; a job with neither passes."""

    job: PodMigrationJob
    forbidden: str = ""
    waits: str = ""

    @property
    def passes(self) -> bool:
        return not self.forbidden and not self.waits


def arbitrate(
    waiting: Sequence[PodMigrationJob],
    snapshot: ClusterSnapshot,
    protection: MigrationProtection,
    budget: MigrationBudget,
) -> list[ArbitrationResult]:
    """Check the waiting jobs one by one; return the results in the order of the checks."""
    counting = (migration_of_job(job, snapshot) for job in snapshot.jobs if counts_in_arbitration(job))
    in_flight = InFlightMigrations(migration for migration in counting if migration is not None)
    found = []
    for job in sort_jobs(waiting, snapshot):
        result = _check_job(job, snapshot, in_flight, protection, budget)
        migration = migration_of_job(job, snapshot)
        if result.passes and migration is not None:
            in_flight.add(migration)
        found.append(result)
    return found


def _check_job(
    job: PodMigrationJob,
    snapshot: ClusterSnapshot,
    in_flight: InFlightMigrations,
    protection: MigrationProtection,
    budget: MigrationBudget,
) -> ArbitrationResult:
    pod = pod_of_job(job, snapshot)
    # What has no pod, or no time left, has nothing to wait for: the job itself finds out, and says so.
    if pod is None or (is_past_ttl(job, snapshot.now_s) and not job.spec.paused):
        return ArbitrationResult(job=job)
    if (why := protection.rejection_reason(pod, snapshot)) is not None:
        return ArbitrationResult(job=job, forbidden=why)
    if (why := budget.rejection_reason(pod, snapshot, in_flight)) is not None:
        return ArbitrationResult(job=job, waits=why)
    return ArbitrationResult(job=job)


def sort_jobs(jobs: Iterable[PodMigrationJob], snapshot: ClusterSnapshot) -> list[PodMigrationJob]:
    """Sort the jobs with stable sorts, of which the last weighs most."""
    found = sorted(jobs, key=_created_s, reverse=True)
    found.sort(key=lambda job: _pod_sort_key(pod_of_job(job, snapshot)))
    found = _group_by_batch_job(found, snapshot)
    migrating = _migrating_by_batch_job(snapshot)
    found.sort(key=lambda job: -migrating.get(_batch_job_uid(pod_of_job(job, snapshot)), 0))
    return found


def _created_s(job: PodMigrationJob) -> int:
    at = job.metadata.creation_timestamp
    return 0 if at is None else int(at.timestamp())


def _pod_sort_key(pod: Pod | None) -> tuple[bool, tuple[object, ...]]:
    """Return the sort key of a job's pod; jobs without a pod come first, since they cost nothing."""
    return (False, ()) if pod is None else (True, eviction_sort_key(pod_rank(pod)))


def _batch_job_uid(pod: Pod | None) -> str:
    """Return the uid of the batch Job that controls the pod; empty for others."""
    if pod is None:
        return ""
    owners = pod.metadata.owner_references
    return next((owner.uid for owner in owners if owner.controller and owner.kind == BATCH_JOB), "")


def _group_by_batch_job(jobs: list[PodMigrationJob], snapshot: ClusterSnapshot) -> list[PodMigrationJob]:
    """Move the jobs for pods of one batch Job up to the first of them."""
    places: dict[str, int] = {}
    keys = []
    for index, job in enumerate(jobs):
        owner = _batch_job_uid(pod_of_job(job, snapshot))
        keys.append(places.setdefault(owner, index) if owner else index)
    return [jobs[index] for index in sorted(range(len(jobs)), key=lambda i: (keys[i], i))]


def _migrating_by_batch_job(snapshot: ClusterSnapshot) -> dict[str, int]:
    """Count the migrating pods by batch Job."""
    found: dict[str, int] = {}
    for job in snapshot.jobs:
        owner = _batch_job_uid(pod_of_job(job, snapshot)) if counts_in_arbitration(job) else ""
        if owner:
            found[owner] = found.get(owner, 0) + 1
    return found
