"""Define a scheduler plugin: a name and some of these methods. Only those that it overrides are called.

The per-node methods (`filter`, `score`) are its definition. A plugin on the default path also has the columnar forms,
which must give the same answers for many rows at once; a property test holds them to it. A plugin that keeps no
state between pods and reads only the node at hand should declare `scope = ROW`, so that its verdicts are cached.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from koord.policy.topology.hint import Hints
from koord.scheduler.framework.event import Event, Happened
from koord.scheduler.framework.verdict import ALWAYS, SKIP, Fault, Only, Reject, Scope, Skip, Wait
from koord.scheduler.framework.work import Mark, Stand, Takeover, Work
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, RowList, Rows

if TYPE_CHECKING:
    from koord.scheduler.framework.cycle import Cycle
    from koord.scheduler.framework.decision import Futile, Preempt
    from koord.scheduler.framework.handle import Handle
    from koord.scheduler.framework.normaliser import Normaliser
    from koord.scheduler.framework.profile import Profile
    from koord.scheduler.framework.refused import Refused
    from koord.values.bitmask import BitMask

Codes = npt.NDArray[np.int32]  # per row: 0 passes, anything else is a reason that `explain_code` can put into words
Scores = npt.NDArray[np.int64]

MAX_SCORE = 100


class Plugin:
    name: ClassVar[str]
    scope: ClassVar[Scope] = ALWAYS
    # What can turn this plugin's refusals: pods refused by it are looked at again after such an event.
    wakes_on: ClassVar[tuple[Event, ...]] = ()
    normaliser: ClassVar[Normaliser | None] = None
    # A pod that PreFilter skips gets the same score everywhere, so that nobody need ask for it.
    scores_as_it_filters: ClassVar[bool] = False
    # A pod that PreFilter skips gets nothing at Reserve either, so that it need not be called.
    reserves_as_it_filters: ClassVar[bool] = False
    # What `filter` reads of the pods on a node, so that a what-if need not ask when that stays the same: `nothing`;
    # only the `sums` in the table's columns (then `filter_columns` can be asked about other sums); or them `all`.
    reads_pods: ClassVar[Literal["nothing", "sums", "all"]] = "all"

    def __init__(self, args: Any = None, handle: Handle | None = None) -> None:
        """Take the arguments as plain data (for plugins outside this repository) and the handle; both may be left out.

        """

    def signature(self, pod: PodInfo) -> Hashable:
        """Return what this plugin reads of a pod beyond its shape: pods with equal shapes and signatures share
        verdicts.
        """
        return None

    def epoch(self, cycle: Cycle) -> Hashable:
        """Return a value that changes whenever a cached verdict may have changed, for `scope = CLUSTER`."""
        return 0

    def moved_rows(self, cycle: Cycle) -> RowList | None:
        """Return the rows whose verdict may differ since this was last called, after `epoch` moved; None for any of
        them.
        """
        return None

    def score_epoch(self, cycle: Cycle) -> Hashable:
        """Return the epoch of cached scores, for a plugin whose scores change at other times than its verdicts."""
        return self.epoch(cycle)

    def ground(self, state: ClusterState) -> Hashable:
        """Return a value that changes when what PreFilter or PreScore wrote, or their decision to skip, no longer
        holds.
        """
        return 0

    def catch_up(self) -> None:
        """Mark the rows that time alone has changed (`table.mark_changed`); called before a pod is evaluated."""

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        """Return whether an event of `wakes_on` may make the pod fit; False keeps it unschedulable.

        The answer may depend on the pod's shape and `signature` only, as verdicts do: queued pods that are equal in both are
        represented by one of them. A plugin with `scope = ALWAYS` is asked about each. Besides cluster events, a pod's own
        updates are passed: then `object_event.new.uid == pod.uid`.
        """
        return True

    # Queue -------------------------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        return None

    def sort_key(self, pod: PodInfo, queued_at: float) -> Any:
        """Return the key that orders the queue: smaller is scheduled sooner."""
        raise NotImplementedError

    # Choosing a node ---------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        return None

    def add_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        """Update this plugin's part of a forked cycle state for a dry run in which `other` is on `node`."""

    def remove_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        """Update this plugin's part of a forked cycle state for a dry run in which `other` has left `node`."""

    def resettle(self, other: PodInfo, node: NodeInfo) -> None:
        """Correct what other pods hold on this copy of a node after `other` was added to it or removed from it in a dry run.

        It needs no extension point, and is called for every pod.
        """

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return None

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        """Run `filter` for many rows; return a code per entry of `rows`."""
        raise NotImplementedError

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        """Return the verdict that a code of `filter_columns` stands for."""
        raise NotImplementedError

    def near_miss(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> tuple[float, str] | None:
        """Return which share of the pod's request is missing on a node that this plugin rejects (0 to 1), and what in words.

        Only for explanations: it is called for a few nodes.
        """
        return None

    def relent(self, cycle: Cycle, pod: PodInfo, rows: RowList) -> tuple[int, str] | None:
        """Return the row that takes the pod after all, and why, when no node fits and only this plugin rejects these
        rows.
        """
        return None

    def post_filter(self, cycle: Cycle, pod: PodInfo, refused: Refused) -> Preempt | Futile | Fault | None:
        """Find a way to make an unschedulable pod fit, or say why there is none; None has nothing to add."""
        return None

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        return 0

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        raise NotImplementedError

    def normalise(self, cycle: Cycle, pod: PodInfo, scores: Scores) -> Scores:
        """Normalise the scores of all feasible nodes to 0..100; `normaliser` does the same more cheaply where it can.

        """
        return scores

    # After the choice --------------------------------------------------------------------------------------------

    def nominate(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        """Choose the reservation that the pod takes on its chosen node (`cycle.nominated_reservations`).

        Called before the pod is assumed and before Reserve, with the node as the pod sees it. It needs no extension point,
        and is not called for a pod that sees what everyone sees.
        """
        return None

    def reserve(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        return None

    def unreserve(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        """Undo `reserve`; must work whatever has vanished meanwhile, and more than once."""

    def permit(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Wait | Fault | None:
        return None

    def pre_bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> Work | Reject | Fault | None:
        """Return what must be done before the pod can be bound; the binder carries it out."""
        return None

    def apply_patch(self, cycle: Cycle, pod: PodInfo, node_name: str, mark: Mark) -> Mark | Skip | Fault:
        """Change the combined patch of all PreBind plugins before it is written. Enabled at preBind.

        The first plugin that does not skip decides: what it returns is written.
        """
        return SKIP

    def bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> Work | Stand | Skip | Reject | Fault | None:
        """Return None for the usual binding, an effect to carry out in its place, or Skip to leave it to the next
        plugin.
        """
        return SKIP

    def post_bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        """Take note that the pod is bound."""

    def failed(self, pod: PodInfo, message: str, rejectors: frozenset[str]) -> Takeover | None:
        """Take note of a failed attempt, and override what becomes of it; the first plugin that answers decides.

        It needs no extension point.
        """
        return None

    # Around the points: called where the plugin is enabled at the point that is named, in its order ----------------

    def begin(self, pod: PodInfo) -> Reject | Fault | None:
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
    def in_one_go(self) -> bool:
        """Return whether the pods that `next_pod` names are to be tried without yielding in between."""
        return False

    def before_pre_filter(self, cycle: Cycle, pod: PodInfo) -> PodInfo | Reject | Fault | None:
        """Return another pod to use in its place for all that follows, or reject it, at preFilter.

        As with `pre_filter`, the answer is cached for pods of equal shape and signature until a `prefilter_epoch` moves.
        """
        return None

    def after_pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Fault | None:
        """Check the pod after all plugins ran PreFilter, at preFilter. Cached like `before_pre_filter`."""
        return None

    def admit(self, cycle: Cycle, pod: PodInfo) -> Reject | Fault | None:
        """Decide whether this very pod may get a node at all, at preFilter.

        Called for every pod before nodes are evaluated, and never cached, because equal pods may get different answers. A
        rejection counts as PreFilter's.
        """
        return None

    def find_one_node(self, cycle: Cycle, pod: PodInfo) -> str | Skip | Reject | Fault:
        """Return the one node that is planned for this very pod, at preFilter; no other is evaluated. Called for every
        pod.
        """
        return SKIP

    def prefer_nodes(self, cycle: Cycle, pod: PodInfo) -> Sequence[str] | Skip:
        """Return nodes in order, at preFilter: the first that fits is taken whatever the scores. Called for every pod.

        """
        return SKIP

    def before_filter(self, cycle: Cycle, pod: PodInfo) -> Fault | None:
        """Prepare for Filter, at filter. Cached like `before_pre_filter`."""
        return None

    def before_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Fault | None:
        """Prepare for PreScore, at score, with the feasible nodes."""
        return None

    def after_post_filter(self, cycle: Cycle, pod: PodInfo, refused: Refused) -> None:
        """Take note of an unschedulable pod after all PostFilter plugins ran, at postFilter."""

    # Among plugins: who knows which NUMA nodes could take its part of a pod ----------------------------------------

    def meet(self, plugins: Sequence[Plugin]) -> None:
        """Receive all plugins of the profile in the order of its configuration. Called once."""

    def enlist(self, profile: Profile) -> None:
        """Receive the finished profile. Called once, for a plugin that runs the others in dry runs."""

    def numa_hints(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Hints | Reject | None:
        """Return, by resource, the sets of NUMA nodes that could provide what this plugin allocates; None for no
        opinion.
        """
        return None

    def numa_fits(self, cycle: Cycle, pod: PodInfo, node: NodeInfo, zones: BitMask | None) -> Reject | None:
        """Return a rejection if this plugin cannot allocate within these NUMA nodes; nothing is allocated yet."""
        return None


def overrides(plugin: Plugin, method: str) -> bool:
    """Return whether a plugin overrides a method, which is how it takes part in an extension point."""
    return getattr(type(plugin), method) is not getattr(Plugin, method)
