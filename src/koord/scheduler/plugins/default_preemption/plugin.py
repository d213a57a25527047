"""DefaultPreemption makes room for a pod by evicting pods of lower priority.

The search is in `koord.scheduler.preemption`; the scheduler carries the result out.
"""

from __future__ import annotations

from collections.abc import Callable

from koord.api.builtin import POD_DISRUPTION_BUDGETS
from koord.api.config.scheduler.in_tree import DefaultPreemptionArgs
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.decision import Futile, Preempt
from koord.scheduler.framework.event import DELETE, Event, Happened
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.refused import Refused
from koord.scheduler.framework.verdict import Fault, Reject, unresolvable
from koord.scheduler.preemption.budget import ListedBudgets
from koord.scheduler.preemption.finder import Enough, Found, find
from koord.scheduler.preemption.plan import NOT_HELPFUL, barred, concluded
from koord.scheduler.preemption.rules import Rules
from koord.scheduler.preemption.under_way import UnderWay
from koord.scheduler.state.pod import PodInfo

_WAITS = unresolvable("waiting for the preemption for this pod to be finished")


class DefaultPreemption(Plugin):
    name = "DefaultPreemption"
    # A pod that is held back while its victims go wakes by the plugins that refused it: see `might_help`.
    wakes_on = (Event("Pod", DELETE),)

    def __init__(
        self, args: DefaultPreemptionArgs, handle: Handle, may_evict: Callable[[PodInfo], bool] | None = None
    ) -> None:
        """Take defaulted arguments. `may_evict` protects pods that priority alone does not."""
        percent, at_least = args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute
        if percent is None or at_least is None:
            raise ValueError("how many candidate nodes to look for is not specified")
        self._enough = Enough(percent, at_least)
        self._budgets = ListedBudgets(handle.lister(POD_DISRUPTION_BUDGETS))
        self._rules = Rules(may_evict)
        self._under_way = handle.state.derived(UnderWay)

    # Queue -------------------------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        return _WAITS if self._under_way.holds(pod.uid) else None

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        """Return False: the pod was rejected by other plugins too, and they know whether a deletion makes room."""
        return False

    # Making room -------------------------------------------------------------------------------------------------

    def post_filter(self, cycle: Cycle, pod: PodInfo, refused: Refused) -> Preempt | Futile | Fault | None:
        against = barred(refused, lambda other: other.preempted and self._rules.may_take(pod, other))
        if against:
            return Futile((f"preemption: {against}",))
        found = find(refused, self._rules, self._budgets.current(), self._enough)
        return concluded(refused, self.name, found, lambda: _message(refused, found))


def _message(refused: Refused, found: Found) -> str:
    """Return Kubernetes' message, which accounts for every node of the cluster."""
    total = refused.decision.node_count
    counts = dict(found.without)
    if total > found.nodes:
        counts[NOT_HELPFUL] = total - found.nodes
    listed = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{total} nodes are available: {', '.join(listed)}."
