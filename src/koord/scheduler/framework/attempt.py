"""Describe what came of a scheduling attempt: its failure in Kubernetes' words, the plugin to blame, and its record."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import msgspec

from koord.scheduler.framework.decision import AttemptError, Decision, Unschedulable
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import Fault, Reject

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
NO_PLUGINS: frozenset[str] = frozenset()


class AttemptFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a failed attempt for the queue and for users.

    With neither `rejected` nor `pending` plugins the pod is retried after a back-off, whatever happens.
    """

    message: str
    error: bool = False  # something is broken, rather than no node suitable
    rejected: frozenset[str] = NO_PLUGINS
    pending: frozenset[str] = NO_PLUGINS
    nominate: str | None = None  # the pod's new nominated node, "" for none, None to leave it
    silent_release: bool = False  # releasing its resources wakes no pod that waits for some

    @property
    def reason(self) -> str:
        return SCHEDULER_ERROR if self.error else UNSCHEDULABLE


def failure_of_decision(decision: Unschedulable | AttemptError) -> AttemptFailure:
    """Return the failure that an unsuccessful decision amounts to."""
    if isinstance(decision, AttemptError):
        who = f'{decision.point} plugin "{decision.plugin}"' if decision.point else f'"{decision.plugin}" plugin'
        return AttemptFailure(message=f"running {who}: {decision.message}", error=True)
    return AttemptFailure(message=decision.message(), rejected=decision.rejecting_plugins(), nominate=decision.nominate)


def failure_of_verdict(plugin: str, point: str, verdict: Reject | Fault) -> AttemptFailure:
    """Return the failure for a plugin's rejection after a node was chosen; Kubernetes counts that node as the only
    one.
    """
    if isinstance(verdict, Fault):
        return AttemptFailure(message=f'running {point} plugin "{plugin}": {verdict.message}', error=True)
    listed = ", ".join(f"1 {reason}" for reason in sorted(verdict.reasons))
    return AttemptFailure(message=f"0/1 nodes are available: {listed}.", rejected=frozenset((plugin,)))


FRAMEWORK = "framework"


def plugin_that_raised(error: BaseException) -> str:
    """Return the name of the innermost plugin on the traceback of the error.

    The traceback is searched because wrapping every call would slow down the calls that succeed, which are nearly all.
    """
    name = FRAMEWORK
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, Plugin):
            name = owner.name
        trace = trace.tb_next
    return name


def describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


AttemptResult = Literal["deciding", "waiting", "binding", "bound", "unschedulable", "error"]

MAX_ATTEMPT_RECORDS = 20_000


class AttemptRecord(msgspec.Struct, kw_only=True):
    pod: str
    uid: str
    scheduler: str
    number: int  # of this pod's attempts
    at: float  # seconds since 1970
    took_s: float
    decision: Decision
    result: AttemptResult
    message: str = ""  # of a failure, as events tell it


class AttemptLog:
    """Keep the last attempt of each pod by UID; the oldest are forgotten first, so that memory is bounded."""

    def __init__(self, kept: int = MAX_ATTEMPT_RECORDS) -> None:
        self._limit = kept
        self._attempts: OrderedDict[str, AttemptRecord] = OrderedDict()

    def put(self, attempt: AttemptRecord) -> None:
        self._attempts[attempt.uid] = attempt
        self._attempts.move_to_end(attempt.uid)
        if len(self._attempts) > self._limit:
            self._attempts.popitem(last=False)

    def get(self, uid: str) -> AttemptRecord | None:
        return self._attempts.get(uid)

    def set_result(self, uid: str, result: AttemptResult, message: str = "") -> None:
        attempt = self._attempts.get(uid)
        if attempt is not None:
            attempt.result = result
            attempt.message = message

    def __len__(self) -> int:
        return len(self._attempts)
