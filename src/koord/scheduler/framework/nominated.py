"""Filter nodes as if the pods nominated to them were there, for pods that must not take their resources.

The cached verdicts of a class do not count nominated pods. They are laid over them for one pod at a time: a node that
only nominated pods keep from it is blocked, and that result is kept while neither the node nor its nominations
change; for pods whose plugins count others across nodes, while nothing changes anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.judgement import FEASIBLE, NO_NODE, Judgement
from koord.scheduler.framework.plugin import overrides
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.trial import Said, Trials
from koord.scheduler.state.peers import Peers
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable


class Nominator(Protocol):
    """Tell which pods are nominated to which nodes."""

    @property
    def version(self) -> int:
        """Return a number that changes with every change."""

    def __len__(self) -> int: ...

    def nodes(self) -> Iterable[str]: ...

    def on(self, node: str) -> tuple[PodInfo, ...]: ...

    def ahead_of(self, pod: PodInfo, node: str) -> tuple[PodInfo, ...]:
        """Return the pods nominated to a node whose resources this pod must not take."""

    def node_of(self, uid: str) -> str: ...


class Nobody:
    """Nominate nobody."""

    version = 0

    def __len__(self) -> int:
        return 0

    def nodes(self) -> Iterable[str]:
        return ()

    def on(self, node: str) -> tuple[PodInfo, ...]:
        return ()

    def ahead_of(self, pod: PodInfo, node: str) -> tuple[PodInfo, ...]:
        return ()

    def node_of(self, uid: str) -> str:
        return ""


class Overlay:
    """Lay nominated pods over the filter results of one class."""

    __slots__ = ("_counts_across", "_cycle", "_known", "_laid", "_profile", "_table", "_told")

    def __init__(self, profile: Profile, cycle: Cycle) -> None:
        self._profile = profile
        self._cycle = cycle
        self._table: NodeTable = cycle.state.table
        # By row, with the promises that it is of and the labels that it was said to: those who are promised room may
        # have rules about labels that nobody on a node has, so equal pods may differ in them.
        self._known: dict[int, tuple[Peers, tuple[PodInfo, ...], Said | None]] = {}
        self._laid: tuple[int, Peers, str] | None = None  # the nominations and the pod that the applied blocks are for
        self._told = False  # verdicts of nodes that reject the pod anyway were replaced, too
        self._counts_across = any(
            overrides(plugin, "add_pod") and plugin.name not in cycle.skip_filter for plugin in profile.at("pre_filter")
        )

    def lay(
        self, judgement: Judgement, pod: PodInfo, nominator: Nominator, changed: Sequence[int] | None
    ) -> Iterable[int]:
        """Block the nodes that only nominated pods keep from the pod, after these rows changed (None when any may have).

        Return the rows whose feasibility may have changed by this, besides those that changed.
        """
        if changed and self._counts_across:
            changed = None  # a verdict may stay as it is and still be one pod away from another
        laid = (nominator.version, pod.peers, nominator.node_of(pod.uid)) if nominator else None
        same, self._laid = laid == self._laid and changed is not None and not self._told, laid
        if same:
            if laid is not None and changed:
                self._forget(changed)
                judgement.lift(changed)
                nodes = self._table.nodes
                self._block(judgement, pod, nominator, [node.name for row in changed if (node := nodes[row])])
            return ()
        self._told = False
        self._forget(changed)
        before = judgement.lift()
        if laid is not None:
            self._block(judgement, pod, nominator, nominator.nodes())
        return before.symmetric_difference(judgement.blocked_rows())

    def tell(self, judgement: Judgement, pod: PodInfo, nominator: Nominator) -> None:
        """Replace the verdicts of nodes with nominated pods by those that count them, when no node takes the pod."""
        self._told = True
        self._block(judgement, pod, nominator, nominator.nodes(), everywhere=True)

    def _forget(self, rows: Sequence[int] | None) -> None:
        if rows is None:
            self._known.clear()
        elif self._known:
            for row in rows:
                self._known.pop(row, None)

    def _block(
        self,
        judgement: Judgement,
        pod: PodInfo,
        nominator: Nominator,
        names: Iterable[str],
        *,
        everywhere: bool = False,
    ) -> None:
        index, first = self._table.index, judgement.first
        trials: Trials | None = None
        for name in names:
            node = index.get(name)
            if node is None or node.row in judgement.promised:
                continue
            stands = first[node.row]
            if stands == NO_NODE or not (stands == FEASIBLE or (everywhere and judgement.looks_at(node.row))):
                continue
            ahead = nominator.ahead_of(pod, name)
            if ahead:
                known = self._known.get(node.row)
                if known is None or known[0] is not pod.peers or known[1] != ahead:
                    trials = trials or Trials(self._profile, self._cycle, pod)
                    known = self._known[node.row] = (pod.peers, ahead, trials.on(node).refusal(ahead))
                if known[2] is not None:
                    judgement.promise(node.row, known[2])
