"""Define a scheduling attempt and what came of it: a failure in Kubernetes' words, the plugin to blame, a record."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Literal

import msgspec

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import (
    EXTENDER,
    AttemptError,
    ChosenNode,
    Decision,
    NearestNode,
    Unschedulable,
)
from koord.scheduler.framework.filtering import FilterResults
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.runtime import PluginRejection
from koord.scheduler.framework.verdict import Fault

if TYPE_CHECKING:
    from koord.scheduler.framework.engine import ClassEvaluation
    from koord.scheduler.framework.post_filter import PostFilterContext

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
NO_PLUGINS: frozenset[str] = frozenset()


class SchedulingAttempt:
    """Own the cycle state and the results of one attempt at a pod, from its decision to its binding.

    `evaluation` is None when no node was evaluated. It belongs to the class of equal pods, so that a later attempt may
    refresh it; `refreshes` tells whether one did. `post_filter_context` is what PostFilter was run with.
    """

    __slots__ = ("cycle", "decision", "evaluation", "pod", "position", "post_filter_context", "profile", "refreshes")

    def __init__(
        self,
        profile: SchedulerProfile,
        pod: PodInfo,
        cycle: CycleState,
        decision: Decision,
        evaluation: ClassEvaluation | None = None,
    ) -> None:
        self.profile = profile
        self.pod = pod
        self.cycle = cycle
        self.decision = decision
        self.evaluation = evaluation
        self.position = cycle.state.table.position  # in the log of changes, when it was decided
        self.refreshes = 0 if evaluation is None else evaluation.refreshes
        self.post_filter_context: PostFilterContext | None = None

    @property
    def filter_results(self) -> FilterResults | None:
        """Return the verdicts on all nodes; None when no node was evaluated."""
        return None if self.evaluation is None else self.evaluation.filter_results

    def candidate_nodes(self) -> list[str]:
        """Return the nodes that the pod may get as far as plugins are concerned, for extenders to look at."""
        if not isinstance(self.decision, ChosenNode) or self.evaluation is None:
            return []
        if self.decision.fallback_reason:
            return [self.decision.node]
        nodes = self.cycle.state.table.nodes
        rows = self.evaluation.filter_results.feasible_rows().tolist()
        return [node.name for row in rows if (node := nodes[row]) is not None]

    @property
    def has_unasked_nodes(self) -> bool:
        """Return whether nodes fit by now that extenders were not asked about."""
        return self.evaluation is not None and self.evaluation.has_unasked_nodes

    @property
    def node_name(self) -> str:
        """Return the chosen node."""
        assert isinstance(self.decision, ChosenNode)
        return self.decision.node

    @property
    def node(self) -> NodeInfo:
        return self.cycle.state.table.index[self.node_name]


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
        if decision.plugin == EXTENDER:
            return AttemptFailure(message=decision.message, error=True)
        who = f'{decision.point} plugin "{decision.plugin}"' if decision.point else f'"{decision.plugin}" plugin'
        if decision.point == "Filter":  # Kubernetes' words differ from those at other points
            who = f'"{decision.plugin}" filter plugin'
        return AttemptFailure(message=f"running {who}: {decision.message}", error=True)
    return AttemptFailure(message=decision.message(), rejected=decision.rejecting_plugins(), nominate=decision.nominate)


def failure_of_rejection(rejection: PluginRejection) -> AttemptFailure:
    """Return the failure for a plugin's rejection after a node was chosen; Kubernetes counts one node."""
    plugin, answer = rejection.plugin, rejection.answer
    if isinstance(answer, Fault):
        return AttemptFailure(message=f'running {rejection.point} plugin "{plugin}": {answer.message}', error=True)
    listed = ", ".join(f"1 {reason}" for reason in sorted(answer.reasons))
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

MAX_ATTEMPT_LOG_BYTES = 16 << 20
# What the parts of a record take, rounded up; counting them exactly would cost as much as the decision.
_RECORD_BYTES, _NODE_BYTES, _SCORE_BYTES, _REJECTION_BYTES, _NAME_BYTES, _POD_BYTES = 900, 500, 140, 700, 130, 3000


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
    """Keep the last attempt of each pod by UID; the oldest are forgotten first when they take too many bytes."""

    def __init__(self, max_bytes: int = MAX_ATTEMPT_LOG_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._attempts: OrderedDict[str, tuple[AttemptRecord, int]] = OrderedDict()

    def put(self, attempt: AttemptRecord) -> None:
        self._remove(attempt.uid)
        self._add(attempt)

    def get(self, uid: str) -> AttemptRecord | None:
        found = self._attempts.get(uid)
        return found[0] if found is not None else None

    def set_result(self, uid: str, result: AttemptResult, message: str = "") -> None:
        found = self._attempts.get(uid)
        if found is None:
            return
        attempt = found[0]
        attempt.result = result
        if attempt.message != message:
            attempt.message = message
            self._remove(uid)
            self._add(attempt)

    def _add(self, attempt: AttemptRecord) -> None:
        size = _RECORD_BYTES + len(attempt.message) + _decision_bytes(attempt.decision)
        self._attempts[attempt.uid] = (attempt, size)
        self._bytes += size
        while self._bytes > self._max_bytes and len(self._attempts) > 1:
            _, (_, oldest) = self._attempts.popitem(last=False)
            self._bytes -= oldest

    def _remove(self, uid: str) -> None:
        found = self._attempts.pop(uid, None)
        if found is not None:
            self._bytes -= found[1]

    def __len__(self) -> int:
        return len(self._attempts)


def _decision_bytes(decision: Decision) -> int:
    if isinstance(decision, ChosenNode):
        return (1 + len(decision.runners_up)) * (_NODE_BYTES + _SCORE_BYTES * len(decision.scores))
    if isinstance(decision, AttemptError):
        return len(decision.message)
    size = len(decision.post_filter) + _nearest_bytes(decision.nearest)
    for plugin, verdict, names in (
        *((one.plugin, one.verdict, one.nodes) for one in decision.rejections),
        *(((*decision.pre_filter, ()),) if decision.pre_filter is not None else ()),
    ):
        size += _REJECTION_BYTES + len(plugin) + _NAME_BYTES * len(names) + sum(map(len, verdict.reasons))
    for search in decision.searches:
        size += (
            _REJECTION_BYTES + sum(_NAME_BYTES + len(why) for why in search.without) + _nearest_bytes(search.nearest)
        )
    for victim in decision.preempt.victims if decision.preempt is not None else ():
        size += _POD_BYTES + sum(len(key) + len(value) for key, value in victim.annotations.items())
    return size


def _nearest_bytes(nearest: NearestNode | None) -> int:
    if nearest is None:
        return 0
    words = sum(_NAME_BYTES + len(text) for text in (*nearest.reasons, *nearest.details))
    return _REJECTION_BYTES + words + _SCORE_BYTES * len(nearest.lacking)
