"""NetworkPlanner plans the nodes of a whole gang at once, near each other in the network."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from koord.api.annotations.network_topology import NetworkTopologySpec, selector
from koord.policy.gang.network import Broken, Place, plan, shortage
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.trial import Trials
from koord.scheduler.framework.verdict import Fault, Reject, unresolvable
from koord.scheduler.plugins.coscheduling.crew import Crew, prepared
from koord.scheduler.plugins.coscheduling.nearness import existing_of
from koord.scheduler.plugins.coscheduling.network_map import NetworkMap
from koord.scheduler.plugins.coscheduling.offers import Offers
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


class Planner:
    def __init__(self, handle: Handle) -> None:
        self.profile: Profile | None = None
        self._state = handle.state
        self.map = NetworkMap(handle)

    def planned(self, pods: Sequence[PodInfo], wish: NetworkTopologySpec) -> dict[str, str] | Reject | Fault:
        """Return the node of each pod by uid, or why there is none for all of them."""
        tree = self.map.tree()
        if tree is None:
            return unresolvable("no cluster network topology")
        if isinstance(tree, Broken):
            return unresolvable(tree.why)
        if not pods:
            return Fault("no pending pods")
        assert self.profile is not None
        trials = prepared(self.profile, self._state, pods)
        if isinstance(trials, Reject | Fault):
            return trials
        offers = Offers(self.profile, trials, pods, self._state.table, self._crew_of(trials))
        refusers: set[str] = set()

        def unfit() -> str:
            reasons, plugins = offers.refusals(np.asarray([row for row, _ in self.map.leaves], np.intp))
            refusers.update(plugins)
            listed = sorted(f"{count} {reason}" for reason, count in reasons.items())
            return f"0/{self._state.node_count} nodes are available: {', '.join(listed)}."

        found = self.placed(pods, wish, offers, unfit)
        if isinstance(found, str):
            return Reject((found,), blames=tuple(sorted(refusers)))
        return {pod.uid: node for pod, node in found}

    def placed(
        self,
        pods: Sequence[PodInfo],
        wish: NetworkTopologySpec,
        offers: Offers,
        unfit: Callable[[], str],
        scores: Mapping[int, int] | None = None,
    ) -> list[tuple[PodInfo, str]] | str:
        """Return each pod with its node, or why there is none for all of them. `scores` are by row; greater is better.

        """
        tree = self.map.tree()
        assert isinstance(tree, Place)
        kind = selector(pods[0].annotations)
        existing = existing_of(self._state.table, kind) if kind else {}
        counts = offers.count.tolist()
        for row, leaf in self.map.leaves:
            leaf.offer, leaf.existing = counts[row], existing.get(row, 0)
            leaf.score = scores.get(row, 0) if scores is not None else 0
        found = plan(tree, wish, len(pods))
        if found is None:
            return shortage(tree, wish, len(pods), unfit())
        nodes = (node for node, count in found for _ in range(count))
        return list(zip(sorted(pods, key=lambda pod: pod.name), nodes, strict=True))

    def _crew_of(self, trials: Mapping[Hashable, Trials]) -> Callable[[NodeInfo], Crew]:
        profile = self.profile
        assert profile is not None
        return lambda node: Crew(profile, node, trials)
