"""This module finds the victims that make room for a whole gang: all pending members fit at once, or nobody is
evicted.

A victim that does not get the gang started would be evicted for nothing.

    remove every possible victim, node by node -> place the members one by one where that costs least
        | one fits nowhere: nobody is evicted
        v
    reprieve victims one by one, the important first, where the members still fit -> the rest is evicted
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import groupby

import msgspec
import numpy as np

from koord.api.annotations.network_topology import NetworkTopologySpec
from koord.api.protocol import L_DISABLE_PREEMPTIBLE, L_QUESTIONED_OBJECT_KEY, L_QUOTA_PREEMPTIBLE
from koord.scheduler.framework.decision import Futile, Preempt, Search
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.refused import Refused
from koord.scheduler.framework.trial import Said, Trials
from koord.scheduler.plugins.coscheduling.crew import Crew, kind_of
from koord.scheduler.plugins.coscheduling.crowded import Load
from koord.scheduler.plugins.coscheduling.offers import Kind, Offers
from koord.scheduler.plugins.coscheduling.planner import Planner
from koord.scheduler.preemption.budget import Budgets
from koord.scheduler.preemption.candidate import pick
from koord.scheduler.preemption.finder import Enough, find
from koord.scheduler.preemption.plan import NEVER, NOT_HELPFUL, TERMINATING, plan
from koord.scheduler.preemption.relief import Reliefs, Relieved
from koord.scheduler.preemption.rules import Rules
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import Bools, NodeTable, RowList

NO_VICTIMS = "no potential victims"

Kinds = Mapping[Hashable, Trials]


class JobReliefs(Reliefs):
    def takes(self, pod: PodInfo) -> bool:
        return not pod.reserve and not _is_protected(pod)


class JobRules(Rules):
    """Allow victims of lower priority unless their labels protect them. Disruption budgets are not considered."""

    def may_take(self, pod: PodInfo, victim: PodInfo) -> bool:
        return not _is_protected(victim) and super().may_take(pod, victim)

    @property
    def reliefs(self) -> type[Reliefs]:
        return JobReliefs


class Room(msgspec.Struct, frozen=True):
    """The result of a search: `nodes` by uid of the member, and the victims, most important first."""

    nodes: Mapping[str, str]
    victims: tuple[PodInfo, ...]


class _Site:
    """One node without its possible victims, and with the members placed there. A dry run is made only if needed."""

    __slots__ = ("_crew", "_profile", "_trials", "node", "placed", "victims")

    def __init__(self, profile: Profile, node: NodeInfo, victims: list[PodInfo], trials: Kinds) -> None:
        self._profile = profile
        self._trials = trials
        self._crew: Crew | None = None
        self.node = node
        self.victims = victims
        self.placed: list[PodInfo] = []

    def emptied(self) -> Crew:
        """Return a trial on the node without victims and without placed members."""
        crew = Crew(self._profile, self.node, self._trials)
        for victim in self.victims:
            crew.remove(victim)
        return crew

    def refusal(self, member: PodInfo) -> Said | None:
        if self._crew is None:
            self._crew = self.emptied()
            for other in self.placed:
                self._crew.add(other)
        return self._crew.refusal(member)

    def take(self, member: PodInfo) -> None:
        self.placed.append(member)
        if self._crew is not None:
            self._crew.add(member)


class Yard:
    """All nodes on which evictions could help, as they would be without the possible victims."""

    def __init__(self, profile: Profile, refused: Refused, trials: Kinds, rules: JobRules) -> None:
        self._profile = profile
        self._refused = refused
        self._trials = trials
        self._rules = rules
        table, priority = refused.table, refused.pod.priority
        below = refused.cycle.state.derived(JobReliefs).below(priority)
        self.rows = refused.resolvable_rows()
        self.table = Relieved(table, below)
        self.among: Bools = np.zeros(table.size, np.bool_)
        self.among[self.rows] = True
        self._nobody: Bools = below.count == 0
        self.costs = _costs(table, self.rows, priority)
        self._sites: dict[int, _Site] = {}

    def site(self, row: int) -> _Site:
        known = self._sites.get(row)
        if known is None:
            node = self._refused.table.nodes[row]
            assert node is not None
            victims = [victim for victim in node.pods.values() if self._rules.may_take(self._refused.pod, victim)]
            known = self._sites[row] = _Site(self._profile, node, victims, self._trials)
        return known

    def crew(self, node: NodeInfo) -> Crew:
        """Return a trial on the node without victims and without placed members."""
        return self.site(node.row).emptied()

    def by_cost(self) -> list[int]:
        names = self._refused.table.nodes
        return sorted(self.rows.tolist(), key=lambda row: (self.costs[row], node.name if (node := names[row]) else ""))

    def untakeable(self, told: Callable[[RowList], Counter[str]]) -> str:
        """Return why the members do not fit; `told` counts the rejections of rows that have victims."""
        nodes = self._refused.decision.node_count
        nobody = self._nobody[self.rows]
        reasons = told(self.rows[~nobody])
        reasons[NOT_HELPFUL] += nodes - len(self.rows)
        reasons[NO_VICTIMS] += int(np.count_nonzero(nobody))
        listed = sorted(f"{count} {reason}" for reason, count in (+reasons).items())
        return f"0/{nodes} nodes are available: {', '.join(listed)}."

    def room(self) -> Room:
        used = [site for site in self._sites.values() if site.placed]
        victims = [victim for site in used for victim in _reprieved(site)]
        return Room(
            {member.uid: site.node.name for site in used for member in site.placed},
            tuple(sorted(victims, key=self._rules.importance)),
        )


def room_for(
    profile: Profile, refused: Refused, members: Sequence[PodInfo], trials: Kinds, rules: JobRules
) -> Room | str:
    """Place the members one by one where that costs least; return the result, or the message why they do not fit."""
    yard = Yard(profile, refused, trials, rules)
    order = yard.by_cost()
    load = Load(refused.table.size)
    for key, run in groupby(members, key=lambda member: kind_of(profile, member)):
        kind, line = Kind(profile, trials[key], emptied=True), deque(run)
        room = kind.room(yard.table, load, len(line), yard.among)
        came = np.zeros(len(room), np.int64)
        for row in order:
            if not line:
                break
            for _ in range(min(int(room[row]), len(line))):
                site = yard.site(row)
                if not kind.exact and site.refusal(line[0]) is not None:
                    break
                site.take(line.popleft())
                came[row] += 1
        load = load.plus(kind.pod, came)
        if line:
            return yard.untakeable(partial(_told, kind, yard, load, line[0]))
    return yard.room()


def planned_room(
    profile: Profile,
    refused: Refused,
    members: Sequence[PodInfo],
    trials: Kinds,
    rules: JobRules,
    planner: Planner,
    wish: NetworkTopologySpec,
) -> Room | str:
    """Do the same for members that must be near each other: of domains that serve them equally well, take the
    cheapest.
    """
    yard = Yard(profile, refused, trials, rules)
    offers = Offers(profile, trials, members, yard.table, yard.crew, emptied=True)
    offers.count[~yard.among] = 0
    costs = {row: -cost for row, cost in yard.costs.items()}
    found = planner.placed(members, wish, offers, lambda: yard.untakeable(lambda rows: offers.refusals(rows)[0]), costs)
    if isinstance(found, str):
        return found
    index = refused.table.index
    for member, node in found:
        yard.site(index[node].row).take(member)
    return yard.room()


def _told(kind: Kind, yard: Yard, load: Load, member: PodInfo, rows: RowList) -> Counter[str]:
    told, unknown = kind.refusals(yard.table, load, rows)
    told += [(said, 1) for row in unknown.tolist() if (said := yard.site(row).refusal(member)) is not None]
    reasons: Counter[str] = Counter()
    for (_, verdict), times in told:
        for reason in verdict.reasons:
            reasons[reason] += times
    return reasons


def alone(plugin: str, refused: Refused, rules: JobRules) -> Preempt | Futile:
    """Preempt for a pod of no gang in the usual way, with the rules of this plugin."""
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


def _reprieved(site: _Site) -> list[PodInfo]:
    """Return who must be evicted: a victim is reprieved if all members placed here still fit beside it."""
    crew = site.emptied()
    going = []
    for victim in sorted(site.victims, key=lambda v: (-v.priority, _job(v), v.name)):
        crew.add(victim)
        if not _all_fit(crew, site.placed):
            crew.remove(victim)
            going.append(victim)
    return going


def _all_fit(crew: Crew, members: Sequence[PodInfo]) -> bool:
    """Return whether the members fit one after another; the trial is left unchanged."""
    there: list[PodInfo] = []
    for member in members:
        if crew.refusal(member, again=True) is not None:
            break
        crew.add(member)
        there.append(member)
    for member in reversed(there):
        crew.remove(member)
    return len(there) == len(members)


def _job(pod: PodInfo) -> str:
    return pod.labels.get(L_QUESTIONED_OBJECT_KEY, "")


def _is_protected(pod: PodInfo) -> bool:
    labels = pod.labels
    return labels.get(L_DISABLE_PREEMPTIBLE) == "true" or labels.get(L_QUOTA_PREEMPTIBLE) == "false"


def _costs(table: NodeTable, rows: RowList, priority: int) -> dict[int, int]:
    """Return the cost of each row: each job on it counts once, by the rank of its most important possible victim
    there.
    """
    jobs = table.column("jobs that may be preempted", object, _jobs_on)
    found = {row: [(job, p) for job, p in jobs[row] or () if p < priority] for row in rows.tolist()}
    ranks = {p: rank for rank, p in enumerate(sorted({p for pairs in found.values() for _, p in pairs}))}
    costs = {}
    for row, pairs in found.items():
        best: dict[str, int] = {}
        for job, p in pairs:
            best[job] = max(best.get(job, 0), ranks[p])
        costs[row] = sum(best.values())
    return costs


def _jobs_on(node: NodeInfo) -> tuple[tuple[str, int], ...]:
    takeable = (pod for pod in node.pods.values() if not pod.reserve and not _is_protected(pod))
    return tuple({(_job(pod), pod.priority) for pod in takeable})
