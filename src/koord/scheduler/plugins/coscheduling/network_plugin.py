"""NetworkCoscheduling adds the network topology to Coscheduling: gangs within domains, pods near pods like
them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from koord.api.annotations.network_topology import NetworkTopologySpec, selector
from koord.api.config.scheduler.coscheduling import CoschedulingArgs
from koord.policy.gang.network import Place
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, UPDATE, Event
from koord.scheduler.framework.feasible import FeasibleNodes
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.normaliser import Normaliser
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.refused import Refused
from koord.scheduler.framework.verdict import CLUSTER, SKIP, Fault, Reject, Skip
from koord.scheduler.plugins.coscheduling.job_preemption import Kinds, Room, planned_room
from koord.scheduler.plugins.coscheduling.nearness import distances
from koord.scheduler.plugins.coscheduling.planner import Planner
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows


class NetworkCoscheduling(Coscheduling):
    """Coscheduling for clusters with a ClusterNetworkTopology.

    It is a class of its own because every pod is asked for its planned node: only those who want this pay for
    it.
    """

    wakes_on = (Event("ClusterNetworkTopology", ADD), Event("ClusterNetworkTopology", UPDATE))
    scope = CLUSTER
    normaliser = Normaliser(reverse=True)

    def __init__(self, args: CoschedulingArgs, handle: Handle, *, batch: bool = False) -> None:
        """Take defaulted arguments. `batch`: schedule all members of a plan without looking at other pods between
        them.
        """
        super().__init__(args, handle)
        self._batch = batch
        self.planner = Planner(handle)

    # Near those that carry the same selector ----------------------------------------------------------------------

    def signature(self, pod: PodInfo) -> Hashable:
        return selector(pod.annotations)

    def ground(self, state: ClusterState) -> Hashable:
        return self.planner.map.declared

    def epoch(self, cycle: Cycle) -> Hashable:
        """Return the table position for pods with a selector: any placement may be of such a pod. Other pods do not
        depend on it.
        """
        return cycle.state.table.position if self.name in cycle.kept else 0

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        kind = selector(pod.annotations)
        if not kind or not isinstance(self.planner.map.tree(), Place):
            return SKIP
        feasible = nodes.rows if isinstance(nodes, FeasibleNodes) else np.asarray([n.row for n in nodes], np.intp)
        cycle.keep(self.name, distances(self.planner.map, cycle.state.table, kind, feasible))
        return None

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        return int(cycle.of(self.name, np.ndarray)[node.row])

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        found: Scores = cycle.of(self.name, np.ndarray)[rows]
        return found

    # Planned all at once ------------------------------------------------------------------------------------------

    def enlist(self, profile: Profile) -> None:
        super().enlist(profile)
        self.planner.profile = profile

    def _room_for(self, profile: Profile, refused: Refused, members: Sequence[PodInfo], trials: Kinds) -> Room | str:
        round_ = self.company.round
        wish = self._wish(refused.pod)
        if wish is None or round_ is None:
            return super()._room_for(profile, refused, members, trials)
        if len(round_.attempted) > 1:
            return "plan become invalid, wait for the next round"
        if not isinstance(self.planner.map.tree(), Place):
            return "no cluster network topology"
        return planned_room(profile, refused, members, trials, self._job_rules, self.planner, wish)

    def _wish(self, pod: PodInfo) -> NetworkTopologySpec | None:
        gang = self._gangs.of(pod.uid)
        return gang.settings.topology if gang is not None and gang.settings is not None else None

    @property
    def in_one_go(self) -> bool:
        return self.company.round is not None and self.company.round.whole

    def find_one_node(self, cycle: Cycle, pod: PodInfo) -> str | Skip | Reject | Fault:
        gang, wish = self._gangs.of(pod.uid), self._wish(pod)
        if gang is None or wish is None:
            return SKIP
        group = self._gangs.group_of(gang)
        round_ = self.company.running(group)
        if round_ is None:  # it goes alone
            return SKIP
        if round_.plan is None:
            found = self.planner.planned(self._infos(group, pod), wish)
            if not isinstance(found, dict):
                return found
            round_.plan, round_.whole = found, self._batch
        return round_.plan.get(pod.uid) or Fault("no planned pods")


def coscheduling(args: CoschedulingArgs, handle: Handle, *, batch: bool = False) -> Coscheduling:
    if args.aware_network_topology:
        return NetworkCoscheduling(args, handle, batch=batch)
    return Coscheduling(args, handle)
