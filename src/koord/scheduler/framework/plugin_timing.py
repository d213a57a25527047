"""Time what plugins do in sampled attempts: the framework calls a timer where it has one, and loses nothing else."""

from __future__ import annotations

from typing import Protocol

from koord.scheduler.framework.decision import PostFilterRejection
from koord.scheduler.framework.verdict import Fault, Reject, Skip, Wait


class AttemptTimer(Protocol):
    """Receive the ends of extension points and of calls of plugins, in the order in which they end.

    A call lasts from the last `lap` or the end of the call before it. Plugins that answer for many nodes at once are
    called once for all of them.
    """

    def point_ended(self, point: str) -> None: ...

    def lap(self) -> None:
        """Start the time of the next call of a plugin."""

    def plugin_ended(self, plugin: str, point: str, answer: object) -> None: ...


def status_name(answer: object) -> str:
    """Return Kubernetes' name for what a plugin answered."""
    if isinstance(answer, Reject):
        return "Unschedulable" if answer.resolvable else "UnschedulableAndUnresolvable"
    if isinstance(answer, PostFilterRejection):
        return "Unschedulable"
    if isinstance(answer, Fault):
        return "Error"
    if isinstance(answer, Skip):
        return "Skip"
    return "Wait" if isinstance(answer, Wait) else "Success"
