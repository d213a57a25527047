"""Reservation schedules a Reservation like a pod that holds its room, and gives that room to its owners."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from koord.api.annotations import operating_pod, reservation_allocated
from koord.api.annotations.reservation_allocated import ReservationAllocated
from koord.api.config.scheduler.reservation import ReservationArgs
from koord.api.custom import RESERVATIONS
from koord.api.koord_scheduling import ALIGNED, AVAILABLE, Reservation
from koord.api.protocol import (
    A_RESERVATION_ALLOCATED,
    A_RESERVATION_NAME,
    A_RESERVATION_NODE,
    L_OPERATING_MODE,
    RESERVATION_ERROR_PREFIX,
)
from koord.policy.reservation import diagnosis
from koord.policy.reservation.fit import (
    NO_MATCH,
    POLICY_CONFLICT,
    WRONG_NODE,
    filter_node,
    filter_reserve_pod,
)
from koord.policy.reservation.fit import (
    Refused as Against,
)
from koord.policy.reservation.holding import invalidity
from koord.policy.reservation.lifecycle import Impossible, Placed, WriteStatus, step
from koord.policy.reservation.nomination import score
from koord.policy.reservation.pre_allocation import NO_CANDIDATE, NONE_FITS
from koord.policy.reservation.room import Ignored, Room
from koord.policy.reservation.standing import Standing
from koord.policy.reservation.writing import status_patch
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.decision import Futile, Preempt
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.refused import Refused
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Only, Reject, Skip, reject, unresolvable
from koord.scheduler.framework.work import Errand, Mark, Stand, Takeover, Work, Write
from koord.scheduler.plugins.reservation.book import Book, held
from koord.scheduler.plugins.reservation.claim import Claim, Reserving
from koord.scheduler.plugins.reservation.ledgers import LEDGERS, takes
from koord.scheduler.plugins.reservation.pre_allocation import Over, barred
from koord.scheduler.plugins.reservation.preemption import ReservationPreemption
from koord.scheduler.plugins.reservation.worth import Worth, raw
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import EVERY, NodeTable, Rows
from koord.scheduler.state.wire import PODS

_OVER = "Reservation over pods"  # the key of the pre-allocation candidates in the cycle state
_NO_MATCH = unresolvable(NO_MATCH)
_WRONG_NODE = unresolvable(WRONG_NODE)
_CONFLICT = unresolvable(POLICY_CONFLICT)
_CODES = (None, _NO_MATCH, _WRONG_NODE, _CONFLICT)


class ReservationPlugin(Plugin):
    name = "Reservation"
    reserves_as_it_filters = True
    scope = ROW  # the cache marks the rows where something changed
    wakes_on = (
        Event("Pod", DELETE),
        Event("Reservation", ADD),
        Event("Reservation", UPDATE),
        Event("Reservation", DELETE),
    )
    normaliser = Worth()

    def __init__(
        self, args: ReservationArgs, handle: Handle, *, omit_node_labels: bool = False, clean_owners: bool = False
    ) -> None:
        """Take defaulted arguments. `clean_owners`: remove the annotation of a deleted Reservation from its owners."""
        self.args = args
        self.clean_owners = clean_owners
        self.book = handle.state.derived(Book)
        self.book.omit_node_labels |= omit_node_labels
        self.book.attach(handle)
        self._handle = handle
        self._ledgers: tuple[Plugin, ...] = ()
        self._ignored = Ignored(frozenset(args.ignored_resources), frozenset(args.ignored_resource_groups))
        self._preemption = ReservationPreemption(args, handle) if args.enable_preemption else None

    def meet(self, plugins: Sequence[Plugin]) -> None:
        self._ledgers = tuple(plugin for plugin in plugins if plugin.name in LEDGERS)

    # Which pods are alike, and what wakes them -------------------------------------------------------------------

    def signature(self, pod: PodInfo) -> Hashable:
        if pod.reserve or (L_OPERATING_MODE in pod.labels and operating_pod.is_reservation(pod.labels)):
            return self._reserving(pod)
        interest = self.book.interest(pod)
        return None if interest is None else interest.token

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        if happened.event.kind == "Pod" or pod.reserve:
            return True
        interest = self.book.interest(pod)
        if interest is None or happened.new is None:
            return False
        holding = self.book.register.holding(happened.new.metadata.uid)
        return (
            holding is not None and holding.available and (interest.seeker.ignores or holding.is_for(interest.seeker))
        )

    def _reserving(self, pod: PodInfo) -> Reserving:
        if not pod.reserve:
            return Reserving("", ALIGNED)
        known = self.book.reservations.get(pod.uid)
        if known is None:
            return Reserving("", "", "the reservation is gone")
        pinned = pod.annotations.get(A_RESERVATION_NODE, "")
        invalid, attempt = invalidity(known) or "", ""
        if known.spec.pre_allocation:
            invalid = invalid or barred(known, self.args.pre_allocation_config)
            attempt = f"{pod.uid} {self.book.state.table.position}"
        return Reserving(pinned, known.spec.allocate_policy, invalid, attempt)

    # Before nodes are looked at ----------------------------------------------------------------------------------

    def before_pre_filter(self, cycle: Cycle, pod: PodInfo) -> PodInfo | Reject | Fault | None:
        if pod.reserve or (L_OPERATING_MODE in pod.labels and operating_pod.is_reservation(pod.labels)):
            reserving = self._reserving(pod)
            cycle.keep(self.name, reserving)
            if reserving.attempt and not reserving.invalid:
                known = self.book.reservations[pod.uid]
                over = Over(known, self.book.state, self.args.pre_allocation_config)
                cycle.keep(_OVER, over)
                cycle.restored = over
            return None
        interest = self.book.interest(pod)
        if interest is None:
            return None
        if interest.fault:
            return Fault(interest.fault)
        if interest.by_node or interest.seeker.affinity is not None:
            cycle.reserved = interest.reserved
            cycle.restored = interest
            cycle.keep(self.name, Claim(interest, pod, self.book.register, self._ignored))
        return None

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        kept = cycle.kept.get(self.name)
        if kept is None:
            return SKIP
        if isinstance(kept, Reserving):
            over = cycle.kept.get(_OVER)
            if isinstance(over, Over) and over.required:
                return Only(frozenset(over.candidates)) if over.candidates else unresolvable(NO_CANDIDATE)
            return unresolvable(kept.invalid) if kept.invalid else None
        assert isinstance(kept, Claim)
        if kept.seeker.affinity is None:
            return None
        if not kept.interest.by_node:
            return _NO_MATCH
        # The nodes are those of `cycle.restored`, which stay right while reservations come and go.
        cycle.narrowed_by = tuple(sorted({*cycle.narrowed_by, self.name}))
        return None

    def resettle(self, other: PodInfo, node: NodeInfo) -> None:
        """Return what a removed owner used to its reservation, and not to whoever looks for room."""
        register = self.book.register
        part = register.occupant(other.uid)
        standing = register.get(part.reservation) if part is not None else None
        holder = node.pods.get(standing.holding.uid) if standing is not None else None
        if standing is not None and holder is not None:
            node.remove(holder.uid)
            node.add(holder.holding(held(register.with_parts(standing, node.pods), holder)))

    # Filter ------------------------------------------------------------------------------------------------------

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        kept = cycle.kept.get(self.name)
        if isinstance(kept, Reserving):
            room = Room(node=node.name, allocatable={}, standings=self.book.register.on(node.name))
            against = _told(filter_reserve_pod(kept.pinned, kept.policy, room))
            over = cycle.kept.get(_OVER)
            if against is None and isinstance(over, Over) and over.required and not over.chosen(node):
                return reject(NONE_FITS)
            return against
        assert isinstance(kept, Claim)
        matched = kept.matched(node)
        if not matched:
            return None if kept.seeker.affinity is None else _NO_MATCH
        return _told(filter_node(kept.seeker, matched, kept.room(node, matched), ignored=self._ignored))

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        """Return the codes of rows without a reservation for the pod: the others are filtered one by one, as it sees
        them.
        """
        codes = np.zeros(table.size, np.int32)
        kept = cycle.kept.get(self.name)
        if isinstance(kept, Claim):
            if kept.seeker.affinity is not None:
                codes[:] = 1
            return codes[rows]
        assert isinstance(kept, Reserving)
        index = table.index
        for name in self.book.register.nodes:
            node = index.get(name)
            if node is not None and self.filter(cycle, pod, node) is not None:
                codes[node.row] = 3
        if kept.pinned:
            there = index.get(kept.pinned)
            others = np.ones(table.size, np.bool_)
            if there is not None:
                others[there.row] = False
            codes[others] = 2
        return codes if rows is EVERY else codes[rows]

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        found = _CODES[code]
        assert found is not None
        return found

    # No node takes it --------------------------------------------------------------------------------------------

    def post_filter(self, cycle: Cycle, pod: PodInfo, refused: Refused) -> Preempt | Futile | Fault | None:
        way = self._preemption.post_filter(cycle, pod, refused) if self._preemption is not None else None
        if isinstance(way, Preempt | Fault):
            return way
        if pod.reserve:  # no other plugin may preempt for it
            return way if way is not None else Futile((), final=True, nominate="")
        reasons = tuple(self._reasons(pod, refused))
        if way is None:
            return Futile(reasons) if reasons else None
        return msgspec.structs.replace(way, reasons=(*way.reasons, *reasons))

    def _reasons(self, pod: PodInfo, refused: Refused) -> Sequence[str]:
        interest = self.book.interest(pod)
        if interest is None or interest.fault or interest.seeker.ignores:
            return ()
        tallies: dict[str, diagnosis.Tally] = {}
        node_reasons: dict[str, Sequence[str]] = {}
        for name, standings in self.book.register.candidates(interest.seeker).items():
            tallies[name] = diagnosis.Tally.of(interest.answer(standing, name) for standing in standings)
            node = refused.table.index.get(name)
            said = refused.said_of(node) if node is not None and node.node is not None else None
            node_reasons[name] = said[1].reasons if said is not None and refused.judgement is not None else ()
        return diagnosis.reasons(tallies, node_reasons, has_affinity=interest.seeker.affinity is not None)

    def failed(self, pod: PodInfo, message: str, rejectors: frozenset[str]) -> Takeover | None:
        if pod.reserve:
            self.book.said(pod, message, None)
            return Takeover(silent=True)
        self.book.waiting.put(pod)
        if RESERVATION_ERROR_PREFIX in message:
            interest = self.book.interest(pod)
            if interest is not None and interest.seeker.affinity is not None:
                self.book.said(pod, message, diagnosis.event_text(message))
        return None

    # Score -------------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        kept = cycle.kept.get(self.name)
        if isinstance(kept, Claim):
            return SKIP if kept.seeker.ignores else None
        return None if _OVER in cycle.kept else SKIP

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        kept = cycle.kept.get(self.name)
        if not isinstance(kept, Claim):
            return cycle.of(_OVER, Over).worth(node)
        nominated = kept.nominated(node)
        return 0 if nominated is None else raw(nominated, score(kept.seeker, nominated))

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        over = cycle.kept.get(_OVER)
        plain = 100 if isinstance(over, Over) and over.demand.several else 0
        return np.full(len(table.alive[rows]), plain, np.int64)

    # After the choice --------------------------------------------------------------------------------------------

    def nominate(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        kept = cycle.kept.get(self.name)
        over = cycle.kept.get(_OVER)
        if isinstance(over, Over):
            cycle.taken_over[pod.uid] = tuple(one.uid for one in over.chosen(node) or ())
        if not isinstance(kept, Claim):
            return None
        told = {reserved.uid: reserved for reserved in cycle.reserved.get(node.name, ())}

        def also(standing: Standing) -> bool:
            reserved = told.get(standing.holding.uid)
            return reserved is not None and takes(ledgers, cycle, pod, node, reserved)

        ledgers = [ledger for ledger in self._ledgers if ledger.name not in cycle.skip_filter]
        nominated = kept.nominated(node, also if ledgers else None)
        if nominated is None:
            return _NO_MATCH if kept.seeker.affinity is not None and not kept.seeker.ignores else None
        if nominated.holding.uid not in told:
            return Fault(f"nobody holds room for reservation {nominated.holding.name}")
        cycle.nominated[pod.uid] = told[nominated.holding.uid]
        return None

    def reserve(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        over = cycle.kept.get(_OVER)
        if isinstance(over, Over):
            for other in over.holders(node):
                self.book.take(other, pod.uid, node.name)
            return None
        reserved = cycle.nominated.get(pod.uid)
        if reserved is None:
            return None
        against = self.book.register.refusal_to_take(reserved.uid)
        if against is not None:
            return Fault(against)
        self.book.take(pod, reserved.uid, node.name)
        return None

    def unreserve(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        if not pod.reserve:
            self.book.give_back(pod.uid)
            return
        for other in self._unmarked(pod.uid):
            self.book.give_back(other.uid)

    def _unmarked(self, reservation: str) -> list[PodInfo]:
        """Return the running pods that are to become owners of a reservation and are not annotated yet."""
        placed = (self.book.state.placed(uid) for uid in self.book.register.parts(reservation))
        return [pod for pod in placed if pod is not None and A_RESERVATION_ALLOCATED not in pod.annotations]

    def pre_bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> Work | Reject | Fault | None:
        if pod.reserve:
            return self._mark_owners(pod)
        part = self.book.register.occupant(pod.uid)
        standing = self.book.register.get(part.reservation) if part is not None else None
        if standing is None:
            kept = cycle.kept.get(self.name)
            insists = isinstance(kept, Claim) and kept.seeker.affinity is not None and not kept.seeker.ignores
            return _NO_MATCH if insists else None
        allocated = ReservationAllocated(name=standing.holding.name, uid=standing.holding.uid)
        return Mark({A_RESERVATION_ALLOCATED: reservation_allocated.dump(allocated)})

    def _mark_owners(self, pod: PodInfo) -> Errand | None:
        """Annotate the owners. A pod that was replaced is not written to: the server rejects another uid."""
        name = pod.annotations[A_RESERVATION_NAME]
        note = {A_RESERVATION_ALLOCATED: reservation_allocated.dump(ReservationAllocated(name=name, uid=pod.uid))}
        writes = tuple(
            Write(PODS, other.namespace, other.name, {"metadata": {"uid": other.uid, "annotations": note}})
            for other in self._unmarked(pod.uid)
        )
        return Errand(writes, 0.0, lambda: True) if writes else None

    def bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> Work | Stand | Skip | Reject | Fault | None:
        if not pod.reserve:
            return SKIP
        return Stand(
            resource=RESERVATIONS,
            namespace="",
            name=pod.annotations[A_RESERVATION_NAME],
            uid=pod.uid,
            change=lambda there: self._placed(there, node_name),
            done=lambda there: there.status.phase == AVAILABLE and there.status.node_name == node_name,
        )

    def _placed(self, there: Reservation, node_name: str) -> dict[str, Any] | Fault:
        if there.metadata.deletion_timestamp is not None:
            return Fault("the reservation is being deleted")
        now = datetime.fromtimestamp(self._handle.now(), UTC)
        (effect,) = step(there, Placed(node_name), now)
        if isinstance(effect, Impossible):
            return Fault(effect.why)
        assert isinstance(effect, WriteStatus)
        return status_patch(there.status, effect.status)


def _told(against: Against | None) -> Reject | None:
    return None if against is None else Reject(against.reasons, against.resolvable)
