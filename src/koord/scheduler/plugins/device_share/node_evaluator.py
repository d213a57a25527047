"""This module filters and scores nodes by their devices: one node exactly, or all of them as a column.

A column counts the cards that would fit, which decides most nodes at once. Where it matters which cards
these are, a trial allocation runs once for all nodes in the same situation.

DeviceTrial tries to allocate devices for one pod on one node: those that reservations hold for it first, the
node's own as the fallback.

The ledger counts both a reservation and the pods inside it. Returning the pods' part once, and what is
left of the reservation to its owners, makes the sum right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from koord.api.koordinator import scheduling as wire
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Bools, CodedColumn, NodeTable, RowList, Rows
from koord.scheduler.framework.plugin import Codes, Scores
from koord.scheduler.framework.reservation import MatchedReservation
from koord.scheduler.framework.verdict import Reject
from koord.scheduler.plugins.device_share import device_amounts
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices, DeviceAllocateOptions, allocate_devices
from koord.scheduler.plugins.device_share.device_amounts import NO_DEVICE_AMOUNTS, DeviceAmounts, DeviceScorer
from koord.scheduler.plugins.device_share.device_columns import DeviceColumns
from koord.scheduler.plugins.device_share.gpu_selection import GpuNodeLabels, check_gpu_sharing, parse_gpu_labels
from koord.scheduler.plugins.device_share.node_devices import NO_CONSTRAINTS, DeviceConstraints, NodeDevices
from koord.scheduler.plugins.device_share.refusal import (
    NO_GPU,
    NO_GPU_IN_SCOPE,
    RESERVATION_PREFIX,
    DeviceNearMiss,
    DeviceRefusal,
    DeviceRefusalCode,
    insufficient_devices,
)
from koord.scheduler.plugins.device_share.request_cache import PodDeviceRequest, to_reject
from koord.scheduler.plugins.device_share.selection import score_node_devices
from koord.values.bitmask import BitMask

RESTRICTED = "Restricted"
DEFAULT_OPTIONS = DeviceAllocateOptions()


class DeviceTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial allocation. `reserved`: usable reservations on the node. `options`: how to choose among cards."""

    node_devices: NodeDevices
    device_request: PodDeviceRequest
    gpu_labels: GpuNodeLabels
    reserved: Sequence[MatchedReservation] = ()
    needs_reservation: bool = False  # only a reservation will do
    taken_over: DeviceAmounts = (
        NO_DEVICE_AMOUNTS  # of running pods that will live in what it gets: all of it must be in there
    )
    options: DeviceAllocateOptions = DEFAULT_OPTIONS

    def try_placement(self, zones: BitMask | None = None, card: int | None = None) -> DevicePlacement | DeviceRefusal:
        """Allocate within the NUMA nodes `zones`. `card`: the only GPU that may be taken."""
        terms = NO_CONSTRAINTS if zones is None else DeviceConstraints(zones=zones)
        if card is not None:
            only = {wire.GPU: {card: self.node_devices.inventory.of_type(wire.GPU)[card].total}}
            terms = msgspec.structs.replace(terms, required=only)
        if self.device_request.designated is not None:
            terms = msgspec.structs.replace(terms, required=self.device_request.designated)
        if self.taken_over:
            asked = {
                kind: held for kind, held in self.taken_over.items() if kind in self.device_request.demand.requests
            }
            matched = (ReservedDevices(uid="", devices=asked, taken_over=True),) if asked else ()
            twice = self.node_devices.counted_twice_amounts()
            return allocate_with_reservations(
                ReusableDevices(double_counted=twice, matched=matched, required=bool(matched)), self._attempt, terms
            )
        if self.reserved:
            return allocate_with_reservations(self._reusable(), self._attempt, terms)
        twice = self.node_devices.counted_twice_amounts()
        if twice:
            terms = msgspec.structs.replace(terms, reusable=twice)
        found = self._attempt(terms)
        return found if isinstance(found, DeviceRefusal) else DevicePlacement(found)

    def try_allocation(self, zones: BitMask | None = None, card: int | None = None) -> AllocatedDevices | DeviceRefusal:
        found = self.try_placement(zones, card)
        return found if isinstance(found, DeviceRefusal) else found.allocation

    def near_miss(self) -> DeviceNearMiss | None:
        """Return how far the node is from serving the pod; None when it serves it."""
        found = self.try_allocation()
        return found.nearest if isinstance(found, DeviceRefusal) else None

    def reusable(self) -> DeviceAmounts:
        """Return what others hold and the pod may use all the same, if it allocates from the node."""
        return self._reusable().offered_by_node() if self.reserved else self.node_devices.counted_twice_amounts()

    def _attempt(self, terms: DeviceConstraints) -> AllocatedDevices | DeviceRefusal:
        return allocate_devices(
            self.node_devices.ledger, self.device_request.demand, self.gpu_labels, terms, self.options
        )

    def _reusable(self) -> ReusableDevices:
        node_devices, inside = self.node_devices, self.node_devices.used_in_reservations()
        return ReusableDevices(
            double_counted=node_devices.counted_twice_amounts(frozenset(one.uid for one in self.reserved)),
            matched=tuple(
                ReservedDevices(
                    uid=one.uid,
                    devices=held,
                    allocated=inside.get(one.uid, NO_DEVICE_AMOUNTS),
                    restricted=one.policy == RESTRICTED,
                )
                for one in self.reserved
                if (held := node_devices.allocated_to(one.reserve_pod.uid)) is not None
            ),
            required=self.needs_reservation,
            ignores_reservations=self.device_request.ignores_reservations,
        )


