"""The fewest and least important pods that must leave one node for a pod to fit there, found on a copy of the node.

All that may go are taken away. If the pod fits then, they are put back one by one, those first whose going would
break a disruption budget, the more important before the less: each that the pod still fits beside is spared.
"""

from __future__ import annotations

from collections.abc import Sequence

from koord.scheduler.framework.trial import Said, Trials
from koord.scheduler.preemption.budget import Budgets
from koord.scheduler.preemption.candidate import Candidate
from koord.scheduler.preemption.rules import Rules
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


def eligible(pod: PodInfo, node: NodeInfo, rules: Rules) -> list[PodInfo]:
    return [victim for victim in node.pods.values() if rules.may_take(pod, victim)]


def without_all(trials: Trials, node: NodeInfo, ahead: Sequence[PodInfo], rules: Rules) -> Said | None:
    """Who refuses the node even if everybody goes who may; None when the pod would fit."""
    trial = trials.on(node)
    for victim in eligible(trials.pod, node, rules):
        trial.remove(victim)
    return trial.refusal(ahead)


def victims_on(
    trials: Trials, node: NodeInfo, ahead: Sequence[PodInfo], rules: Rules, budgets: Budgets
) -> Candidate | Said | None:
    """None when there is nobody who may go. A candidate without victims says that the pod fits as it is."""
    possible = eligible(trials.pod, node, rules)
    if not possible:
        return None
    trial = trials.on(node)
    for victim in possible:
        trial.remove(victim)
    said = trial.refusal(ahead)
    if said is not None:
        return said
    barred = rules.objection(trials.pod, possible)
    if barred is not None:
        return rules.name, barred
    gone = {victim.uid: victim for victim in possible}
    possible.sort(key=rules.importance)
    violating, fine = budgets.split(possible)
    victims: list[PodInfo] = []
    violations = 0
    for spared in (violating, fine):
        for pod in spared:
            trial.add(pod)
            del gone[pod.uid]
            if trial.refusal(ahead, again=True) or rules.objection(trials.pod, gone.values()):
                trial.remove(pod)
                gone[pod.uid] = pod
                victims.append(pod)
                violations += spared is violating
    if violating and fine:
        victims.sort(key=rules.importance)
    return Candidate(node.name, tuple(victims), violations)
