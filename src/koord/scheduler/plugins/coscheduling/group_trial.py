"""GroupTrial tries several, possibly different pods together on one node with the profile's filters."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.dry_run import DryRuns, RejectedBy
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.runtime import PluginRejection, run_pre_filter
from koord.scheduler.framework.verdict import Fault, Reject, unresolvable

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
        cycle = CycleState(state)
        seen = run_pre_filter(profile, cycle, pod)
        if isinstance(seen, PluginRejection):
            return seen.answer
        found[kind] = DryRuns(profile, cycle, seen)
    return found


class GroupTrial:
    """Try pods together on copies of one node, one for each class of them: what is reserved for one class is not seen
    by another.
    """

    def __init__(self, profile: SchedulerProfile, node: NodeInfo, trials: Mapping[Hashable, DryRuns]) -> None:
        self._node_name = node.name
        self._profile = profile
        self._dry_runs = {kind: held.dry_run_on(node) for kind, held in trials.items()}

    def run_filters(self, pod: PodInfo, *, again: bool = False) -> RejectedBy | None:
        """Return which plugin rejects the pod on the node, and why; None when it fits.

        `again`: such a pod fitted before, so only the filters that read pods run.
        """
        dry_run = self._dry_runs[pod_class_of(self._profile, pod)]
        cycle = dry_run.cycle
        if cycle.allowed_nodes is not None and self._node_name not in cycle.allowed_nodes:
            return cycle.restricted_by[0], _OUTSIDE_PRE_FILTER_RESULT
        return dry_run.run_filters(again=again)

    def add(self, pod: PodInfo) -> None:
        for dry_run in self._dry_runs.values():
            dry_run.add(pod)

    def remove(self, pod: PodInfo) -> None:
        for dry_run in self._dry_runs.values():
            if pod.uid in dry_run.node.pods:  # a class may not see it
                dry_run.remove(pod)
