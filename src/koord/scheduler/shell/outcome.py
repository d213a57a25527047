"""Describe what came of a scheduling attempt: its failure in Kubernetes' words, the plugin to blame, and its record."""

from __future__ import annotations

import msgspec

from koord.scheduler.framework.decision import Failed, Unschedulable
from koord.scheduler.framework.verdict import Fault, Reject

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
NOBODY: frozenset[str] = frozenset()


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a failed attempt for the queue and for users.

    With neither `rejected` nor `pending` plugins the pod is retried after a back-off, whatever happens.
    """

    message: str
    error: bool = False  # something is broken, rather than no node suitable
    rejected: frozenset[str] = NOBODY
    pending: frozenset[str] = NOBODY
    nominate: str | None = None  # the pod's new nominated node, "" for none, None to leave it
    quiet: bool = False  # releasing its resources wakes no pod that waits for some

    @property
    def reason(self) -> str:
        return SCHEDULER_ERROR if self.error else UNSCHEDULABLE


def of_decision(decision: Unschedulable | Failed) -> Failure:
    """Return the failure that an unsuccessful decision amounts to."""
    if isinstance(decision, Failed):
        who = f'{decision.point} plugin "{decision.plugin}"' if decision.point else f'"{decision.plugin}" plugin'
        return Failure(message=f"running {who}: {decision.message}", error=True)
    return Failure(message=decision.message(), rejected=decision.plugins(), nominate=decision.nominate)


def of_refusal(plugin: str, point: str, verdict: Reject | Fault) -> Failure:
    """Return the failure for a plugin's rejection after a node was chosen; Kubernetes counts that node as the only
    one.
    """
    if isinstance(verdict, Fault):
        return Failure(message=f'running {point} plugin "{plugin}": {verdict.message}', error=True)
    listed = ", ".join(f"1 {reason}" for reason in sorted(verdict.reasons))
    return Failure(message=f"0/1 nodes are available: {listed}.", rejected=frozenset((plugin,)))
