"""Room for a whole gang: which pods must go so that all members that have no node fit at once. All of them, or nobody
goes: a victim that does not get the gang started would have gone for nothing.

    take away everybody who may go, node by node -> place the members one after another where that costs least
        | one fits nowhere: nobody goes
        v
    put victims back one by one, the important first, where the members still fit beside them -> the rest goes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koord.api.protocol import L_DISABLE_PREEMPTIBLE, L_QUESTIONED_OBJECT_KEY, L_QUOTA_PREEMPTIBLE
from koord.scheduler.framework.decision import Futile, Preempt, Search
from koord.scheduler.framework.refused import Refused
from koord.scheduler.framework.trial import Trials
from koord.scheduler.plugins.coscheduling.crew import Crew
from koord.scheduler.preemption.budget import Budgets
from koord.scheduler.preemption.candidate import pick
from koord.scheduler.preemption.finder import Enough, find
from koord.scheduler.preemption.plan import NEVER, NOT_HELPFUL, TERMINATING, plan
from koord.scheduler.preemption.rules import Rules
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo

NO_VICTIMS = "no potential victims"


class JobRules(Rules):
    """Pods of lower priority, unless their labels protect them. Disruption budgets are not looked at."""

    def may_take(self, pod: PodInfo, victim: PodInfo) -> bool:
        labels = victim.labels
        protected = labels.get(L_DISABLE_PREEMPTIBLE) == "true" or labels.get(L_QUOTA_PREEMPTIBLE) == "false"
        return not protected and super().may_take(pod, victim)


class Room(msgspec.Struct, frozen=True):
    """`nodes` by uid of the member; victims the most important first."""

    nodes: Mapping[str, str]
    victims: tuple[PodInfo, ...]


class _Site:
    """One node without those who may go, and with the members that were placed there."""

    __slots__ = ("cost", "crew", "node", "placed", "victims")

    def __init__(self, node: NodeInfo, victims: list[PodInfo], trials: Mapping[int, Trials], cost: int) -> None:
        self.node = node
        self.victims = victims
        self.cost = cost
        self.placed: list[PodInfo] = []
        self.crew = Crew(node, trials)
        for victim in victims:
            self.crew.remove(victim)


def room_for(refused: Refused, members: Sequence[PodInfo], trials: Mapping[int, Trials], rules: JobRules) -> Room | str:
    """The room, or in words why there is none."""
    table, pod = refused.table, refused.pod
    worth = [node for row in refused.resolvable_rows().tolist() if (node := table.nodes[row]) is not None]
    reasons: Counter[str] = Counter()
    if (useless := refused.decision.node_count - len(worth)) > 0:
        reasons[NOT_HELPFUL] = useless
    takeable = {node.name: [v for v in node.pods.values() if rules.may_take(pod, v)] for node in worth}
    reasons[NO_VICTIMS] = sum(1 for victims in takeable.values() if not victims)
    ranks = _ranks(victim for victims in takeable.values() for victim in victims)
    sites = [
        _Site(node, takeable[node.name], trials, _cost(takeable[node.name], ranks))
        for node in sorted(worth, key=lambda node: node.name)
        if takeable[node.name]
    ]
    sites.sort(key=lambda site: (site.cost, site.node.name))
    for member in members:
        site = next((site for site in sites if site.crew.refusal(member) is None), None)
        if site is None:
            for each in sites:
                said = each.crew.refusal(member)
                reasons.update(said[1].reasons if said is not None else ())
            listed = sorted(f"{count} {reason}" for reason, count in (+reasons).items())
            return f"0/{refused.decision.node_count} nodes are available: {', '.join(listed)}."
        site.crew.add(member)
        site.placed.append(member)
    used = [site for site in sites if site.placed]
    victims = [victim for site in used for victim in _reprieved(site, trials)]
    return Room(
        {member.uid: site.node.name for site in used for member in site.placed},
        tuple(sorted(victims, key=rules.importance)),
    )


def alone(plugin: str, refused: Refused, rules: JobRules) -> Preempt | Futile:
    """For a pod of no gang, in the same way as everywhere else, with the rules of this kind."""
    pod = refused.pod
    if pod.shape.spec.preemption_policy == "Never":
        return Futile((f"preemption: {NEVER}",))
    node = refused.cycle.state.node(refused.nominated_node())
    if node is not None and any(other.preempted and rules.may_take(pod, other) for other in node.pods.values()):
        return Futile((f"preemption: {TERMINATING}",))
    found = find(refused, rules, Budgets(), Enough())
    search = Search(plugin, found.nodes, len(found.candidates), found.without, found.nearest)
    if found.candidates:
        return plan(refused, plugin, pick(found.candidates), search)
    counts = Counter(found.without)
    counts[NOT_HELPFUL] += refused.decision.node_count - found.nodes
    listed = sorted(f"{count} {reason}" for reason, count in (+counts).items())
    told = f"preemption: 0/{refused.decision.node_count} nodes are available: {', '.join(listed)}."
    return Futile((told,), nominate="", search=search)


def _reprieved(site: _Site, trials: Mapping[int, Trials]) -> list[PodInfo]:
    """Who must really go: each victim stays that all members placed here still fit beside."""
    going = sorted(site.victims, key=lambda v: (-v.priority, _job(v), v.name))
    for victim in list(going):
        left = [other for other in going if other is not victim]
        if _all_fit(site, left, trials):
            going = left
    return going


def _all_fit(site: _Site, without: Sequence[PodInfo], trials: Mapping[int, Trials]) -> bool:
    crew = Crew(site.node, trials)
    for victim in without:
        crew.remove(victim)
    for member in site.placed:
        if crew.refusal(member) is not None:
            return False
        crew.add(member)
    return True


def _job(pod: PodInfo) -> str:
    return pod.labels.get(L_QUESTIONED_OBJECT_KEY, "")


def _ranks(victims: Iterable[PodInfo]) -> dict[int, int]:
    priorities = {victim.priority for victim in victims}
    return {priority: rank for rank, priority in enumerate(sorted(priorities))}


def _cost(victims: Sequence[PodInfo], ranks: Mapping[int, int]) -> int:
    """Each job counts once, with the rank of its most important pod here."""
    jobs: dict[str, int] = {}
    for victim in victims:
        jobs[_job(victim)] = max(jobs.get(_job(victim), 0), ranks[victim.priority])
    return sum(jobs.values())
