"""Account for a Job's ended pods: each is counted exactly once, through a finalizer that keeps it until
its end is recorded. Pure.

A pod that ended is first named in `uncountedTerminatedPods`, then loses its finalizer, then becomes a
number. Failures are matched against the failure policy and delay the next pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from koord.api.batch import Job, UncountedTerminatedPods
from koord.api.core import Pod
from koord.embedded.workloads import job_index
from koord.embedded.workloads.job_failure import ended_at, failed, judge
from koord.embedded.workloads.job_index import index_of

FINALIZER = "batch.kubernetes.io/job-tracking"
# Of one pass: the status object must not outgrow what a server stores.
MOST_UNCOUNTED = 500


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    succeeded: int  # written numbers
    failed: int
    uncounted: UncountedTerminatedPods
    completed: frozenset[int]  # indexes
    failed_indexes: frozenset[int]
    release: tuple[Pod, ...]  # may lose their finalizer once the status is written
    ends: tuple[tuple[datetime, bool], ...]  # of pods that are counted for the first time
    fail_job: str = ""  # why the failure policy ends the Job
    capped: bool = False  # more ended than one pass takes

    @property
    def all_failed(self) -> int:
        return self.failed + len(self.uncounted.failed)

    def all_succeeded(self, indexed: bool) -> int:
        return len(self.completed) if indexed else self.succeeded + len(self.uncounted.succeeded)


def indexed(job: Job) -> bool:
    return job.spec.completion_mode == "Indexed"


def held(pod: Pod) -> bool:
    return FINALIZER in pod.metadata.finalizers


def tally(job: Job, pods: Sequence[Pod], now: datetime, *, ending: bool) -> Tally:
    """Count the ended pods. `ending`: the Job has failed, so pods that are being deleted count as failed
    however they end.
    """
    status = job.status
    by_uid = {pod.metadata.uid: pod for pod in pods if held(pod)}
    known = status.uncounted_terminated_pods or UncountedTerminatedPods()
    waiting_well = [uid for uid in known.succeeded if uid in by_uid]
    waiting_ill = [uid for uid in known.failed if uid in by_uid]
    succeeded = status.succeeded + len(known.succeeded) - len(waiting_well)
    failures = status.failed + len(known.failed) - len(waiting_ill)
    completed, lost = set(job_index.parse(status.completed_indexes)), set(job_index.parse(status.failed_indexes))
    release = [by_uid[uid] for uid in (*waiting_well, *waiting_ill)]
    seen = {*waiting_well, *waiting_ill}
    ends: list[tuple[datetime, bool]] = []
    by_index, reason, capped = indexed(job), "", False
    for uid, pod in by_uid.items():
        if uid in seen:
            continue
        if len(ends) >= MOST_UNCOUNTED:
            capped = True
            break
        index = index_of(pod)
        valid = not by_index or (index is not None and index < (job.spec.completions or 0))
        if pod.status.phase == "Succeeded":
            if by_index and valid and index is not None:
                completed.add(index)
                ends.append((ended_at(pod, now), True))
            elif not by_index:
                waiting_well.append(uid)
                ends.append((ended_at(pod, now), True))
            release.append(pod)
        elif failed(pod, job) or (ending and pod.metadata.deletion_timestamp is not None):
            verdict = judge(job, pod) if pod.status.phase == "Failed" else None
            action = verdict.action if verdict is not None else "Count"
            if verdict is not None and action == "FailJob":
                reason = reason or verdict.message
            if valid and action != "Ignore":
                waiting_ill.append(uid)
                ends.append((ended_at(pod, now), False))
            if index is not None and valid and _index_is_lost(job, pod, action):
                lost.add(index)
            release.append(pod)
    return Tally(
        succeeded=len(completed) if by_index else succeeded,
        failed=failures,
        uncounted=UncountedTerminatedPods(succeeded=tuple(waiting_well), failed=tuple(waiting_ill)),
        completed=frozenset(completed),
        failed_indexes=frozenset(lost - completed),
        release=tuple(release),
        ends=tuple(ends),
        fail_job=reason,
        capped=capped,
    )


def _index_is_lost(job: Job, pod: Pod, action: str) -> bool:
    limit = job.spec.backoff_limit_per_index
    if limit is None:
        return False
    if action == "FailIndex":
        return True
    return action == "Count" and job_index.failures_of(pod) + 1 > limit
