"""Filter nodes as if the pods nominated to them were there, for pods that must not take their resources.

The cached verdicts of a class do not count nominated pods. They are laid over them for one pod at a time: a node that
only nominated pods keep from it is blocked, and that result is kept while neither the node nor its nominations change;
for pods whose plugins count others across nodes, while nothing changes anywhere. In a profile that does not filter
without nominated pods, a node that only they make feasible is accepted in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from koord.scheduler.cache.node_table import NodeTable
from koord.scheduler.cache.pod_info import LabelGroup, PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.dry_run import DryRuns, RejectedBy
from koord.scheduler.framework.filtering import FEASIBLE, NO_NODE, FilterResults
from koord.scheduler.framework.profile import SchedulerProfile


class PodNominator(Protocol):
    """Tell which pods are nominated to which nodes."""

    @property
    def version(self) -> int:
        """Return a number that changes with every change."""

    def __len__(self) -> int: ...

    def nodes(self) -> Iterable[str]: ...

    def pods_on(self, node: str) -> tuple[PodInfo, ...]:
        """Return the pods that this scheduler nominated to a node."""

    def ahead_of(self, pod: PodInfo, node: str) -> tuple[PodInfo, ...]:
        """Return the pods nominated to a node, by whomever, whose resources this pod must not take."""

    def node_of(self, uid: str) -> str: ...


class NoNominations:
    """Nominate nobody."""

    version = 0

    def __len__(self) -> int:
        return 0

    def nodes(self) -> Iterable[str]:
        return ()

    def pods_on(self, node: str) -> tuple[PodInfo, ...]:
        return ()

    def ahead_of(self, pod: PodInfo, node: str) -> tuple[PodInfo, ...]:
        return ()

    def node_of(self, uid: str) -> str:
        return ""


class NominatedOverlay:
    """Lay nominated pods over the filter results of one class."""

    __slots__ = ("_applied", "_counts_across", "_cycle", "_known", "_profile", "_rejected_everywhere", "_table")

    def __init__(self, profile: SchedulerProfile, cycle: CycleState) -> None:
        self._profile = profile
        self._cycle = cycle
        self._table: NodeTable = cycle.state.table
        # By row, with the promises that it is of and the labels that it was said to: those who are promised room may
        # have rules about labels that nobody on a node has, so equal pods may differ in them.
        self._known: dict[int, tuple[LabelGroup, tuple[PodInfo, ...], RejectedBy | None]] = {}
        self._applied: tuple[int, LabelGroup, str] | None = (
            None  # the nominations and the pod that the applied blocks are for
        )
        self._rejected_everywhere = False  # verdicts of nodes that reject the pod anyway were replaced, too
        self._counts_across = any(plugin.name not in cycle.skip_filter for plugin in profile.add_pod_plugins)

    def apply(
        self, filter_results: FilterResults, pod: PodInfo, nominator: PodNominator, changed: Sequence[int] | None
    ) -> Iterable[int]:
        """Count the nominated pods where they matter to the pod, after these rows changed (None when any may have).

        Return the rows whose feasibility may have changed by this, besides those that changed.
        """
        if changed and self._counts_across:
            changed = None  # a verdict may stay as it is and still be one pod away from another
        laid = (nominator.version, pod.label_group, nominator.node_of(pod.uid)) if nominator else None
        same, self._applied = laid == self._applied and changed is not None and not self._rejected_everywhere, laid
        if same:
            if laid is not None and changed:
                self._forget(changed)
                filter_results.reset_nominated_rows(changed)
                nodes = self._table.nodes
                self._count_nominated(
                    filter_results, pod, nominator, [node.name for row in changed if (node := nodes[row])]
                )
            return ()
        self._rejected_everywhere = False
        self._forget(changed)
        before = filter_results.reset_nominated_rows()
        if laid is not None:
            self._count_nominated(filter_results, pod, nominator, nominator.nodes())
        return before.symmetric_difference(filter_results.nominated_rows())

    def reject_nominated_nodes(self, filter_results: FilterResults, pod: PodInfo, nominator: PodNominator) -> None:
        """Replace the verdicts of nodes with nominated pods by those that count them, when no node takes the pod."""
        self._rejected_everywhere = True
        self._count_nominated(filter_results, pod, nominator, nominator.nodes(), everywhere=True)

    def _forget(self, rows: Sequence[int] | None) -> None:
        if rows is None:
            self._known.clear()
        elif self._known:
            for row in rows:
                self._known.pop(row, None)

    def _count_nominated(
        self,
        filter_results: FilterResults,
        pod: PodInfo,
        nominator: PodNominator,
        names: Iterable[str],
        *,
        everywhere: bool = False,
    ) -> None:
        """Filter these nodes with the pods nominated to them. Nodes that reject the pod anyway are left out, unless
        `everywhere` asks for their verdicts or nominated pods may make them feasible.
        """
        index, first = self._table.index, filter_results.first_rejection
        with_nominated_only = not self._profile.filters_without_nominated
        everywhere = everywhere or with_nominated_only
        dry_runs: DryRuns | None = None
        for name in names:
            node = index.get(name)
            if node is None or node.row in filter_results.nominated_rejections:
                continue
            stands = first[node.row]
            if stands == NO_NODE or not (
                stands == FEASIBLE or (everywhere and filter_results.is_row_allowed(node.row))
            ):
                continue
            ahead = nominator.ahead_of(pod, name)
            if ahead:
                known = self._known.get(node.row)
                if known is None or known[0] is not pod.label_group or known[1] != ahead:
                    dry_runs = dry_runs or DryRuns(self._profile, self._cycle, pod)
                    known = self._known[node.row] = (
                        pod.label_group,
                        ahead,
                        dry_runs.dry_run_on(node).run_filters(ahead),
                    )
                if known[2] is not None:
                    filter_results.block_row(node.row, known[2])
                elif with_nominated_only and stands != FEASIBLE:
                    filter_results.accept_row(node.row)
