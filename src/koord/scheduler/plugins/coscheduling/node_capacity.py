"""Compute how many pods of a gang each node takes in their order, and why it does not take the next.

columns    filters that read no pods, or only their sums, answer for all nodes at once
trials     where another filter has a say, nodes are tried one by one, as far as the columns leave open
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby

import numpy as np

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import ALL_ROWS, Bools, Ints, NodeTable, RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import PRE_FILTER
from koord.scheduler.framework.dry_run import DryRuns, RejectedBy
from koord.scheduler.framework.filtering import FilterResults
from koord.scheduler.framework.plugin import Codes
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.runtime import PluginRejection, run_pre_filter
from koord.scheduler.framework.verdict import Fault, Reject, unresolvable

_OUTSIDE_PRE_FILTER_RESULT = unresolvable("node is filtered out by the prefilter result")


def pod_class_of(profile: SchedulerProfile, pod: PodInfo) -> Hashable:
    """Return a key that is equal for pods that plugins need not tell apart.

    Where plugins cannot say, it is equal for pods with equal templates.
    """
    return profile.equivalence_key(pod) or pod.shape.number


def run_pre_filters(
    profile: SchedulerProfile, state: ClusterState, pods: Iterable[PodInfo]
) -> dict[Hashable, DryRuns] | Reject | Fault:
    """Run PreFilter once per class of the pods; return the dry runs by class, or the first rejection."""
    found: dict[Hashable, DryRuns] = {}
    for pod in pods:
        kind = pod_class_of(profile, pod)
        if kind in found:
            continue
        cycle = CycleState(state)
        seen = run_pre_filter(profile, cycle, pod)
        if isinstance(seen, PluginRejection):
            return seen.answer
        found[kind] = DryRuns(profile, cycle, seen)
    return found


class GroupTrial:
    """Try pods together on copies of one node, one for each class of pods, which may not see what others reserved."""

    def __init__(self, profile: SchedulerProfile, node: NodeInfo, trials: Mapping[Hashable, DryRuns]) -> None:
        self._node_name = node.name
        self._profile = profile
        self._dry_runs = {kind: held.dry_run_on(node) for kind, held in trials.items()}

    def run_filters(self, pod: PodInfo, *, again: bool = False) -> RejectedBy | None:
        """Return which plugin rejects the pod on the node, and why; None when it fits.

        `again`: such a pod fitted before, so only the filters that read pods run.
        """
        dry_run = self._dry_runs[pod_class_of(self._profile, pod)]
        cycle = dry_run.cycle
        if cycle.allowed_nodes is not None and self._node_name not in cycle.allowed_nodes:
            return cycle.restricted_by[0], _OUTSIDE_PRE_FILTER_RESULT
        return dry_run.run_filters(again=again)

    def add(self, pod: PodInfo) -> None:
        for dry_run in self._dry_runs.values():
            dry_run.add(pod)

    def remove(self, pod: PodInfo) -> None:
        for dry_run in self._dry_runs.values():
            if pod.uid in dry_run.node.pods:  # a class may not see it
                dry_run.remove(pod)


class ProjectedLoad:
    """Pods that are yet to come, as sums per row."""

    __slots__ = ("_amounts", "count")

    def __init__(self, size: int) -> None:
        self.count: Ints = np.zeros(size, np.int64)
        self._amounts: dict[str, Ints] = {}

    def requested(self, name: str) -> Ints | None:
        return self._amounts.get(name)

    def with_pods(self, pod: PodInfo, times: Ints) -> ProjectedLoad:
        """Return the load with `times` more of this pod per row."""
        other = ProjectedLoad(0)
        other.count = self.count + times
        other._amounts = dict(self._amounts)
        for name, amount in pod.requests.items():
            before = self._amounts.get(name)
            other._amounts[name] = times * amount if before is None else before + times * amount
        return other


class ProjectedTable(NodeTable):
    """The node table with the sums of more pods on its nodes; only for filters that read nothing but sums of pods."""

    def __init__(self, table: NodeTable, load: ProjectedLoad) -> None:
        self._base = table
        self._load = load
        self.nodes = table.nodes
        self.index = table.index
        self.alive = table.alive
        self.allowed_pods = table.allowed_pods
        self.pod_count = table.pod_count + load.count

    def allocatable(self, name: str) -> Ints:
        return self._base.allocatable(name)

    def requested(self, name: str) -> Ints:
        more = self._load.requested(name)
        held = self._base.requested(name)
        return held if more is None else held + more


class PodClassCapacity:
    """Equal pods, with the filters that decide about them.

    `emptied`: nodes are evaluated with fewer pods than they have, so that current verdicts are no bound.
    """

    def __init__(self, profile: SchedulerProfile, trials: DryRuns, *, emptied: bool) -> None:
        self.pod = trials.pod
        self._cycle = trials.cycle
        self._filter_results = FilterResults(profile, trials.cycle, trials.pod)
        self._filter_results.filter_all()
        self._sum_filters: list[int] = []
        self._fixed_filters: list[int] = []
        # The index of the first filter that columns cannot evaluate.
        self.first_uncertain_filter = len(self._filter_results.filters)
        for place, column_filter in enumerate(self._filter_results.filters):
            if column_filter.plugin.name == PRE_FILTER or column_filter.plugin.reads_pods == "nothing":
                self._fixed_filters.append(place)
            elif column_filter.plugin.reads_pods == "sums" and column_filter.columnar:
                self._sum_filters.append(place)
            else:
                self.first_uncertain_filter = min(self.first_uncertain_filter, place)
                if not emptied:
                    self._fixed_filters.append(place)
        # Rows that such pods see without some of the pods on them (resources reserved for them): sums do not show that.
        self._restored: Bools = np.zeros(trials.cycle.state.table.size, np.bool_)
        if self._filter_results.node_views is not None:
            self._restored[list(self._filter_results.node_views.rows())] = True
        self.exact = (
            self.first_uncertain_filter == len(self._filter_results.filters)
            and not trials.add_pod_plugins
            and not self._restored.any()
        )
        self.open_rows: Bools = trials.cycle.state.table.alive.copy()
        for place in self._fixed_filters:
            self.open_rows &= self._codes(place) == 0

    def _codes(self, place: int) -> Codes:
        return self._filter_results.codes_of(self._filter_results.filters[place].plugin.name)

    def _codes_on(self, place: int, table: NodeTable) -> Codes:
        return self._filter_results.filters[place].plugin.filter_columns(self._cycle, self.pod, table, ALL_ROWS)

    def pods_per_row(self, table: NodeTable, load: ProjectedLoad, limit: int, among: Bools) -> Ints:
        """Return how many of the pods each row takes beside the load, up to the limit, by binary search."""
        found = np.zeros(table.size, np.int64)
        among = among & self.open_rows
        step = 1 << (limit.bit_length() - 1) if limit else 0
        while step:
            more = found + step
            projected = ProjectedTable(table, load.with_pods(self.pod, more - 1))
            fits = among & (more <= limit)
            for place in self._sum_filters:
                fits &= (self._codes_on(place, projected) == 0) | self._restored
            found[fits] = more[fits]
            step >>= 1
        return found

    def count_rejections(
        self, table: NodeTable, load: ProjectedLoad, rows: RowList
    ) -> tuple[list[tuple[RejectedBy, int]], RowList]:
        """Return the counted rejections of one more pod on these rows, and the rows where only a trial can tell."""
        projected = ProjectedTable(table, load)
        first = np.full(len(rows), len(self._filter_results.filters), np.intp)
        codes_at: dict[int, Codes] = {}
        for place in sorted((*self._sum_filters, *self._fixed_filters), reverse=True):
            codes = codes_at[place] = (
                self._codes_on(place, projected) if place in self._sum_filters else self._codes(place)
            )[rows]
            first[codes != 0] = place
        first[self._restored[rows]] = len(self._filter_results.filters)
        told: list[tuple[RejectedBy, int]] = []
        for place, codes in codes_at.items():
            plugin = self._filter_results.filters[place].plugin
            mine = (
                codes[first == place]
                if place < self.first_uncertain_filter or place in self._fixed_filters
                else codes[:0]
            )
            for code, times in zip(*np.unique(mine, return_counts=True), strict=True):
                told.append(((plugin.name, self._filter_results.verdict_of_code(plugin.name, int(code))), int(times)))
        sure = np.isin(first, self._fixed_filters) | (first < self.first_uncertain_filter)
        return told, rows[~sure]


class NodeCapacity:
    """The number of pods, in their order, that each row takes.

    `table` is the live one, or what it would be without some pods; `group_trial` makes a trial on a node in the
    same state.
    """

    def __init__(
        self,
        profile: SchedulerProfile,
        trials: Mapping[Hashable, DryRuns],
        pods: Sequence[PodInfo],
        table: NodeTable,
        group_trial: Callable[[NodeInfo], GroupTrial],
        *,
        emptied: bool = False,
    ) -> None:
        self._table = table
        self._pods = pods
        self._new_trial = group_trial
        self._class_of_pod = [pod_class_of(profile, pod) for pod in pods]
        self.pod_classes = {key: PodClassCapacity(profile, held, emptied=emptied) for key, held in trials.items()}
        self._load = ProjectedLoad(table.size)
        self._rejections: dict[int, RejectedBy | None] = {}  # by row, where a dry run rejected
        self.count: Ints = self._count_by_columns()
        if not all(kind.exact for kind in self.pod_classes.values()):
            self._limit_by_trials()

    def _count_by_columns(self) -> Ints:
        count = np.zeros(self._table.size, np.int64)
        among: Bools = self._table.alive.copy()
        for key, run in groupby(self._class_of_pod):
            length, kind = sum(1 for _ in run), self.pod_classes[key]
            came = kind.pods_per_row(self._table, self._load, length, among)
            self._load = self._load.with_pods(kind.pod, came)
            count += came
            among &= came == length
            if not among.any():
                break
        return count

    def _limit_by_trials(self) -> None:
        for row in np.flatnonzero(self.count).tolist():
            node = self._table.nodes[row]
            assert node is not None
            group_trial, most = self._new_trial(node), int(self.count[row])
            for placed, pod in enumerate(self._pods[:most]):
                said = group_trial.run_filters(
                    pod, again=placed > 0 and self._class_of_pod[placed] == self._class_of_pod[placed - 1]
                )
                if said is not None:
                    self.count[row] = placed
                    self._rejections[row] = said
                    break
                group_trial.add(pod)

    def count_rejections(self, rows: RowList) -> tuple[Counter[str], set[str]]:
        """Return why these rows do not take all pods, counted by reason, and the plugins that reject them."""
        reasons: Counter[str] = Counter()
        plugins: set[str] = set()
        short = rows[self.count[rows] < len(self._pods)]
        for row in short.tolist():
            if (said := self._rejections.get(row)) is not None:
                plugins.add(said[0])
                reasons.update(said[1].reasons)
        left = np.asarray([row for row in short.tolist() if row not in self._rejections], np.intp)
        following = [self._class_of_pod[placed] for placed in self.count[left].tolist()]
        for key, kind in self.pod_classes.items():
            mine = left[np.asarray([other == key for other in following], np.bool_)]
            told, unknown = kind.count_rejections(self._table, self._load, mine)
            told += [(said, 1) for row in unknown.tolist() if (said := self._rejection_by_trial(row)) is not None]
            for (plugin, verdict), times in told:
                plugins.add(plugin)
                for reason in verdict.reasons:
                    reasons[reason] += times
        return reasons, plugins

    def _rejection_by_trial(self, row: int) -> RejectedBy | None:
        node, placed = self._table.nodes[row], int(self.count[row])
        assert node is not None
        group_trial = self._new_trial(node)
        for pod in self._pods[:placed]:
            group_trial.add(pod)
        return group_trial.run_filters(self._pods[placed])
