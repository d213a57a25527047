"""Give PostFilter plugins their context: a pod that no node takes, the verdict on each node, and dry runs.

Also finds the node that came nearest to taking the pod, for explanations.
"""

from __future__ import annotations

import numpy as np

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.decision import Unschedulable
from koord.scheduler.framework.judgement import Judgement
from koord.scheduler.framework.nominated import Nominator
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.trial import Said, Trials
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, RowList


class Refused:
    """Describe an unschedulable pod to PostFilter plugins. Valid until the cluster state changes."""

    __slots__ = ("barred_by", "chance", "cycle", "decision", "judgement", "nominator", "pod", "table", "trials")

    def __init__(
        self,
        profile: Profile,
        cycle: Cycle,
        pod: PodInfo,
        decision: Unschedulable,
        judgement: Judgement | None,
        nominator: Nominator,
        chance: np.random.Generator,
    ) -> None:
        """Take the results of the attempt; `judgement` is None when PreFilter rejected, which then holds for every
        node.
        """
        self.pod = pod
        self.decision = decision
        self.cycle = cycle
        self.judgement = judgement
        self.nominator = nominator
        self.chance = chance  # seeded: choices that may be arbitrary are the same in every run
        self.table: NodeTable = cycle.state.table
        self.trials = Trials(profile, cycle, pod)
        early = decision.pre_filter
        # The plugin that did not admit this very pod, whatever nodes say: evictions are of no use to it then.
        self.barred_by = early[0] if early and any(p.name == early[0] for p in profile.at("admit")) else ""

    def nominated_node(self) -> str:
        """Return the node that the pod was nominated to before, or ""."""
        return self.nominator.node_of(self.pod.uid) or self.pod.nominated_node

    def said_of(self, node: NodeInfo) -> Said | None:
        """Return the plugin that rejected a node and its verdict."""
        return self.decision.pre_filter if self.judgement is None else self.judgement.verdict(node.row)

    def resolvable_rows(self) -> RowList:
        """Return the rows whose rejection might be resolved if pods left the node."""
        if self.judgement is not None:
            return self.judgement.resolvable_rows()
        early = self.decision.pre_filter
        return self.table.live_rows() if early is not None and early[1].resolvable else np.zeros(0, np.intp)
