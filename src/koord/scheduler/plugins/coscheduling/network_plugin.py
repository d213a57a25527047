"""NetworkCoscheduling adds the network topology to Coscheduling: gangs within domains, pods near pods like them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from koord.api.annotations.gang_codecs import NetworkTopologySpec, network_topology_selector
from koord.api.config.scheduler.koordinator_args import CoschedulingArgs
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin, ScoreNormaliser, Scores
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.scoring import FeasibleNodes
from koord.scheduler.framework.verdict import CLUSTER, SKIP, Fault, Reject, Skip
from koord.scheduler.plugins.coscheduling.gang_cache import GangGroup
from koord.scheduler.plugins.coscheduling.job_preemption import (
    JobPreemption,
    TrialsByClass,
    find_network_job_preemption,
)
from koord.scheduler.plugins.coscheduling.network_planner import GangShortage, NetworkPlanner, proximity_ranks
from koord.scheduler.plugins.coscheduling.network_topology import NetworkTreeNode
from koord.scheduler.plugins.coscheduling.node_capacity import RejectedMember, pod_class_of
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling


class NetworkCoscheduling(Coscheduling):
    """Coscheduling for clusters with a ClusterNetworkTopology.

    It is a class of its own because every pod is asked for its planned node: only those who want this pay for it.
    """

    wakes_on = (ClusterEvent("ClusterNetworkTopology", ADD), ClusterEvent("ClusterNetworkTopology", UPDATE))
    scope = CLUSTER
    idle_without_keys = (*Coscheduling.idle_without_keys, Plugin.signature, Plugin.find_one_node)
    normaliser = ScoreNormaliser(reverse=True)

    def __init__(
        self, args: CoschedulingArgs, handle: Handle, *, batch: bool = False, patches_pending_members: bool = True
    ) -> None:
        """Take defaulted arguments. `batch`: schedule all members of a plan with no other pod between them."""
        super().__init__(args, handle, patches_pending_members=patches_pending_members)
        self._batch = batch
        self.planner = NetworkPlanner(handle)
        self._rejected_members: tuple[RejectedMember, ...] = ()  # of the plan that failed in the attempt under way

    # Near those that carry the same selector ----------------------------------------------------------------------

    def signature(self, pod: PodInfo) -> Hashable:
        return network_topology_selector(pod.annotations)

    def epoch(self, cycle: CycleState) -> Hashable:
        """Return the table position for pods with a selector, which any placement may concern; 0 for others."""
        return cycle.state.table.position if self.name in cycle.plugin_data else 0

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        kind = network_topology_selector(pod.annotations)
        if not kind or not isinstance(self.planner.network.tree(), NetworkTreeNode):
            return SKIP
        feasible = nodes.rows if isinstance(nodes, FeasibleNodes) else np.asarray([n.row for n in nodes], np.intp)
        cycle.write(self.name, proximity_ranks(self.planner.network, cycle.state.table, kind, feasible))
        return None

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return int(cycle.read(self.name, np.ndarray)[node.row])

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        found: Scores = cycle.read(self.name, np.ndarray)[rows]
        return found

    # Planned all at once ------------------------------------------------------------------------------------------

    def set_profile(self, profile: SchedulerProfile) -> None:
        super().set_profile(profile)
        self.planner.profile = profile

    def _search_preemption(
        self, profile: SchedulerProfile, refused: PostFilterContext, members: Sequence[PodInfo], trials: TrialsByClass
    ) -> JobPreemption | str:
        round_ = self.gang_manager.round
        topology_spec = self._topology_spec(refused.pod)
        if topology_spec is None or round_ is None:
            return super()._search_preemption(profile, refused, members, trials)
        if len(round_.attempted) > 1:
            return "plan become invalid, wait for the next round"
        if not isinstance(self.planner.network.tree(), NetworkTreeNode):
            return "no cluster network topology"
        return find_network_job_preemption(
            profile, refused, members, trials, self._job_rules, self.planner, topology_spec
        )

    def after_post_filter(self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext) -> None:
        """Let a member of each class that keeps the gang waiting fail once by itself.

        Queueing hints are about the pod that sleeps: what helps a member unlike it would wake nobody.
        """
        super().after_post_filter(cycle, pod, refused)
        rejected, self._rejected_members = self._rejected_members, ()
        gang = self._gangs.gang_of_pod(pod.uid)
        if not rejected or gang is None or self.planner.profile is None:
            return
        group, profile = self._gangs.group_of_gang(gang), self.planner.profile
        asleep = self.gang_manager.waiting_classes.setdefault(group.id, set())
        asleep.add(pod.uid)
        for member in rejected:
            if member.pod.uid not in asleep and pod_class_of(profile, member.pod) != pod_class_of(profile, pod):
                self.gang_manager.activate_member(group, member.pod.uid)
                return  # it does the same for the next

    def _check_network_topology(self, group: GangGroup, pod: PodInfo) -> None:
        """Nothing is ignored here."""

    def _topology_spec(self, pod: PodInfo) -> NetworkTopologySpec | None:
        gang = self._gangs.gang_of_pod(pod.uid)
        return gang.spec.network_topology if gang is not None and gang.spec is not None else None

    @property
    def is_uninterruptible(self) -> bool:
        return self.gang_manager.round is not None and self.gang_manager.round.all_or_nothing

    def find_one_node(self, cycle: CycleState, pod: PodInfo) -> str | Skip | Reject | Fault:
        gang, topology_spec = self._gangs.gang_of_pod(pod.uid), self._topology_spec(pod)
        if gang is None or topology_spec is None:
            return SKIP
        group = self._gangs.group_of_gang(gang)
        round_ = self.gang_manager.running_round(group)
        if round_ is None:  # it goes alone
            return SKIP
        if round_.plan is None:
            found = self.planner.plan_nodes(self._pending_pods(group, pod), topology_spec)
            if isinstance(found, GangShortage):
                self._rejected_members = found.members
                return found.answer
            if not isinstance(found, dict):
                return found
            round_.plan, round_.all_or_nothing = found, self._batch
        return round_.plan.get(pod.uid) or Fault("no planned pods")


def new_coscheduling(
    args: CoschedulingArgs, handle: Handle, *, batch: bool = False, patches_pending_members: bool = True
) -> Coscheduling:
    if args.aware_network_topology:
        return NetworkCoscheduling(args, handle, batch=batch, patches_pending_members=patches_pending_members)
    return Coscheduling(args, handle, patches_pending_members=patches_pending_members)
