"""What kinds of preemption have in common around their search: the plan that follows from it, and their words."""

from __future__ import annotations

from koord.scheduler.framework.decision import Preempt, Search
from koord.scheduler.framework.refused import Refused
from koord.scheduler.preemption.candidate import Candidate
from koord.scheduler.state.pod import PodInfo

NEVER = "not eligible due to preemptionPolicy=Never."
TERMINATING = "not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL = "Preemption is not helpful for scheduling"


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
