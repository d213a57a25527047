"""DefaultPreemption makes room for a pod by evicting pods of lower priority.

The search is in `koord.scheduler.preemption`; the scheduler carries the result out.
"""

from __future__ import annotations

from collections.abc import Callable

from koord.api.config.scheduler.in_tree_args import DefaultPreemptionArgs
from koord.api.kubernetes.builtin_kinds import POD_DISRUPTION_BUDGETS
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import DELETE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import PostFilterRejection, PreemptionPlan
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.verdict import Fault, Reject, unresolvable
from koord.scheduler.preemption import evaluator
from koord.scheduler.preemption.victims import DisruptionBudgetLister, VictimRules

_WAITING_FOR_PREEMPTION = unresolvable("waiting for the preemption for this pod to be finished")


class DefaultPreemption(Plugin):
    name = "DefaultPreemption"
    # A pod that is held back while its victims go wakes by the plugins that refused it: see `might_help`.
    wakes_on = (ClusterEvent("Pod", DELETE),)

    def __init__(
        self, args: DefaultPreemptionArgs, handle: Handle, may_evict: Callable[[PodInfo], bool] | None = None
    ) -> None:
        """Take defaulted arguments. `may_evict` protects pods that priority alone does not."""
        percent, at_least = args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
        if percent is None or at_least is None:
            raise ValueError("how many candidate nodes to look for is not specified")
        self._enough = evaluator.CandidateLimit(percent, at_least)
        self._budgets = DisruptionBudgetLister(handle.lister(POD_DISRUPTION_BUDGETS))
        self._rules = VictimRules(may_evict)
        self._under_way = handle.state.derived(evaluator.PreemptionsInProgress)

    # Queue -------------------------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        return _WAITING_FOR_PREEMPTION if self._under_way.is_waiting(pod.uid) else None

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        """Return False: the pod was rejected by other plugins too, and they know whether a deletion makes room."""
        return False

    # Making room -------------------------------------------------------------------------------------------------

    def post_filter(
        self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext
    ) -> PreemptionPlan | PostFilterRejection | Fault | None:
        against = evaluator.not_eligible_reason(
            refused, lambda other: other.preempted and self._rules.may_preempt(pod, other)
        )
        if against:
            return PostFilterRejection((f"preemption: {against}",))
        found = evaluator.find_candidates(refused, self._rules, self._budgets.current(), self._enough)
        return evaluator.conclude_search(refused, self.name, found, lambda: _failure_message(refused, found))


def _failure_message(refused: PostFilterContext, found: evaluator.CandidateSearchResult) -> str:
    """Return Kubernetes' message, which accounts for every node of the cluster."""
    total = refused.decision.node_count
    counts = dict(found.without)
    if total > found.nodes:
        counts[evaluator.NOT_HELPFUL] = total - found.nodes
    listed = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{total} nodes are available: {', '.join(listed)}."
