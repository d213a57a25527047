"""Make the preemption plan from a search, and word its failures as Kubernetes does."""

from __future__ import annotations

from collections.abc import Callable

from koord.scheduler.framework.decision import Futile, Preempt, Search
from koord.scheduler.framework.refused import Refused
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.preemption.candidate import Candidate, pick
from koord.scheduler.preemption.finder import Found
from koord.scheduler.state.pod import PodInfo

NEVER = "not eligible due to preemptionPolicy=Never."
TERMINATING = "not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL = "Preemption is not helpful for scheduling"


def barred(refused: Refused, makes_way: Callable[[PodInfo], bool]) -> str:
    """Return why the pod may not preempt at all, or not now; "" when it may.

    `makes_way` tells whether a pod is leaving for its sake.
    """
    if refused.pod.shape.spec.preemption_policy == "Never":
        return NEVER
    node = refused.cycle.state.node(refused.nominated_node())
    if node is None:
        return ""
    said = refused.said_of(node)
    if said is not None and not said[1].resolvable:
        return ""  # what was made there is of no use any more
    return TERMINATING if any(makes_way(other) for other in node.pods.values()) else ""


def concluded(refused: Refused, plugin: str, found: Found, futile: Callable[[], str]) -> Preempt | Futile | Fault:
    """Return the plan that a search leads to; `futile` words the rejection of one that found nothing."""
    search = Search(plugin, found.nodes, len(found.candidates), found.without, found.nearest)
    if found.candidates:
        return plan(refused, plugin, pick(found.candidates), search)
    if found.broken:
        return Fault(f"preemption: {told_together(found.broken)}")
    return Futile((f"preemption: {futile()}",), nominate="", search=search)


def plan(refused: Refused, plugin: str, best: Candidate, search: Search) -> Preempt:
    pod = refused.pod
    nominated = refused.nominator.on(best.node)
    going = any(not victim.deleting for victim in best.victims)
    return Preempt(
        plugin=plugin,
        node=best.node,
        victims=best.victims,
        # They may no longer fit beside this pod; if all victims are on their way out, that was settled before.
        clear_nominations=tuple(other.uid for other in nominated if other.priority < pod.priority) if going else (),
        violations=best.violations,
        why=_why(pod, best, search),
        search=search,
    )


def told_together(errors: tuple[str, ...]) -> str:
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"


def _why(pod: PodInfo, best: Candidate, search: Search) -> str:
    victims = best.victims
    broken = f", {best.violations} against their disruption budgets" if best.violations else ""
    return (
        f"{pod.key} has priority {pod.priority}; {best.node} has room for it without {len(victims)} pod(s) of priority "
        f"at most {victims[0].priority}{broken}; best of {search.candidates} node(s) where that helps"
    )
