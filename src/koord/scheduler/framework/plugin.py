"""Define a scheduler plugin: a name and some of these methods. Only those that it overrides are called.

The per-node methods (`filter`, `score`) are its definition. A plugin on the default path also has the columnar forms,
which must give the same answers for many rows at once; a property test holds them to it. A plugin that keeps no state
between pods and reads only the node at hand should declare `scope = ROW`, so that its verdicts are cached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, RowList, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ClusterEvent, ObjectEvent
from koord.scheduler.framework.verdict import (
    ALWAYS,
    SKIP,
    BindEffect,
    FailureOverride,
    Fault,
    PodPatch,
    PreFilterResult,
    Reject,
    Skip,
    StatusBinding,
    VerdictScope,
    Wait,
)

if TYPE_CHECKING:
    from koord.scheduler.framework.cycle_state import CycleState
    from koord.scheduler.framework.decision import PostFilterRejection, PreemptionPlan
    from koord.scheduler.framework.handle import Handle
    from koord.scheduler.framework.post_filter import PostFilterContext
    from koord.scheduler.framework.reservation import MatchedReservation

Codes = npt.NDArray[np.int32]  # per row: 0 passes, anything else is a reason that `explain_code` can put into words
Scores = npt.NDArray[np.int64]

MAX_SCORE = 100


class CachePolicy:
    """Tell for how long, and for which pods, the answers of a plugin may be reused. By default they never are."""

    scope: ClassVar[VerdictScope] = ALWAYS
    # A pod that PreFilter skips gets the same score everywhere, so that nobody need ask for it.
    scores_as_it_filters: ClassVar[bool] = False
    # A pod that PreFilter skips gets nothing at Reserve either, so that it need not be called.
    reserves_as_it_filters: ClassVar[bool] = False
    # Methods that are not called for a pod without Koordinator's labels and annotations
    # (`PodInfo.has_koordinator_keys`): they answer None or SKIP, or as `signature` what the shape alone says.
    idle_without_keys: ClassVar[tuple[Callable[..., Any], ...]] = ()
    # Methods that are not called for a pod without those keys while `is_idle_for` says so; they answer as above.
    idle_by_labels: ClassVar[tuple[Callable[..., Any], ...]] = ()
    # `prefilter_epoch` changes only when a node object does, so that it is not asked for every pod.
    prefilter_epoch_of_nodes: ClassVar[bool] = False
    # What `filter` reads of the pods on a node, so that a what-if need not ask when that stays the same: `nothing`;
    # only the `sums` in the table's columns (then `filter_columns` can be asked about other sums); or them `all`.
    reads_pods: ClassVar[Literal["nothing", "sums", "all"]] = "all"

    def signature(self, pod: PodInfo) -> Hashable:
        """Return what this plugin reads of a pod beyond its shape: pods equal in both share verdicts."""
        return None

    def is_idle_for(self, pod: PodInfo) -> bool:
        """Return whether the methods in `idle_by_labels` have nothing to do for a pod without Koordinator's keys.

        The answer may depend on its namespace and labels only, and is kept for pods that are equal in both until
        `ClusterState.invalidate_idle` is called.
        """
        return False

    def epoch(self, cycle: CycleState) -> Hashable:
        """Return a value that changes whenever a cached verdict may have changed, for `scope = CLUSTER`."""
        return 0

    def moved_rows(self, cycle: CycleState) -> RowList | None:
        """Return the rows whose verdict may differ since the last call, after `epoch` moved; None for all of them."""
        return None

    def score_epoch(self, cycle: CycleState) -> Hashable:
        """Return the epoch of cached scores, for a plugin whose scores change at other times than its verdicts."""
        return self.epoch(cycle)

    def prefilter_epoch(self, state: ClusterState) -> Hashable:
        """Return a value that changes when what PreFilter or PreScore wrote, or their Skip, no longer holds.

        It is asked for every pod; `ClusterState.invalidate_prefilter` tells the same of what changes seldom.
        """
        return 0


class Plugin(CachePolicy):
    name: ClassVar[str]
    # What can turn this plugin's refusals: pods refused by it are looked at again after such an event.
    wakes_on: ClassVar[tuple[ClusterEvent, ...]] = ()
    normaliser: ClassVar[ScoreNormaliser | None] = None

    def __init__(self, args: Any = None, handle: Handle | None = None) -> None:
        """Take the arguments as plain data (for external plugins) and the handle; both may be left out."""

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        """Return whether an event of `wakes_on` may make the pod fit; False keeps it unschedulable.

        The answer may depend on the pod's shape and `signature` only, as verdicts do: queued pods that are equal in
        both are represented by one of them. A plugin with `scope = ALWAYS` is asked about each. Besides cluster events,
        a pod's own updates are passed: then `object_event.new.uid == pod.uid`.
        """
        return True

    # Queue -------------------------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        return None

    def sort_key(self, pod: PodInfo, queued_at: float) -> Any:
        """Return the key that orders the queue: smaller is scheduled sooner."""
        raise NotImplementedError

    # Choosing a node ---------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        return None

    def add_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        """Update this plugin's part of a forked cycle state for a dry run in which `other` is on `node`."""

    def remove_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        """Update this plugin's part of a forked cycle state for a dry run in which `other` has left `node`."""

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        """Return why the node cannot take the pod; a fault ends the attempt, unless another filter rejects the node."""
        return None

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        """Run `filter` for many rows; return a code per entry of `rows`."""
        raise NotImplementedError

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        """Return the verdict that a code of `filter_columns` stands for."""
        raise NotImplementedError

    def fault_codes(self, cycle: CycleState) -> Sequence[int]:
        """Return the codes of `filter_columns` that stand for faults: `filter` ends the attempt on such nodes."""
        return ()

    def post_filter(
        self, cycle: CycleState, pod: PodInfo, context: PostFilterContext
    ) -> PreemptionPlan | PostFilterRejection | Fault | None:
        """Find a way to make an unschedulable pod fit, or say why there is none; None has nothing to add."""
        return None

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return 0

    def row_scorer(self, cycle: CycleState, pod: PodInfo) -> Callable[[NodeInfo], int]:
        """Return a function that gives what `score` gives; it is used until PreScore runs again for such pods."""
        return partial(self.score, cycle, pod)

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        raise NotImplementedError

    def normalise(self, cycle: CycleState, pod: PodInfo, scores: Scores) -> Scores:
        """Normalise the scores of all feasible nodes to 0..100; `normaliser` does the same more cheaply."""
        return scores

    # After the choice --------------------------------------------------------------------------------------------

    def nominate_reservation(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        """Choose the reservation that the pod takes on its chosen node (`framework.reservation`).

        Called before the pod is assumed and before Reserve, with the node as the pod sees it. It needs no extension
        point, and is not called for a pod that sees what everyone sees.
        """
        return None

    def remove_nominated_reservation(self, cycle: CycleState, pod: PodInfo) -> None:
        """Forget what `nominate_reservation` chose. Called after Reserve, whatever came of it."""

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        return None

    def unreserve(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        """Undo `reserve`; must work whatever has vanished meanwhile, and more than once."""

    def permit(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Wait | Fault | None:
        return None

    def pre_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> BindEffect | Reject | Fault | None:
        """Return what must be done before the pod can be bound; the binder carries it out."""
        return None

    def apply_patch(
        self, cycle: CycleState, pod: PodInfo, node_name: str, pod_patch: PodPatch
    ) -> PodPatch | Skip | Fault:
        """Change the combined patch of all PreBind plugins before it is written. Enabled at preBind.

        The first plugin that does not skip decides: what it returns is written.
        """
        return SKIP

    def bind(
        self, cycle: CycleState, pod: PodInfo, node_name: str
    ) -> BindEffect | StatusBinding | Skip | Reject | Fault | None:
        """Return None for the usual binding, an effect to execute instead, or Skip to leave it to the next plugin."""
        return SKIP

    def post_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        """Take note that the pod is bound."""

    def on_attempt_failed(self, pod: PodInfo, message: str, rejectors: frozenset[str]) -> FailureOverride | None:
        """Take note of a failed attempt, and override what becomes of it; the first plugin that answers decides.

        It needs no extension point.
        """
        return None

    # Reservations that a pod may use: called where the plugin is enabled at the point that is named -----------------

    def restore_reservations(
        self, cycle: CycleState, pod: PodInfo, matched: Mapping[str, Sequence[MatchedReservation]]
    ) -> Fault | None:
        """Prepare for a pod that may use reservations, at preFilter, with all of them by node.

        What their reserve pods hold is free for the pod. Cached like `before_pre_filter`, and called before PreFilter.
        """
        return None

    def filter_reservation(
        self, cycle: CycleState, pod: PodInfo, reservation: MatchedReservation, node: NodeInfo
    ) -> Reject | Fault | None:
        """Return why the pod may not use this reservation, at filter; it may still use others of the node."""
        return None

    def filter_nominated_reservation(
        self, cycle: CycleState, pod: PodInfo, reservation: MatchedReservation, node: NodeInfo
    ) -> Reject | Fault | None:
        """Return why this reservation may not be nominated for the pod, at filter; asked after `filter_reservation`."""
        return None

    def score_reservation(
        self, cycle: CycleState, pod: PodInfo, reservation: MatchedReservation, node: NodeInfo
    ) -> int:
        """Score one of several reservations of a node, 0 to 100, at score: the best sum is nominated."""
        return 0

    def pre_bind_reservation(
        self, cycle: CycleState, pod: PodInfo, node_name: str
    ) -> BindEffect | Reject | Fault | None:
        """Return what must be done before a Reservation becomes available, at preBind; `pod` is its reserve pod.

        A plugin without this method is asked by `pre_bind` instead.
        """
        return None

    # Around the points: called where the plugin is enabled at the point that is named, in its order ----------------

    def begin_attempt(self, pod: PodInfo) -> Reject | Fault | None:
        """Start an attempt at this very pod, at preFilter.

        Called for every pod before anything else, even before the cached results of its class are used.
        """
        return None

    def next_pod(self) -> str | None:
        """Return the UID of the pod that must be scheduled next, or None to take the head of the queue.

        It needs no extension point. Only the first plugin of the process that overrides this is asked.
        """
        return None

    @property
    def is_in_round(self) -> bool:
        """Return whether a round is on whose pods `next_pod` names: no other pod is to be tried before it ends."""
        return False

    @property
    def is_uninterruptible(self) -> bool:
        """Return whether the pods that `next_pod` names are to be tried without yielding in between."""
        return False

    def before_pre_filter(self, cycle: CycleState, pod: PodInfo) -> PodInfo | Reject | Fault | None:
        """Return another pod to use in its place for all that follows, or reject it, at preFilter.

        As with `pre_filter`, the answer is cached for pods of equal shape and signature until a `prefilter_epoch`
        moves.
        """
        return None

    def after_pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Fault | None:
        """Check the pod after all plugins ran PreFilter, at preFilter. Cached like `before_pre_filter`."""
        return None

    def admit(self, cycle: CycleState, pod: PodInfo) -> Reject | Fault | None:
        """Decide whether this very pod may get a node at all, at preFilter.

        Called for every pod before nodes are evaluated, and never cached, because equal pods may get different answers.
        A rejection counts as PreFilter's.
        """
        return None

    def find_one_node(self, cycle: CycleState, pod: PodInfo) -> str | Skip | Reject | Fault:
        """Return the one node that is planned for this very pod; no other is evaluated. Called for every pod."""
        return SKIP

    def prefer_nodes(self, cycle: CycleState, pod: PodInfo) -> Sequence[str] | Skip:
        """Return nodes in order, at preFilter: the first that fits wins whatever the scores. Called for every pod."""
        return SKIP

    def before_filter(self, cycle: CycleState, pod: PodInfo) -> Fault | None:
        """Prepare for Filter, at filter. Cached like `before_pre_filter`."""
        return None

    def before_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Fault | None:
        """Prepare for PreScore, at score, with the feasible nodes."""
        return None

    def after_post_filter(self, cycle: CycleState, pod: PodInfo, context: PostFilterContext) -> None:
        """Take note of an unschedulable pod after all PostFilter plugins ran, at postFilter."""


class ScoreNormaliser:
    """Normalise raw scores to 0..100 by the largest one, optionally reversed, as Kubernetes does by default.

    `span` is all that a node's normalised score depends on besides its own raw score.
    """

    def __init__(self, *, reverse: bool = False) -> None:
        self._reverse = reverse

    def span(self, raw: Scores, mask: npt.NDArray[np.bool_]) -> Hashable:
        return int(np.max(raw, where=mask, initial=0))

    def apply(self, raw: Scores, span: Hashable) -> Scores:
        assert isinstance(span, int)
        if span == 0:
            return np.full(len(raw), MAX_SCORE, np.int64) if self._reverse else raw
        scaled = raw * MAX_SCORE // span
        return MAX_SCORE - scaled if self._reverse else scaled
