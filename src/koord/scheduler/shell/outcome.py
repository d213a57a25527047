"""What came of an attempt, in the words that users and the queue understand."""

from __future__ import annotations

import msgspec

from koord.scheduler.framework.decision import Failed, Unschedulable
from koord.scheduler.framework.verdict import Fault, Reject

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
NOBODY: frozenset[str] = frozenset()


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """With nobody in `rejected` or `pending` the pod is tried again after a back-off, whatever happens."""

    message: str
    error: bool = False  # something is broken, rather than no node suitable
    rejected: frozenset[str] = NOBODY
    pending: frozenset[str] = NOBODY
    nominate: str | None = None  # a node to promise to the pod, "" to take a promise back, None to leave it
    quiet: bool = False  # the room that it gives back is no news to those who wait for room

    @property
    def reason(self) -> str:
        return SCHEDULER_ERROR if self.error else UNSCHEDULABLE


def of_decision(decision: Unschedulable | Failed) -> Failure:
    if isinstance(decision, Failed):
        who = f'{decision.point} plugin "{decision.plugin}"' if decision.point else f'"{decision.plugin}" plugin'
        return Failure(message=f"running {who}: {decision.message}", error=True)
    return Failure(message=decision.message(), rejected=decision.plugins(), nominate=decision.nominate)


def of_refusal(plugin: str, point: str, verdict: Reject | Fault) -> Failure:
    """A plugin's no after a node was chosen. Kubernetes counts that node as the only one."""
    if isinstance(verdict, Fault):
        return Failure(message=f'running {point} plugin "{plugin}": {verdict.message}', error=True)
    listed = ", ".join(f"1 {reason}" for reason in sorted(verdict.reasons))
    return Failure(message=f"0/1 nodes are available: {listed}.", rejected=frozenset((plugin,)))
