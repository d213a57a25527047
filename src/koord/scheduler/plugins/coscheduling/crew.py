"""Pods that need not be alike, tried out together on a copy of one node with the filters of the profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.trial import Said, Trial, Trials
from koord.scheduler.framework.verdict import Fault, Only, Reject, Skip, unresolvable
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo

_LEFT_OUT = unresolvable("node is filtered out by the prefilter result")


def prepared(profile: Profile, state: ClusterState, pods: Iterable[PodInfo]) -> dict[int, Trials] | Reject | Fault:
    """PreFilter for each shape of the pods; or the first refusal."""
    found: dict[int, Trials] = {}
    for pod in pods:
        if pod.shape.number in found:
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
        found[pod.shape.number] = Trials(profile, cycle, pod)
    return found


class Crew:
    def __init__(self, node: NodeInfo, trials: Mapping[int, Trials]) -> None:
        self.node = node.copy()
        self._trials = trials
        self._each = {number: Trial(held, held.cycle.fork(), self.node) for number, held in trials.items()}

    def refusal(self, pod: PodInfo) -> Said | None:
        number = pod.shape.number
        cycle = self._trials[number].cycle
        if cycle.only is not None and self.node.name not in cycle.only:
            return cycle.narrowed_by[0], _LEFT_OUT
        return self._each[number].refusal()

    def add(self, pod: PodInfo) -> None:
        self.node.add(pod)
        for number, trial in self._each.items():
            for plugin in self._trials[number].adding:
                plugin.add_pod(trial.cycle, self._trials[number].pod, pod, self.node)
        self._settle(pod)

    def remove(self, pod: PodInfo) -> None:
        self.node.remove(pod.uid)
        for number, trial in self._each.items():
            for plugin in self._trials[number].removing:
                plugin.remove_pod(trial.cycle, self._trials[number].pod, pod, self.node)
        self._settle(pod)

    def _settle(self, pod: PodInfo) -> None:
        for held in self._trials.values():
            for plugin in held.settling:
                plugin.resettle(pod, self.node)
            return  # they are the same for every shape
