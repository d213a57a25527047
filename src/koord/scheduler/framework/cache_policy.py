"""Declare what a plugin's verdicts and scores depend on, so that they are computed once for a class of equal pods."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, ClassVar, Literal

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_table import RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.verdict import ALWAYS, VerdictScope

if TYPE_CHECKING:
    from koord.scheduler.framework.cycle_state import CycleState


class CachePolicy:
    """Tell for how long, and for which pods, the answers of a plugin may be reused. By default they never are."""

    scope: ClassVar[VerdictScope] = ALWAYS
    # A pod that PreFilter skips gets the same score everywhere, so that nobody need ask for it.
    scores_as_it_filters: ClassVar[bool] = False
    # A pod that PreFilter skips gets nothing at Reserve either, so that it need not be called.
    reserves_as_it_filters: ClassVar[bool] = False
    # What `filter` reads of the pods on a node, so that a what-if need not ask when that stays the same: `nothing`;
    # only the `sums` in the table's columns (then `filter_columns` can be asked about other sums); or them `all`.
    reads_pods: ClassVar[Literal["nothing", "sums", "all"]] = "all"

    def signature(self, pod: PodInfo) -> Hashable:
        """Return what this plugin reads of a pod beyond its shape: pods with equal shapes and signatures share
        verdicts.
        """
        return None

    def epoch(self, cycle: CycleState) -> Hashable:
        """Return a value that changes whenever a cached verdict may have changed, for `scope = CLUSTER`."""
        return 0

    def moved_rows(self, cycle: CycleState) -> RowList | None:
        """Return the rows whose verdict may differ since this was last called, after `epoch` moved; None for any of
        them.
        """
        return None

    def score_epoch(self, cycle: CycleState) -> Hashable:
        """Return the epoch of cached scores, for a plugin whose scores change at other times than its verdicts."""
        return self.epoch(cycle)

    def prefilter_epoch(self, state: ClusterState) -> Hashable:
        """Return a value that changes when what PreFilter or PreScore wrote, or their decision to skip, no longer
        holds.
        """
        return 0
