"""This module filters and scores nodes by their devices: one node exactly, or all of them as a column.

A column counts the cards that would fit, which decides most nodes at once. Where it matters which cards
these are, a trial allocation runs once for all nodes in the same situation.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from koord.api.koordinator import scheduling as wire
from koord.scheduler.cache.columns import CodedColumn
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Bools, NodeTable, RowList, Rows
from koord.scheduler.framework.plugin import Codes, Scores
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.device_share.device_amounts import DeviceAmounts, DeviceScorer
from koord.scheduler.plugins.device_share.device_columns import DeviceColumns
from koord.scheduler.plugins.device_share.gpu_selection import GpuNodeLabels, check_gpu_sharing, parse_gpu_labels
from koord.scheduler.plugins.device_share.node_devices import NodeDevices
from koord.scheduler.plugins.device_share.refusal import NO_GPU, NO_GPU_IN_SCOPE, DeviceRefusal, insufficient_devices
from koord.scheduler.plugins.device_share.request_cache import PodDeviceRequest, to_reject
from koord.scheduler.plugins.device_share.selection import score_node_devices
from koord.scheduler.plugins.device_share.trial import DeviceTrial
from koord.scheduler.plugins.device_share.usable_devices import DeviceConstraints

_GPU_LABELS_COLUMN = "device facts"


class NodeDeviceFilter:
    """Decides whether nodes have the devices that a pod requests."""

    def __init__(self, table: NodeTable, columns: DeviceColumns, unsupported: Collection[tuple[str, str]]) -> None:
        """Make a filter. `unsupported`: vendor and model of the cards that cannot be shared."""
        self._table = table
        self._columns = columns
        self._unsupported = unsupported

    def gpu_labels_column(self) -> CodedColumn:
        """Return the facts about GPUs that node labels state, as a coded column."""
        return self._table.coded_column(_GPU_LABELS_COLUMN, _read_gpu_labels)

    def gpu_labels(self, node: NodeInfo) -> GpuNodeLabels:
        table, row = self._table, node.row
        live = table.nodes[row] if row < table.size else None
        if live is None or live.node is not node.node:  # not the node as it is now
            return _read_gpu_labels(node)
        told = self.gpu_labels_column()
        found: GpuNodeLabels = told.values[told.codes[row]]
        return found

    # One node ----------------------------------------------------------------------------------------------------

    def check_eligibility(self, device_request: PodDeviceRequest, gpu_labels: GpuNodeLabels) -> Reject | None:
        """Return the rejection that follows from the node's labels alone, whatever devices it has."""
        found = check_gpu_sharing(device_request.demand, gpu_labels, self._unsupported)
        return None if found is None else to_reject(found)

    def verdict(
        self, device_request: PodDeviceRequest, node_devices: NodeDevices, gpu_labels: GpuNodeLabels
    ) -> Reject | None:
        """Return the rejection without regard to reservations, computed once for all nodes in the same situation."""
        key = (node_devices.situation, gpu_labels)
        try:
            return device_request.verdicts[key]
        except KeyError:
            found = DeviceTrial(
                node_devices=node_devices, device_request=device_request, gpu_labels=gpu_labels
            ).try_allocation()
            verdict = to_reject(found) if isinstance(found, DeviceRefusal) else None
            device_request.remember(key, verdict)
            return verdict

    # All of them -------------------------------------------------------------------------------------------------

    def codes(self, device_request: PodDeviceRequest, rows: Rows, numbers: RowList) -> Codes:
        """Return the verdict codes of many rows; `numbers` are their row numbers."""
        columns = self._columns
        columns.refresh()
        codes = self._eligibility_codes(device_request, rows, len(numbers))
        there = columns.has_device[rows] & (codes == 0)
        if device_request.card_counts is None:
            exact = there
        else:
            exact = there & self._needs_exact_allocation(device_request, rows)
            counted = there & ~exact
            self._apply_card_counts(device_request, rows, counted, codes)
            if not device_request.counting_suffices:
                exact |= counted & (codes == 0)
        places = np.flatnonzero(exact)
        if len(places):
            codes[places] = columns.evaluate_by_situation(
                numbers[places],
                self.gpu_labels_column(),
                lambda node_devices, gpu_labels: device_request.code(
                    self.verdict(device_request, node_devices, gpu_labels)
                ),
            )
        return codes

    def _eligibility_codes(self, device_request: PodDeviceRequest, rows: Rows, size: int) -> Codes:
        gpu = device_request.demand.gpu
        if gpu is None or not gpu.shared:
            return np.zeros(size, np.int32)
        return (
            self.gpu_labels_column()
            .map_values(
                rows, lambda gpu_labels: device_request.code(self.check_eligibility(device_request, gpu_labels))
            )
            .astype(np.int32)
        )

    def _needs_exact_allocation(self, device_request: PodDeviceRequest, rows: Rows) -> Bools:
        """Return the rows where it matters which cards fit, not only how many."""
        columns, demand = self._columns, device_request.demand
        special = np.zeros(len(columns.has_device[rows]), np.bool_)
        if demand.gpu is not None and not demand.gpu.shared:
            labelled = self.gpu_labels_column().map_values(rows, lambda gpu_labels: int(gpu_labels.honors_partitions))
            special |= columns.must_honour_partitions[rows] | (~columns.lists_partitions[rows] & (labelled != 0))
        if demand.trusts_planned_layout:
            special |= columns.well_planned[rows]
        if demand.gpu is not None and demand.hint(wire.GPU).scope:
            special |= ~columns.has_gpu_topology[rows]
        return special

    def _apply_card_counts(self, device_request: PodDeviceRequest, rows: Rows, counted: Bools, codes: Codes) -> None:
        """Set the codes of rows with too few cards. The messages and the order of types are those of the allocator."""
        assert device_request.card_counts is not None
        columns, demand = self._columns, device_request.demand
        for kind in demand.requests:
            none = counted & (codes == 0) & (columns.types[kind].count[rows] == 0)
            if none.any():
                codes[none] = device_request.code(Reject((insufficient_devices(kind),), resolvable=False))
        for kind, (each, count) in device_request.card_counts.items():
            short = counted & (codes == 0) & (columns.types[kind].count_fitting_cards(rows, each) < count)
            scope = demand.hint(kind).scope
            if short.any():
                if kind == wire.GPU and not (demand.gpu is not None and demand.gpu.shared and count > 1):
                    codes[short & columns.has_gpu_topology[rows]] = device_request.code(
                        Reject((NO_GPU_IN_SCOPE if scope else NO_GPU,))
                    )
                    short &= ~columns.has_gpu_topology[rows]
                codes[short] = device_request.code(Reject((insufficient_devices(kind),)))
            if scope:  # enough cards may still be too far apart, which is reported before the types that follow
                return


