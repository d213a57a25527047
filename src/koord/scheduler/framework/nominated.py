"""Room that is promised: nodes are judged as if pods nominated there had come, for everyone who must let them go first.

The verdicts that a class of equal pods keeps know nothing of promises. They are laid over them for one pod at a time:
a node that only promises refuse is blocked, and what was found is kept while neither the node nor the promises on it
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
    """Who was promised room where."""

    @property
    def version(self) -> int:
        """Moves with every change."""

    def __len__(self) -> int: ...

    def nodes(self) -> Iterable[str]: ...

    def on(self, node: str) -> tuple[PodInfo, ...]: ...

    def ahead_of(self, pod: PodInfo, node: str) -> tuple[PodInfo, ...]:
        """Of those on a node, the ones whose room the pod must not take."""

    def node_of(self, uid: str) -> str: ...


class Nobody:
    """No promises."""

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
    """Promises over the verdicts of one class."""

    __slots__ = ("_counts_across", "_cycle", "_known", "_laid", "_profile", "_table", "_told")

    def __init__(self, profile: Profile, cycle: Cycle) -> None:
        self._profile = profile
        self._cycle = cycle
        self._table: NodeTable = cycle.state.table
        # By row, with the promises that it is of and the labels that it was said to: those who are promised room may
        # have rules about labels that nobody on a node has, so equal pods may differ in them.
        self._known: dict[int, tuple[Peers, tuple[PodInfo, ...], Said | None]] = {}
        self._laid: tuple[int, Peers, str] | None = None  # what lies there now is of these promises, for such a pod
        self._told = False  # there are words over nodes that refuse the pod anyway, too
        self._counts_across = any(
            overrides(plugin, "add_pod") and plugin.name not in cycle.skip_filter for plugin in profile.at("pre_filter")
        )

    def lay(
        self, judgement: Judgement, pod: PodInfo, nominator: Nominator, changed: Sequence[int] | None
    ) -> Iterable[int]:
        """After these rows changed (None when any may have): close the nodes that only promises keep from the pod.

        Returns the rows that may have opened or closed by this, besides those that changed.
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
        """No node takes the pod: those with promises say so as they are with them, which may be in other words."""
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
