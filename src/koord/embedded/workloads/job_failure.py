"""What a failed pod means to its Job: the failure policy, and the back-off before the next pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from koord.api.batch import Job, PodFailureOnExitCodes, PodFailurePolicyRule
from koord.api.core import Pod
from koord.embedded.workloads.job_index import index_of

FIRST_DELAY_S = 10
LONGEST_DELAY_S = 600

Action = Literal["Count", "Ignore", "FailIndex", "FailJob"]


class Verdict(msgspec.Struct, frozen=True):
    action: Action
    message: str = ""


def waits_for_end(job: Job) -> bool:
    """Return whether only terminated pods are replaced, not terminating ones. A failure policy needs their end
    too.
    """
    return job.spec.pod_replacement_policy == "Failed" or job.spec.pod_failure_policy is not None


def failed(pod: Pod, job: Job) -> bool:
    """Return whether a pod counts as failed. A terminating one counts at once: on a lost node its end may
    never be reported.
    """
    if pod.status.phase == "Failed":
        return True
    if waits_for_end(job):
        return False
    return pod.metadata.deletion_timestamp is not None and pod.status.phase != "Succeeded"


def judge(job: Job, pod: Pod) -> Verdict:
    """Return the action of the first matching failure policy rule; a failure that no rule matches counts."""
    policy = job.spec.pod_failure_policy
    for number, rule in enumerate(policy.rules if policy is not None else ()):
        message = _match(rule, pod, number)
        if message is None:
            continue
        match rule.action:
            case "FailJob":
                return Verdict("FailJob", message)
            case "FailIndex" if job.spec.backoff_limit_per_index is not None:
                return Verdict("FailIndex", message)
            case "Ignore":
                return Verdict("Ignore", message)
            case _:
                return Verdict("Count", message)
    return Verdict("Count")


def _match(rule: PodFailurePolicyRule, pod: Pod, number: int) -> str | None:
    who = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
    if rule.on_exit_codes is not None:
        found = _exit_code(rule.on_exit_codes, pod)
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


def _exit_code(rule: PodFailureOnExitCodes, pod: Pod) -> tuple[str, int] | None:
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        if rule.container_name is not None and status.name != rule.container_name:
            continue
        ended = status.state.terminated if status.state is not None else None
        if ended is None or ended.exit_code == 0:
            continue
        if (ended.exit_code in rule.values) == (rule.operator == "In"):
            return status.name, ended.exit_code
    return None


def ended_at(pod: Pod, now: datetime) -> datetime:
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


class Backoff(msgspec.Struct, frozen=True):
    """The failures since the last success, over a whole Job."""

    failures: int = 0
    last: datetime | None = None

    def after(self, ends: Iterable[tuple[datetime, bool]]) -> Backoff:
        """Return the back-off after more pods ended. `ends` holds when each ended, and whether it succeeded."""
        failures, last = self.failures, self.last
        for at, well in sorted(ends):
            failures, last = (0, None) if well else (failures + 1, at if last is None else max(last, at))
        return Backoff(failures, last)

    def over_at(self) -> datetime | None:
        """Return when the next pod may be created; None for at once."""
        return None if self.last is None else self.last + timedelta(seconds=delay_s(self.failures))


def delay_s(failures: int) -> int:
    """Return the back-off delay: 10 s, 20 s, 40 s ... 10 min."""
    if failures <= 0:
        return 0
    return min(FIRST_DELAY_S << min(failures - 1, 16), LONGEST_DELAY_S)


def past_limit_by_restarts(job: Job, pods: Iterable[Pod]) -> bool:
    """Return whether restarts exceed the limit: pods that restart in place never fail, so their restarts are
    counted.
    """
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


def per_index(pods: Iterable[Pod]) -> dict[int, list[Pod]]:
    grouped: dict[int, list[Pod]] = {}
    for pod in pods:
        index = index_of(pod)
        if index is not None:
            grouped.setdefault(index, []).append(pod)
    return grouped
