"""What a plugin is: a name and some of these methods. Only those that it overrides are called.

The per-node methods (`filter`, `score`) are its definition. A plugin on the default path also has the columnar forms,
which must give the same answers for many rows at once; a property test holds them to it. A plugin that keeps no
state between pods and looks only at the node in hand should say `scope = ROW`, so that its verdicts are kept.
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
        """A plugin of others is made with its arguments as plain data; one that needs neither has no `__init__`."""

    def signature(self, pod: PodInfo) -> Hashable:
        """What this plugin reads of a pod beyond its shape: pods with equal shapes and signatures share verdicts."""
        return None

    def epoch(self, cycle: Cycle) -> Hashable:
        """For `scope = CLUSTER`: moves whenever a kept verdict of this plugin may have changed."""
        return 0

    def moved_rows(self, cycle: Cycle) -> RowList | None:
        """After `epoch` moved: the rows whose verdict may differ since this was last asked; None for any of them."""
        return None

    def score_epoch(self, cycle: Cycle) -> Hashable:
        """The same for kept scores, for a plugin whose scores move at other times than its verdicts."""
        return self.epoch(cycle)

    def ground(self, state: ClusterState) -> Hashable:
        """Moves whenever what PreFilter and PreScore kept (or their decision to skip) no longer holds."""
        return 0

    def catch_up(self) -> None:
        """Called before a pod is judged: tell the table of rows that time alone has changed (`table.note`)."""

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        """A closer look at an event of `wakes_on`: False keeps the pod asleep.

        The answer may depend on the pod's shape and `signature` only, as verdicts do: waiting pods that are equal in
        both are asked about through one of them. A plugin with `scope = ALWAYS` is asked about each. Besides
        what happens around it, a pod is told of its own updates: there `happened.new.uid == pod.uid`.
        """
        return True

    # Queue -------------------------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        return None

    def sort_key(self, pod: PodInfo, queued_at: float) -> Any:
        """Smaller is scheduled sooner."""
        raise NotImplementedError

    # Choosing a node ---------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        return None

    def add_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        """A what-if: `other` is now on `node`; bring this plugin's part of the (copied) cycle in line."""

    def remove_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        """A what-if: `other` is gone from `node`."""

    def resettle(self, other: PodInfo, node: NodeInfo) -> None:
        """A what-if: `other` came to or left this copy of a node; bring what others hold there in line. Needs no point,
        and is called for every pod."""

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return None

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        """`filter` for many rows. Returns a code per entry of `rows`."""
        raise NotImplementedError

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        """The verdict that a code of `filter_columns` stands for."""
        raise NotImplementedError

    def near_miss(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> tuple[float, str] | None:
        """Of a node that this plugin refuses: how much of what the pod asks for is missing, from 0 to 1, and in words
        what is. For explanations: a few nodes are asked about."""
        return None

    def relent(self, cycle: Cycle, pod: PodInfo, rows: RowList) -> tuple[int, str] | None:
        """No node takes the pod, and on these rows nobody but this plugin objects: the row that takes it after all,
        and why in words."""
        return None

    def post_filter(self, cycle: Cycle, pod: PodInfo, refused: Refused) -> Preempt | Futile | Fault | None:
        """No node takes the pod: find a way, or say why there is none. None has nothing to add."""
        return None

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        return 0

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        raise NotImplementedError

    def normalise(self, cycle: Cycle, pod: PodInfo, scores: Scores) -> Scores:
        """All feasible nodes' scores at once, into 0..100. `normaliser` says the same where it can, and cheaper."""
        return scores

    # After the choice --------------------------------------------------------------------------------------------

    def nominate(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        """Before the pod is counted on the node that was chosen, and before Reserve: what it is to take there
        (`cycle.nominated`). The node comes as the pod sees it. Needs no point; not called for a pod that sees what
        everyone sees."""
        return None

    def reserve(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        return None

    def unreserve(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        """Undo `reserve`; must work whatever has vanished meanwhile, and more than once."""

    def permit(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Wait | Fault | None:
        return None

    def pre_bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> Work | Reject | Fault | None:
        """What must be done before the pod can be bound; the program does it."""
        return None

    def apply_patch(self, cycle: Cycle, pod: PodInfo, node_name: str, mark: Mark) -> Mark | Skip | Fault:
        """Has a say in the one write that carries what all PreBind plugins marked. Enabled at preBind.

        The first plugin that does not skip decides: what it returns is what the program writes.
        """
        return SKIP

    def bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> Work | Stand | Skip | Reject | Fault | None:
        """None: the program writes the usual binding. Work is done in its place. Skip leaves it to the next plugin."""
        return SKIP

    def post_bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        """The pod is bound."""

    def failed(self, pod: PodInfo, message: str, rejectors: frozenset[str]) -> Takeover | None:
        """An attempt at the pod failed. Needs no point; the first plugin that answers decides what becomes of it."""
        return None

    # Around the points: called where the plugin is enabled at the point that is named, in its order ----------------

    def begin(self, pod: PodInfo) -> Reject | Fault | None:
        """preFilter: an attempt at this very pod begins. Asked of every pod before anything else, even before what is
        kept for its like is used."""
        return None

    def next_pod(self) -> str | None:
        """Asked before every pod is taken from the queue: the uid of one that must come first. Needs no point.

        Only the first plugin of the program that has this is asked.
        """
        return None

    @property
    def in_one_go(self) -> bool:
        """Whether those that `next_pod` names are to be tried without a look at anything else between them."""
        return False

    def before_pre_filter(self, cycle: Cycle, pod: PodInfo) -> PodInfo | Reject | Fault | None:
        """preFilter: another pod in its place for all that follows, or a refusal. As with `pre_filter`, the answer is
        kept for pods of equal shape and signature until a `ground` moves."""
        return None

    def after_pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Fault | None:
        """preFilter: after all plugins have prepared themselves. Kept like `before_pre_filter`."""
        return None

    def admit(self, cycle: Cycle, pod: PodInfo) -> Reject | Fault | None:
        """preFilter: whether this very pod may have a node at all, which no equal pod's answer tells. Asked of every
        pod, before nodes are looked at; nothing is kept of it. A refusal counts as PreFilter's."""
        return None

    def find_one_node(self, cycle: Cycle, pod: PodInfo) -> str | Skip | Reject | Fault:
        """preFilter: the one node that is planned for this very pod; no other is looked at. Asked of every pod."""
        return SKIP

    def prefer_nodes(self, cycle: Cycle, pod: PodInfo) -> Sequence[str] | Skip:
        """preFilter: nodes in order; the first on which the pod fits is taken, scores or not. Asked of every pod."""
        return SKIP

    def before_filter(self, cycle: Cycle, pod: PodInfo) -> Fault | None:
        """filter: the last word before nodes are looked at. Kept like `before_pre_filter`."""
        return None

    def before_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Fault | None:
        """score: before PreScore, with the nodes that fit."""
        return None

    def after_post_filter(self, cycle: Cycle, pod: PodInfo, refused: Refused) -> None:
        """postFilter: after all of them have been asked what can be done for a pod that fits nowhere."""

    # Among plugins: who knows which NUMA nodes could take its part of a pod ----------------------------------------

    def meet(self, plugins: Sequence[Plugin]) -> None:
        """Called once, with all plugins of the profile in the order of its configuration."""

    def enlist(self, profile: Profile) -> None:
        """Called once, with the finished profile: for a plugin that tries out what all of them say."""

    def numa_hints(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Hints | Reject | None:
        """By resource, the sets of NUMA nodes that could take what this plugin gives. None: nothing to say."""
        return None

    def numa_fits(self, cycle: Cycle, pod: PodInfo, node: NodeInfo, zones: BitMask | None) -> Reject | None:
        """Whether this plugin's part can be given within these NUMA nodes; nothing is taken yet."""
        return None


def overrides(plugin: Plugin, method: str) -> bool:
    """Whether a plugin has its own version of a method: that is how it takes part in a point."""
    return getattr(type(plugin), method) is not getattr(Plugin, method)
