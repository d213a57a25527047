"""GroupTrial tries several, possibly different pods together on a copy of one node with the profile's filters."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.trial import Said, Trial, Trials
from koord.scheduler.framework.verdict import Fault, Only, Reject, Skip, unresolvable
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo

_LEFT_OUT = unresolvable("node is filtered out by the prefilter result")


def kind_of(profile: Profile, pod: PodInfo) -> Hashable:
    """Return a key that is equal for pods that plugins need not tell apart.

    Where plugins cannot say, it is equal for pods with equal templates.
    """
    return profile.class_of(pod) or pod.shape.number


def prepared(profile: Profile, state: ClusterState, pods: Iterable[PodInfo]) -> dict[Hashable, Trials] | Reject | Fault:
    """Run PreFilter once per class of the pods; return the dry runs by class, or the first rejection."""
    found: dict[Hashable, Trials] = {}
    for pod in pods:
        kind = kind_of(profile, pod)
        if kind in found:
            continue
        cycle, skipped = Cycle(state), set()
        for plugin in profile.at("pre_filter"):
            answer = plugin.pre_filter(cycle, pod)
            if isinstance(answer, Reject | Fault):
                return answer
            if isinstance(answer, Skip):
                skipped.add(plugin.name)
            elif isinstance(answer, Only):
                cycle.narrow(answer.node_names, plugin.name)
        cycle.skip_filter = frozenset(skipped)
        found[kind] = Trials(profile, cycle, pod)
    return found


class Crew:
    def __init__(self, profile: Profile, node: NodeInfo, trials: Mapping[Hashable, Trials]) -> None:
        self.node = node.copy()
        self._profile = profile
        self._trials = trials
        self._each = {kind: Trial(held, held.cycle.fork(), self.node) for kind, held in trials.items()}

    def refusal(self, pod: PodInfo, *, again: bool = False) -> Said | None:
        """Return which plugin rejects the pod on the node, and why; None when it fits.

        `again`: such a pod fitted before, so only the filters that read pods run.
        """
        kind = kind_of(self._profile, pod)
        cycle = self._trials[kind].cycle
        if cycle.only is not None and self.node.name not in cycle.only:
            return cycle.narrowed_by[0], _LEFT_OUT
        return self._each[kind].refusal(again=again)

    def add(self, pod: PodInfo) -> None:
        self.node.add(pod)
        for kind, trial in self._each.items():
            for plugin in self._trials[kind].adding:
                plugin.add_pod(trial.cycle, self._trials[kind].pod, pod, self.node)
        self._settle(pod)

    def remove(self, pod: PodInfo) -> None:
        self.node.remove(pod.uid)
        for kind, trial in self._each.items():
            for plugin in self._trials[kind].removing:
                plugin.remove_pod(trial.cycle, self._trials[kind].pod, pod, self.node)
        self._settle(pod)

    def _settle(self, pod: PodInfo) -> None:
        for held in self._trials.values():
            for plugin in held.settling:
                plugin.resettle(pod, self.node)
            return  # they are the same for every shape
