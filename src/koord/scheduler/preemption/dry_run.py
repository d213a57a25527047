"""Select the victims on one node."""

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
    """Return who rejects the node even without all eligible victims; None when the pod would fit."""
    trial = trials.on(node)
    for victim in eligible(trials.pod, node, rules):
        trial.remove(victim)
    return trial.refusal(ahead)


def victims_on(
    trials: Trials, node: NodeInfo, ahead: Sequence[PodInfo], rules: Rules, budgets: Budgets
) -> Candidate | Said | None:
    """Select the victims on a node; None when no pod is eligible, and the rejection when evicting all does not help.

    A candidate without victims says that the pod fits as it is.
    """
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