def _read_gpu_labels(node: NodeInfo) -> GpuNodeLabels:
    return parse_gpu_labels(node.labels)


class NodeDeviceScorer:
    """Scores nodes by their devices."""

    def __init__(self, columns: DeviceColumns, scorer: DeviceScorer) -> None:
        self._columns = columns
        self._scorer = scorer

    def score(self, device_request: PodDeviceRequest, node_devices: NodeDevices) -> int:
        return node_devices.memoized(
            ("score", device_request.id),
            lambda: self.score_with_reusable(device_request, node_devices, node_devices.counted_twice_amounts()),
        )

    def score_with_reusable(
        self, device_request: PodDeviceRequest, node_devices: NodeDevices, reusable: DeviceAmounts
    ) -> int:
        """Score a node; `reusable` is what others hold and the pod may use all the same."""
        return score_node_devices(
            node_devices.ledger, device_request.demand, self._scorer, DeviceConstraints(reusable=reusable)
        )

    def score_column(self, device_request: PodDeviceRequest, rows: Rows, numbers: RowList, told: CodedColumn) -> Scores:
        """Score many rows. `numbers`: the row numbers. `told`: the node facts, which do not matter for scores."""
        columns = self._columns
        columns.refresh()
        scores = np.zeros(len(numbers), np.int64)
        if device_request.card_counts is None or device_request.demand.trusts_planned_layout:
            there = np.flatnonzero(columns.has_device[rows])
            scores[there] = columns.evaluate_by_situation(
                numbers[there], told, lambda node_devices, _: self.score(device_request, node_devices)
            )
            return scores
        complete = columns.has_device[rows]
        for kind, (each, _) in device_request.card_counts.items():
            cards = columns.types[kind]
            scores += cards.scores(rows, each, self._scorer)
            complete = complete & (cards.count[rows] > 0)
        return scores * complete