AllocationAttempt: TypeAlias = Callable[[DeviceConstraints], AllocatedDevices | DeviceRefusal]


class ReservedDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one reservation that the pod may use, or of a pod whose devices a reservation takes over."""

    uid: str
    devices: DeviceAmounts
    allocated: DeviceAmounts = NO_DEVICE_AMOUNTS  # by its pods, on its own devices
    preemptible: DeviceAmounts = NO_DEVICE_AMOUNTS  # of its pods that would be evicted
    restricted: bool = False
    taken_over: bool = False

    @property
    def remaining(self) -> DeviceAmounts:
        return device_amounts.remaining(self.devices, self.allocated)


class DevicePlacement(msgspec.Struct, frozen=True):
    allocation: AllocatedDevices
    reservation: str = ""  # UID; empty for the node's own devices


class ReusableDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is not simply free. `double_counted`: held by pods inside others' reservations, and victims."""

    double_counted: DeviceAmounts = NO_DEVICE_AMOUNTS
    matched: Sequence[ReservedDevices] = ()
    required: bool = False  # the pod must use a reservation
    ignores_reservations: bool = False  # the pod may take what is reserved as if it were free

    def offered_by_node(self) -> DeviceAmounts:
        """Return what the node can offer when all matched reservations are opened."""
        total = self.double_counted
        for one in self.matched:
            total = device_amounts.add(device_amounts.add(total, one.allocated), one.remaining)
        return total


def allocate_with_reservations(
    reusable: ReusableDevices, attempt: AllocationAttempt, terms: DeviceConstraints
) -> DevicePlacement | DeviceRefusal:
    """Allocate from the first reservation, by UID, that serves, otherwise from the node. `terms` hold in any case."""
    if reusable.ignores_reservations:
        return _to_placement(attempt(_extend_constraints(terms, reusable.offered_by_node())))
    reasons: list[str] = []
    matched = sorted(reusable.matched, key=lambda one: one.uid)
    shared = reusable.double_counted
    for one in matched:
        shared = device_amounts.add(shared, one.allocated)
    for one in matched:
        found = _allocate_inside(one, shared, attempt, terms)
        if isinstance(found, AllocatedDevices):
            return DevicePlacement(found, one.uid)
        reasons += found.reasons
    if reusable.required:
        return DeviceRefusal(
            DeviceRefusalCode.UNSCHEDULABLE, tuple(dict.fromkeys(RESERVATION_PREFIX + reason for reason in reasons))
        )
    return _to_placement(attempt(_extend_constraints(terms, reusable.offered_by_node())))


def _allocate_inside(
    one: ReservedDevices, shared: DeviceAmounts, attempt: AllocationAttempt, terms: DeviceConstraints
) -> AllocatedDevices | DeviceRefusal:
    remained = one.remaining
    offered = device_amounts.add(device_amounts.add(shared, remained), one.preemptible)
    if one.taken_over:  # all of its devices, whichever they are
        included = {kind: frozenset(minors) for kind, minors in one.devices.items()}
        return attempt(msgspec.structs.replace(_extend_constraints(terms, offered), included=included))
    if not one.restricted:
        return attempt(_extend_constraints(terms, offered, preferred=remained))
    inside = device_amounts.add(remained, device_amounts.limited_to(one.preemptible, one.devices))
    # A device of which nothing is left stays in the map with nothing: absent would mean that it is unrestricted.
    required = {
        kind: {minor: inside.get(kind, {}).get(minor, {}) for minor in minors} for kind, minors in one.devices.items()
    }
    return attempt(_extend_constraints(terms, offered, required=required))


def _extend_constraints(
    terms: DeviceConstraints,
    reusable: DeviceAmounts,
    *,
    required: DeviceAmounts | None = None,
    preferred: DeviceAmounts = NO_DEVICE_AMOUNTS,
) -> DeviceConstraints:
    return msgspec.structs.replace(
        terms,
        reusable=device_amounts.add(terms.reusable, reusable),
        required=terms.required if required is None else required,
        preferred={kind: frozenset(minors) for kind, minors in preferred.items()} or terms.preferred,
    )


def _to_placement(found: AllocatedDevices | DeviceRefusal) -> DevicePlacement | DeviceRefusal:
    return found if isinstance(found, DeviceRefusal) else DevicePlacement(found)


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
