"""Give PostFilter plugins their context: a pod that no node takes, the verdict on each node, and dry runs.

Also finds the node that came nearest to taking the pod, for explanations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import NearestNode, Unschedulable, VictimSearch
from koord.scheduler.framework.dry_run import DryRuns, RejectedBy
from koord.scheduler.framework.filtering import FilterResults
from koord.scheduler.framework.nominated_pods import PodNominator
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile


class PostFilterContext:
    """Describe an unschedulable pod to PostFilter plugins. Valid until the cluster state changes."""

    __slots__ = (
        "cycle",
        "decision",
        "dry_runs",
        "filter_results",
        "nominator",
        "not_admitted_by",
        "offered_candidates",
        "pod",
        "proposals",
        "review",
        "rng",
        "table",
    )

    def __init__(
        self,
        profile: SchedulerProfile,
        cycle: CycleState,
        pod: PodInfo,
        decision: Unschedulable,
        filter_results: FilterResults | None,
        nominator: PodNominator,
        rng: np.random.Generator,
        review: Any = None,
    ) -> None:
        """Take the results of the attempt; `filter_results` is None when PreFilter rejected every node.

        With a `review` a plan that needs several nodes must be proposed to extenders before anything follows from it.
        """
        self.pod = pod
        self.decision = decision
        self.cycle = cycle
        self.filter_results = filter_results
        self.nominator = nominator
        self.rng = rng  # seeded: choices that may be arbitrary are the same in every run
        self.table: NodeTable = cycle.state.table
        self.dry_runs = DryRuns(profile, cycle, pod)
        # The candidates that a plan was made from, with the plugin and its search: extenders may have a say in them.
        self.offered_candidates: tuple[str, Sequence[Any], VictimSearch] | None = None
        self.review = review  # a PreemptionReview, or None where no extender looks at victims
        # VictimProposals that extenders have to see before there is an outcome: PostFilter is run again when they have.
        self.proposals: Sequence[Any] = ()
        early = decision.pre_filter
        # The plugin that did not admit this very pod, whatever nodes say: evictions are of no use to it then.
        admitting = (plugin.name for plugin in profile.plugins_at(Plugin.admit))
        self.not_admitted_by = early[0] if early and early[0] in admitting else ""

    def nominated_node(self) -> str:
        """Return the node that the pod was nominated to before, or ""."""
        return self.nominator.node_of(self.pod.uid) or self.pod.nominated_node

    def rejection_of(self, node: NodeInfo) -> RejectedBy | None:
        """Return the plugin that rejected a node and its verdict."""
        return self.decision.pre_filter if self.filter_results is None else self.filter_results.verdict(node.row)

    def resolvable_rows(self) -> RowList:
        """Return the rows whose rejection might be resolved if pods left the node."""
        if self.filter_results is not None:
            return self.filter_results.resolvable_rows()
        early = self.decision.pre_filter
        return self.table.live_rows() if early is not None and early[1].resolvable else np.zeros(0, np.intp)


_MAX_TIES_COMPARED = 8


def find_nearest_node(filter_results: FilterResults, table: NodeTable, pod: PodInfo) -> NearestNode | None:
    """Find the node with the fewest rejecting filters, then the least missing share; None when no node was evaluated.

    One that its labels, taints or volumes rule out is named only if all are, and says so. Ties go to the first node.
    """
    rows = np.flatnonzero(filter_results.first_rejection > 0)
    if not len(rows):
        return None
    out = filter_results.ruled_out(rows)
    if not out.all():
        rows = rows[~out]
    against = filter_results.rejection_counts(rows)
    rows = rows[against == against.min()]
    share = np.zeros(len(rows))
    lacking = {}
    for name, amount in pod.requests.items():
        short = np.maximum(amount - (table.allocatable(name)[rows] - table.requested(name)[rows]), 0)
        lacking[name] = short
        share += short / amount
    ties = np.flatnonzero(share == share.min())[:_MAX_TIES_COMPARED]
    best, details = _closest(filter_results, [(int(tie), table.nodes[rows[tie]]) for tie in ties])
    row = int(rows[best])
    node = table.nodes[row]
    assert node is not None
    short_of = {name: int(short[best]) for name, short in lacking.items() if short[best]}
    ruled_out_by = filter_results.ruling_out_reasons(row) if out.all() else ()
    return NearestNode(node.name, filter_results.all_reasons(row), short_of, details, ruled_out_by)


def _closest(filter_results: FilterResults, ties: list[tuple[int, NodeInfo | None]]) -> tuple[int, tuple[str, ...]]:
    """Break a tie by what plugins say is missing; return the place in `ties` and the plugins' details."""
    found: list[tuple[float, int, tuple[str, ...]]] = []
    for place, node in ties:
        assert node is not None
        misses = filter_results.near_misses(node)
        found.append((sum(share for share, _ in misses), place, tuple(words for _, words in misses)))
    _, place, details = min(found, key=lambda miss: miss[0])
    return place, details
