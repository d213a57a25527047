"""Plans the nodes of a whole gang at once, near each other in the network. The choice itself is in the policy; here is
how many members fit each node, tried out with the filters of the profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from koord.api.annotations.network_topology import NetworkTopologySpec, selector
from koord.api.custom import CLUSTER_NETWORK_TOPOLOGIES
from koord.policy.gang.declaration import Member
from koord.policy.gang.network import Broken, Place, plan, shortage, tree_of
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.trial import Said, Trials
from koord.scheduler.framework.verdict import Fault, Reject, unresolvable
from koord.scheduler.plugins.coscheduling.crew import Crew, prepared
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import PODS

NAME = "default"  # of the one ClusterNetworkTopology that counts


class Planner:
    def __init__(self, handle: Handle) -> None:
        self.profile: Profile | None = None
        self._state = handle.state
        self._topologies = handle.lister(CLUSTER_NETWORK_TOPOLOGIES)
        self._pods = handle.lister(PODS)

    def plan(
        self, first: PodInfo, members: Sequence[Member], wish: NetworkTopologySpec
    ) -> dict[str, str] | Reject | Fault:
        """By uid, the node of each member; or why there is none for all of them."""
        topology = self._topologies.get("", NAME)
        if topology is None:
            return unresolvable("no cluster network topology")
        tree = tree_of(topology.spec, ((n.name, n.node.metadata.labels or {}) for n in self._state.nodes() if n.node))
        if isinstance(tree, Broken):
            return unresolvable(tree.why)
        pods = [pod for member in members if (pod := self._info(member, first)) is not None]
        if not pods:
            return Fault("no pending pods")
        assert self.profile is not None
        trials = prepared(self.profile, self._state, pods)
        if isinstance(trials, Reject | Fault):
            return trials
        refusals, refusers = self._fill(tree, pods, trials, selector(first.annotations))
        found = plan(tree, wish, len(pods))
        if found is None:
            why = shortage(tree, wish, len(pods), self._unfit(refusals))
            return Reject((why,), blames=tuple(sorted(refusers)))
        line = iter(sorted(pods, key=lambda pod: pod.name))
        return {next(line).uid: node for node, count in found for _ in range(count)}

    def _info(self, member: Member, first: PodInfo) -> PodInfo | None:
        if member.uid == first.uid:
            return first
        namespace, _, name = member.key.partition("/")
        pod = self._pods.get(namespace, name)
        return self._state.info(pod) if pod is not None and pod.metadata.uid == member.uid else None

    def _fill(
        self, tree: Place, pods: Sequence[PodInfo], trials: dict[int, Trials], kind: str
    ) -> tuple[Counter[str], set[str]]:
        """Offers and existing pods onto the leaves. Returns why nodes take no more, counted, and who says so."""
        refusals: Counter[str] = Counter()
        refusers: set[str] = set()
        for leaf in tree.leaves():
            node = self._state.table.index[leaf.name]
            leaf.offer, said = _offer(node, pods, trials)
            if said is not None:
                refusers.add(said[0])
                refusals.update(said[1].reasons)
            if kind:
                leaf.existing = sum(1 for other in node.pods.values() if selector(other.annotations) == kind)
        return refusals, refusers

    def _unfit(self, refusals: Counter[str]) -> str:
        listed = sorted(f"{count} {reason}" for reason, count in refusals.items())
        return f"0/{self._state.node_count} nodes are available: {', '.join(listed)}."


def _offer(node: NodeInfo, pods: Sequence[PodInfo], trials: dict[int, Trials]) -> tuple[int, Said | None]:
    """How many of the pods fit the node one after another, and what the next one is told."""
    crew = Crew(node, trials)
    for count, pod in enumerate(pods):
        said = crew.refusal(pod)
        if said is not None:
            return count, said
        crew.add(pod)
    return len(pods), None
