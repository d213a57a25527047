"""Dry-run the filters on a copy of a node to which pods are added or from which they are removed.

The live state is never touched. Also gives the view of a node without the reserve pods that hold resources for a
class of pods (restored nodes).
"""

from __future__ import annotations

from collections.abc import Sequence

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.plugin import Plugin, overrides
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo

Said = tuple[str, Reject]  # who refused, and its words


class Trials:
    """Make the dry runs of one pod, or of one class of equal pods, from a cycle state whose PreFilter has run."""

    __slots__ = ("adding", "cycle", "filters", "judging", "pod", "removing", "settling")

    def __init__(self, profile: Profile, cycle: Cycle, pod: PodInfo) -> None:
        self.cycle = cycle
        self.pod = pod
        skipped = cycle.skip_filter
        prepared = tuple(p for p in profile.at("pre_filter") if p.name not in skipped)
        self.adding = tuple(p for p in prepared if overrides(p, "add_pod"))
        self.removing = tuple(p for p in prepared if overrides(p, "remove_pod"))
        self.filters: tuple[Plugin, ...] = tuple(f.plugin for f in profile.filters if f.plugin.name not in skipped)
        # Those whose verdict can change when pods come or go.
        self.judging = tuple(plugin for plugin in self.filters if plugin.reads_pods != "nothing")

        self.settling = tuple(p for p in profile.plugins() if overrides(p, "resettle"))

    def on(self, node: NodeInfo) -> Trial:
        """Start a dry run on a copy of the node as such a pod sees it."""
        trial = Trial(self, self.cycle.fork(), node.copy())
        if self.cycle.restored is not None:
            for holder in self.cycle.restored.holders(node):
                trial.remove(holder)
        return trial

    def seen(self, node: NodeInfo) -> tuple[Cycle, NodeInfo]:
        """Return the node as such a pod sees it, to read only: the cycle state is copied only where a plugin counts
        pods in it.
        """
        if self.removing:
            trial = self.on(node)
            return trial.cycle, trial.node
        copy = node.copy()
        for holder in self.cycle.restored.holders(node) if self.cycle.restored is not None else ():
            copy.remove(holder.uid)
        return self.cycle, copy


class Trial:
    """Change one copied node; `add` and `remove` tell the plugins that count pods across nodes."""

    __slots__ = ("_trials", "cycle", "node")

    def __init__(self, trials: Trials, cycle: Cycle, node: NodeInfo) -> None:
        """Take a forked cycle state and a copied node: both are changed."""
        self._trials = trials
        self.cycle = cycle
        self.node = node

    def add(self, other: PodInfo) -> None:
        self.node.add(other)
        for plugin in self._trials.adding:
            plugin.add_pod(self.cycle, self._trials.pod, other, self.node)
        for plugin in self._trials.settling:
            plugin.resettle(other, self.node)

    def remove(self, other: PodInfo) -> None:
        self.node.remove(other.uid)
        for plugin in self._trials.removing:
            plugin.remove_pod(self.cycle, self._trials.pod, other, self.node)
        for plugin in self._trials.settling:
            plugin.resettle(other, self.node)

    def refusal(self, ahead: Sequence[PodInfo] = (), *, again: bool = False) -> Said | None:
        """Return the first plugin that rejects the node now, and its verdict; None when the pod fits.

        The pod must fit with the pods that are nominated ahead of it (they may come), and without them (they may not).
        `again` leaves out filters that do not read pods: they passed before, and pass now.
        """
        if ahead:
            crowded = Trial(self._trials, self.cycle.fork(), self.node.copy())
            for other in ahead:
                if other.uid not in crowded.node.pods:
                    crowded.add(other)
            said = crowded.refusal(again=again)
            if said is not None:
                return said
        trials, cycle, node = self._trials, self.cycle, self.node
        pod = trials.pod
        for plugin in trials.judging if again else trials.filters:
            verdict = plugin.filter(cycle, pod, node)
            if verdict is not None:
                return plugin.name, verdict
        return None
