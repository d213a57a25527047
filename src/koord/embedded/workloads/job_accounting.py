"""Account for a Job's ended pods: each is counted exactly once, through a finalizer that keeps it until
its end is recorded. Pure.

A pod that ended is first named in `uncountedTerminatedPods`, then loses its finalizer, then becomes a
number. Failures are matched against the failure policy and delay the next pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.workload import Job, PodFailureOnExitCodes, PodFailurePolicyRule, UncountedTerminatedPods

TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
# Of one pass: the status object must not outgrow what a server stores.
MAX_UNCOUNTED = 500


class JobPodCounts(msgspec.Struct, frozen=True, kw_only=True):
    succeeded: int  # written numbers
    failed: int
    uncounted: UncountedTerminatedPods
    completed: frozenset[int]  # indexes
    failed_indexes: frozenset[int]
    release: tuple[Pod, ...]  # may lose their finalizer once the status is written
    ends: tuple[tuple[datetime, bool], ...]  # of pods that are counted for the first time
    fail_job: str = ""  # why the failure policy ends the Job
    is_truncated: bool = False  # more ended than one pass takes

    @property
    def all_failed(self) -> int:
        return self.failed + len(self.uncounted.failed)

    def all_succeeded(self, indexed: bool) -> int:
        return len(self.completed) if indexed else self.succeeded + len(self.uncounted.succeeded)


def is_indexed(job: Job) -> bool:
    return job.spec.completion_mode == "Indexed"


def has_tracking_finalizer(pod: Pod) -> bool:
    return TRACKING_FINALIZER in pod.metadata.finalizers


def count_ended_pods(job: Job, pods: Sequence[Pod], now: datetime, *, ending: bool) -> JobPodCounts:
    """Count the ended pods. `ending`: the Job has failed, so pods that are being deleted count as failed."""
    status = job.status
    by_uid = {pod.metadata.uid: pod for pod in pods if has_tracking_finalizer(pod)}
    known = status.uncounted_terminated_pods or UncountedTerminatedPods()
    waiting_well = [uid for uid in known.succeeded if uid in by_uid]
    waiting_ill = [uid for uid in known.failed if uid in by_uid]
    succeeded = status.succeeded + len(known.succeeded) - len(waiting_well)
    failures = status.failed + len(known.failed) - len(waiting_ill)
    completed, lost = set(parse_indexes(status.completed_indexes)), set(parse_indexes(status.failed_indexes))
    release = [by_uid[uid] for uid in (*waiting_well, *waiting_ill)]
    seen = {*waiting_well, *waiting_ill}
    ends: list[tuple[datetime, bool]] = []
    by_index, reason, capped = is_indexed(job), "", False
    for uid, pod in by_uid.items():
        if uid in seen:
            continue
        if len(ends) >= MAX_UNCOUNTED:
            capped = True
            break
        index = completion_index(pod)
        valid = not by_index or (index is not None and index < (job.spec.completions or 0))
        if pod.status.phase == "Succeeded":
            if by_index and valid and index is not None:
                completed.add(index)
                ends.append((pod_ended_at(pod, now), True))
            elif not by_index:
                waiting_well.append(uid)
                ends.append((pod_ended_at(pod, now), True))
            release.append(pod)
        elif counts_as_failed(pod, job) or (ending and pod.metadata.deletion_timestamp is not None):
            verdict = match_failure_policy(job, pod) if pod.status.phase == "Failed" else None
            action = verdict.action if verdict is not None else "Count"
            if verdict is not None and action == "FailJob":
                reason = reason or verdict.message
            if valid and action != "Ignore":
                waiting_ill.append(uid)
                ends.append((pod_ended_at(pod, now), False))
            if index is not None and valid and _index_failed(job, pod, action):
                lost.add(index)
            release.append(pod)
    return JobPodCounts(
        succeeded=len(completed) if by_index else succeeded,
        failed=failures,
        uncounted=UncountedTerminatedPods(succeeded=tuple(waiting_well), failed=tuple(waiting_ill)),
        completed=frozenset(completed),
        failed_indexes=frozenset(lost - completed),
        release=tuple(release),
        ends=tuple(ends),
        fail_job=reason,
        is_truncated=capped,
    )


def _index_failed(job: Job, pod: Pod, action: str) -> bool:
    limit = job.spec.backoff_limit_per_index
    if limit is None:
        return False
    if action == "FailIndex":
        return True
    return action == "Count" and index_failure_count(pod) + 1 > limit


FIRST_BACKOFF_S = 10
MAX_BACKOFF_S = 600

FailurePolicyAction = Literal["Count", "Ignore", "FailIndex", "FailJob"]


class FailurePolicyMatch(msgspec.Struct, frozen=True):
    action: FailurePolicyAction
    message: str = ""


def replaces_only_terminated(job: Job) -> bool:
    """Return whether only terminated pods are replaced, not terminating ones. A failure policy needs their end too."""
    return job.spec.pod_replacement_policy == "Failed" or job.spec.pod_failure_policy is not None


def counts_as_failed(pod: Pod, job: Job) -> bool:
    """Return whether a pod counts as failed. A terminating one does: a lost node may never report its end."""
    if pod.status.phase == "Failed":
        return True
    if replaces_only_terminated(job):
        return False
    return pod.metadata.deletion_timestamp is not None and pod.status.phase != "Succeeded"


def match_failure_policy(job: Job, pod: Pod) -> FailurePolicyMatch:
    """Return the action of the first matching failure policy rule; a failure that no rule matches counts."""
    policy = job.spec.pod_failure_policy
    for number, rule in enumerate(policy.rules if policy is not None else ()):
        message = _match_rule(rule, pod, number)
        if message is None:
            continue
        match rule.action:
            case "FailJob":
                return FailurePolicyMatch("FailJob", message)
            case "FailIndex" if job.spec.backoff_limit_per_index is not None:
                return FailurePolicyMatch("FailIndex", message)
            case "Ignore":
                return FailurePolicyMatch("Ignore", message)
            case _:
                return FailurePolicyMatch("Count", message)
    return FailurePolicyMatch("Count")


def _match_rule(rule: PodFailurePolicyRule, pod: Pod, number: int) -> str | None:
    who = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
    if rule.on_exit_codes is not None:
        found = _matching_exit_code(rule.on_exit_codes, pod)
        if found is None:
            return None
        container, code = found
        matched = f"matching {rule.action} rule at index {number}"
        return f"Container {container} for {who} failed with exit code {code} {matched}"
    for pattern in rule.on_pod_conditions:
        for condition in pod.status.conditions:
            if condition.type == pattern.type and condition.status == (pattern.status or "True"):
                return f"{who.capitalize()} has condition {pattern.type} matching {rule.action} rule at index {number}"
    return None


def _matching_exit_code(rule: PodFailureOnExitCodes, pod: Pod) -> tuple[str, int] | None:
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        if rule.container_name is not None and status.name != rule.container_name:
            continue
        ended = status.state.terminated if status.state is not None else None
        if ended is None or ended.exit_code == 0:
            continue
        if (ended.exit_code in rule.values) == (rule.operator == "In"):
            return status.name, ended.exit_code
    return None


def pod_ended_at(pod: Pod, now: datetime) -> datetime:
    """Return when the pod ended, as well as its status tells."""
    moments = [
        status.state.terminated.finished_at
        for status in pod.status.container_statuses
        if status.state is not None and status.state.terminated is not None and status.state.terminated.finished_at
    ]
    if moments:
        return max(moments)
    if pod.metadata.deletion_timestamp is not None:
        return min(pod.metadata.deletion_timestamp, now)
    return now


class JobBackoff(msgspec.Struct, frozen=True):
    """The failures since the last success, over a whole Job."""

    failures: int = 0
    last: datetime | None = None

    def after(self, ends: Iterable[tuple[datetime, bool]]) -> JobBackoff:
        """Return the back-off after more pods ended. `ends` holds when each ended, and whether it succeeded."""
        failures, last = self.failures, self.last
        for at, well in sorted(ends):
            failures, last = (0, None) if well else (failures + 1, at if last is None else max(last, at))
        return JobBackoff(failures, last)

    def ends_at(self) -> datetime | None:
        """Return when the next pod may be created; None for at once."""
        return None if self.last is None else self.last + timedelta(seconds=backoff_delay_s(self.failures))


def backoff_delay_s(failures: int) -> int:
    """Return the back-off delay: 10 s, 20 s, 40 s ... 10 min."""
    if failures <= 0:
        return 0
    return min(FIRST_BACKOFF_S << min(failures - 1, 16), MAX_BACKOFF_S)


def restarts_exceed_limit(job: Job, pods: Iterable[Pod]) -> bool:
    """Return whether restarts exceed the limit: pods that restart in place never fail."""
    restart_policy = (job.spec.template.get("spec") or {}).get("restartPolicy")
    if restart_policy != "OnFailure":
        return False
    restarts = sum(
        status.restart_count
        for pod in pods
        if pod.status.phase in ("Running", "Pending")
        for status in (*pod.status.container_statuses, *pod.status.init_container_statuses)
    )
    limit = 6 if job.spec.backoff_limit is None else job.spec.backoff_limit
    return restarts > 0 if limit == 0 else restarts >= limit


def pods_by_index(pods: Iterable[Pod]) -> dict[int, list[Pod]]:
    grouped: dict[int, list[Pod]] = {}
    for pod in pods:
        index = completion_index(pod)
        if index is not None:
            grouped.setdefault(index, []).append(pod)
    return grouped


COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"


def parse_indexes(text: str | None) -> frozenset[int]:
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def format_indexes(indexes: Iterable[int]) -> str:
    """Format indexes; two neighbours are written as a pair, three and more as a range."""
    parts: list[str] = []
    run: list[int] = []
    for index in [*sorted(indexes), None]:
        if run and (index is None or index != run[-1] + 1):
            if len(run) > 1:
                parts.append(f"{run[0]}{',' if len(run) == 2 else '-'}{run[-1]}")
            else:
                parts.append(str(run[0]))
            run = []
        if index is not None:
            run.append(index)
    return ",".join(parts)


def completion_index(pod: Pod) -> int | None:
    value = pod.metadata.annotations.get(COMPLETION_INDEX, "")
    return int(value) if value.isdecimal() else None


def index_failure_count(pod: Pod) -> int:
    """Return how often this pod's index had failed before the pod was created."""
    value = pod.metadata.annotations.get(INDEX_FAILURE_COUNT, "")
    return int(value) if value.isdecimal() else 0
