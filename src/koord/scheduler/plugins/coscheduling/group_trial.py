"""GroupTrial tries several, possibly different pods together on a copy of one node with the profile's filters."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.dry_run import DryRuns, NodeDryRun, RejectedBy
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.verdict import Fault, PreFilterResult, Reject, Skip, unresolvable

_OUTSIDE_PRE_FILTER_RESULT = unresolvable("node is filtered out by the prefilter result")


def pod_class_of(profile: SchedulerProfile, pod: PodInfo) -> Hashable:
    """Return a key that is equal for pods that plugins need not tell apart.

    Where plugins cannot say, it is equal for pods with equal templates.
    """
    return profile.equivalence_key(pod) or pod.shape.number


def run_pre_filters(
    profile: SchedulerProfile, state: ClusterState, pods: Iterable[PodInfo]
) -> dict[Hashable, DryRuns] | Reject | Fault:
    """Run PreFilter once per class of the pods; return the dry runs by class, or the first rejection."""
    found: dict[Hashable, DryRuns] = {}
    for pod in pods:
        kind = pod_class_of(profile, pod)
        if kind in found:
            continue
        cycle, skipped = CycleState(state), set()
        for plugin in profile.plugins_at(Plugin.pre_filter):
            answer = plugin.pre_filter(cycle, pod)
            if isinstance(answer, Reject | Fault):
                return answer
            if isinstance(answer, Skip):
                skipped.add(plugin.name)
            elif isinstance(answer, PreFilterResult):
                cycle.restrict_nodes(answer.node_names, plugin.name)
        cycle.skip_filter = frozenset(skipped)
        found[kind] = DryRuns(profile, cycle, pod)
    return found


class GroupTrial:
    def __init__(self, profile: SchedulerProfile, node: NodeInfo, trials: Mapping[Hashable, DryRuns]) -> None:
        self.node = node.copy()
        self._profile = profile
        self._trials = trials
        self._trial_by_class = {kind: NodeDryRun(held, held.cycle.fork(), self.node) for kind, held in trials.items()}

    def run_filters(self, pod: PodInfo, *, again: bool = False) -> RejectedBy | None:
        """Return which plugin rejects the pod on the node, and why; None when it fits.

        `again`: such a pod fitted before, so only the filters that read pods run.
        """
        kind = pod_class_of(self._profile, pod)
        cycle = self._trials[kind].cycle
        if cycle.allowed_nodes is not None and self.node.name not in cycle.allowed_nodes:
            return cycle.restricted_by[0], _OUTSIDE_PRE_FILTER_RESULT
        return self._trial_by_class[kind].run_filters(again=again)

    def add(self, pod: PodInfo) -> None:
        self.node.add(pod)
        for kind, trial in self._trial_by_class.items():
            for plugin in self._trials[kind].add_pod_plugins:
                plugin.add_pod(trial.cycle, self._trials[kind].pod, pod, self.node)
        self._resettle_holders(pod)

    def remove(self, pod: PodInfo) -> None:
        self.node.remove(pod.uid)
        for kind, trial in self._trial_by_class.items():
            for plugin in self._trials[kind].remove_pod_plugins:
                plugin.remove_pod(trial.cycle, self._trials[kind].pod, pod, self.node)
        self._resettle_holders(pod)

    def _resettle_holders(self, pod: PodInfo) -> None:
        for held in self._trials.values():
            for plugin in held.node_copy_syncers:
                plugin.sync_node_copy(pod, self.node)
            return  # they are the same for every shape
