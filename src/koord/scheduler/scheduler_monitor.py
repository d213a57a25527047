"""Watch scheduling attempts: report pods whose attempt takes too long.

Write what came of each attempt to the log, for who asked for it: scores as a table, rejections node by node, or the
diagnosis of a failure as JSON (--debug-scores, --debug-filters, --debug-diagnosis, and PUT /debug/flags/{s,f,d,db}).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from koord.api.koordinator.protocol import L_QUESTIONED_OBJECT_KEY, L_TOPOLOGY_KEY_TO_EXPLAIN
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.decision import AttemptError, ChosenNode, Decision, ScoredNode, Unschedulable
from koord.telemetry.clock import Clock
from koord.values import duration, timestamp


class SchedulerMonitorSettings(msgspec.Struct, frozen=True, kw_only=True):
    period_s: float = 10.0
    timeout_s: float = 30.0
    drop_unhandled_s: float = 5.0


class SchedulingTimeout(msgspec.Struct, frozen=True, kw_only=True):
    pod: str  # namespace/name
    uid: str
    profile: str
    attempts: int
    took_s: float
    timeout_s: float

    def __str__(self) -> str:
        took, limit = (duration.text(duration.from_seconds(s)) for s in (self.took_s, self.timeout_s))
        whose = f"scheduling pod {self.pod}({self.uid})"
        return f"!!!CRITICAL TIMEOUT!!! {whose} took longer ({took}) than the timeout {limit}"


class _WatchedAttempt(msgspec.Struct):
    pod: str
    profile: str
    attempts: int
    dequeued: float
    started: float | None = None


class SchedulerMonitor:
    """Watch each pod from leaving the queue until it is bound or rejected. Times are seconds of one monotonic clock."""

    def __init__(
        self,
        tell: Callable[[SchedulingTimeout], None],
        settings: SchedulerMonitorSettings = SchedulerMonitorSettings(),  # noqa: B008 - frozen
    ) -> None:
        self.settings = settings
        self._report = tell
        self._watched: dict[str, _WatchedAttempt] = {}

    def dequeued(self, uid: str, pod: str, profile: str, attempts: int, now: float, *, ending: bool = False) -> None:
        """Start watching a pod; `ending` pods are being deleted and are not watched."""
        if ending:
            self._watched.pop(uid, None)
        else:
            self._watched[uid] = _WatchedAttempt(pod, profile, attempts, now)

    def started(self, uid: str, now: float) -> None:
        found = self._watched.get(uid)
        if found is not None:
            found.started = now

    def completed(self, uid: str, now: float) -> None:
        """Stop watching a bound or rejected pod, and report it if it took too long even when no check came in time."""
        found = self._watched.pop(uid, None)
        if found is not None:
            self._report_if_late(uid, found, now)

    def check(self, now: float) -> None:
        """Report every late pod, at each check. Pods that were dequeued but never tried are dropped."""
        for uid, found in list(self._watched.items()):
            if found.started is not None:
                self._report_if_late(uid, found, now)
            elif now - found.dequeued > self.settings.drop_unhandled_s:
                del self._watched[uid]

    async def run(self, clock: Clock) -> None:
        """Check once a period until cancelled."""
        while True:
            await clock.sleep(self.settings.period_s)
            self.check(clock.monotonic())

    def __len__(self) -> int:
        return len(self._watched)

    def _report_if_late(self, uid: str, found: _WatchedAttempt, now: float) -> None:
        if found.started is None or now - found.started <= self.settings.timeout_s:
            return
        timeout = SchedulingTimeout(
            pod=found.pod,
            uid=uid,
            profile=found.profile,
            attempts=found.attempts,
            took_s=now - found.started,
            timeout_s=self.settings.timeout_s,
        )
        self._report(timeout)


_LOG = logging.getLogger(__name__)

MAX_TOP_SCORES = 5000  # of one pod: a table of more lines is read by nobody


class AttemptDump:
    """Hold what is to be written. The loop calls `write` after each attempt."""

    def __init__(self, *, top_scores: int = 0, filters: bool = False, diagnosis: bool = False) -> None:
        """`top_scores` is the number of best nodes in the table of a pod, 0 for none."""
        self.top_scores = min(max(top_scores, 0), MAX_TOP_SCORES)
        self.filters = filters
        self.diagnosis = diagnosis

    def write(self, pod: PodInfo, decision: Decision, at: float) -> None:
        if isinstance(decision, ChosenNode):
            if self.top_scores:
                _LOG.info("scores of %s\n%s", pod.key, score_table(pod.key, decision, self.top_scores))
            return
        if self.filters and isinstance(decision, Unschedulable):
            for line in filter_lines(pod.key, decision):
                _LOG.info("%s", line)
        if self.diagnosis:
            _LOG.info("dump diagnosis: %s", msgspec.json.encode(diagnosis(pod, decision, at)).decode())

    # As PUT /debug/flags/NAME is answered ------------------------------------------------------------------------

    def put_top_scores(self, text: str) -> str:
        """Set the number of lines of a table. Raise ValueError."""
        if not text.strip().isdecimal() or int(text) > MAX_TOP_SCORES:
            raise ValueError(f"invalid value {text.strip()!r}: it must be a number from 0 to {MAX_TOP_SCORES}")
        self.top_scores = int(text)
        return f"successfully set debugTopNScores to {self.top_scores}"

    def put_filters(self, text: str) -> str:
        self.filters = _parse_switch(text)
        return f"successfully set debugFilterFailure to {text.strip()}"

    def put_diagnosis(self, text: str) -> str:
        self.diagnosis = _parse_switch(text)
        return f"successfully set debugDiagnosis to {text.strip()}"

    def put_blocking(self, text: str) -> str:
        if not _parse_switch(text):
            raise ValueError("a diagnosis is always written before the next attempt: it cannot be set to false")
        return "successfully set debugDiagnosisBlocking to true"


def _parse_switch(text: str) -> bool:
    if text.strip() not in ("true", "false"):
        raise ValueError(f"invalid value {text.strip()!r}: it must be true or false")
    return text.strip() == "true"


def score_table(key: str, decision: ChosenNode, most: int) -> str:
    """Return the best nodes of a pod as a table in Markdown, with the weighted score of each plugin."""
    best = ScoredNode(decision.node, decision.total, decision.scores)
    rows = (best, *decision.runners_up)[:most]
    plugins = sorted({name for row in rows for name in row.scores})
    lines = [
        f"| {' | '.join(['#', 'Pod', 'Node', 'Score', *plugins])} |",
        f"| {' | '.join(['---'] * 3 + ['---:'] * (1 + len(plugins)))} |",
    ]
    for number, row in enumerate(rows):
        scores = [str(row.scores.get(name, 0)) for name in plugins]
        lines.append(f"| {' | '.join([str(number), key, row.node, str(row.total), *scores])} |")
    return "\n".join(lines)


def filter_lines(key: str, decision: Unschedulable) -> list[str]:
    """Return a line for each rejected node, as far as their names are recorded."""
    lines = []
    for one in decision.rejections:
        why = f"failedPlugin: {one.plugin}, reason: {one.verdict.text}"
        lines += [f'Failed to filter for Pod "{key}" on Node "{node}", {why}' for node in one.nodes]
        if one.count > len(one.nodes):
            lines.append(f'Failed to filter for Pod "{key}" on {one.count - len(one.nodes)} more nodes, {why}')
    return lines


def diagnosis(pod: PodInfo, decision: Unschedulable | AttemptError, at: float) -> dict[str, Any]:
    """Return why the pod has no node, with the keys of Koordinator's diagnosis."""
    found: dict[str, Any] = {
        "timestamp": timestamp.unix_text(at),
        "questionedKey": pod.labels.get(L_QUESTIONED_OBJECT_KEY) or pod.key,
        "topologyKeyToExplain": pod.labels.get(L_TOPOLOGY_KEY_TO_EXPLAIN, ""),
        "isRootCausePod": True,
    }
    if isinstance(decision, AttemptError):
        return {**found, "failedMessage": decision.message}
    details = [
        {
            "failedPlugin": one.plugin,
            "reason": one.verdict.text,
            "preemptMightHelp": one.verdict.resolvable,
            "failedNodes": sorted(one.nodes),
        }
        for one in decision.rejections
    ]
    details.sort(key=lambda one: (one["failedPlugin"], one["reason"], not one["preemptMightHelp"]))
    return {
        **found,
        "nominatedNode": decision.nominate or "",
        "preFilterMessage": decision.pre_filter[1].text if decision.pre_filter is not None else "",
        "scheduleDiagnosis": {"nodeFailedDetails": details},
        "preemptionDiagnosis": {"failedMessage": decision.post_filter},
    }
