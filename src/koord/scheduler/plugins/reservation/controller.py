"""Keep Reservations up to date: owners and their usage, expiry, the end of used ones, and garbage collection.

What is to be done is decided by the policy from what the watch shows; it is written only where it differs. A
Reservation is reconciled when it changes, when an owner comes or goes, when its time is up, and periodically.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import ClassVar

from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.protocol import A_RESERVATION_ALLOCATED
from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.model import ObjectReference
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS
from koord.scheduler.controller import SchedulerController, SchedulerControllerContext
from koord.scheduler.plugins.reservation import lifecycle
from koord.scheduler.plugins.reservation.plugin import ReservationPlugin
from koord.scheduler.status_reporter import event_subject_of

_LOG = logging.getLogger(__name__)

# The time of day may jump, so nobody sleeps longer than this on what it says.
_MAX_SLEEP_S = 15.0
_RETRY_S = 1.0
_UNSERVED_AFTER = timedelta(seconds=5)
_MAX_CONCURRENT_SYNCS = 16
# Kubernetes' limit of what an event may say.
_NOTE_BYTES = 1024


class ReservationController:
    """Reconcile Reservations, and record why pods could not use theirs."""

    name: ClassVar[str] = "reservation keeper"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("scheduling.koordinator.sh", ("reservations",), (*READ_VERBS, "delete")),
        RbacRule("scheduling.koordinator.sh", ("reservations/status",), ("patch",)),
        RbacRule("", ("pods",), ("patch",)),  # pods whose Reservation is gone,
    )

    def __init__(self, context: SchedulerControllerContext) -> None:
        plugin = context.plugins[0]
        assert isinstance(plugin, ReservationPlugin)
        args = plugin.args
        self._cache = plugin.cache
        self._scheduler_names = sorted(p.scheduler_name for p in context.plugins if isinstance(p, ReservationPlugin))
        self._context = context
        self._client, self._clock = context.client, context.clock
        self._gc_after = None if args.disable_garbage_collection else timedelta(seconds=args.gc_duration_seconds)
        self._resync_s = float(args.gc_interval_seconds)
        self._lister = context.handle.lister(RESERVATIONS)
        self._queue: dict[str, None] = {}  # names to look at
        self._requeue_at: dict[str, float] = {}  # when to look again, in seconds since 1970
        self._requeue_heap: list[
            tuple[float, str]
        ] = []  # a heap of the same; those that no longer hold are passed over
        self._nodes_seen = float("-inf")
        self._leftovers: dict[str, PodInfo] | None = {} if plugin.clean_owners else None  # owners to be cleaned
        self._wakeup = asyncio.Event()
        self._quiet = RateLimitedLog(_LOG, context.clock)
        self.writes = 0
        self._lister.on_change(self._on_reservation)
        self._cache.on_change(self._on_cache_change)

    # What is to be looked at -------------------------------------------------------------------------------------

    def _on_reservation(self, old: Reservation | None, new: Reservation | None) -> None:
        if new is None and old is not None:
            self._requeue_at.pop(old.metadata.name, None)
            self._queue.pop(old.metadata.name, None)
            self._add_leftovers(old.metadata.uid)
        elif new is not None:
            self._enqueue(new.metadata.name)

    def _on_cache_change(self, uid: str) -> None:
        known = self._cache.reservations.get(uid)
        if known is not None:
            self._enqueue(known.metadata.name)
        elif uid in self._cache.pending_events:
            self._wakeup.set()

    def _add_leftovers(self, uid: str) -> None:
        if self._leftovers is not None:
            placed = (self._context.handle.state.placed_pod(owner) for owner in self._cache.register.owner_pods(uid))
            self._leftovers.update({pod.uid: pod for pod in placed if pod is not None})
            self._wakeup.set()

    def _enqueue(self, name: str) -> None:
        self._queue[name] = None
        self._wakeup.set()

    async def run(self) -> None:
        swept = self._clock.monotonic()
        self._enqueue_all()
        while True:
            self._record_events()
            self._enqueue_due()
            if self._leftovers and not await self._remove_allocated_annotations(self._leftovers):
                await self._clock.sleep(_RETRY_S)
                continue
            if self._queue and not await self._reconcile_batch():
                await self._clock.sleep(_RETRY_S)
                continue
            if not self._queue:
                await self._wait_for_work()
            if self._clock.monotonic() - swept >= self._resync_s:
                swept = self._clock.monotonic()
                self._enqueue_all()

    def _enqueue_all(self) -> None:
        for reservation in self._lister.list():
            self._enqueue(reservation.metadata.name)

    def _enqueue_due(self) -> None:
        """Enqueue the Reservations whose time is up, and now and then those whose node is gone."""
        now = self._clock.time()
        while self._requeue_heap and self._requeue_heap[0][0] <= now:
            at, name = heappop(self._requeue_heap)
            if self._requeue_at.get(name) == at:
                del self._requeue_at[name]
                self._queue[name] = None
        if self._clock.monotonic() - self._nodes_seen < _MAX_SLEEP_S:
            return
        self._nodes_seen = self._clock.monotonic()
        for name in self._cache.register.nodes:
            if self._context.handle.state.node(name) is None:
                self._queue.update(dict.fromkeys(usage.info.name for usage in self._cache.register.on_node(name)))

    async def _wait_for_work(self) -> None:
        longest = self._requeue_heap[0][0] - self._clock.time() if self._requeue_heap else _MAX_SLEEP_S
        try:
            async with asyncio.timeout(min(max(longest, 0.0), _MAX_SLEEP_S)):
                await self._wakeup.wait()
        except TimeoutError:
            return
        finally:
            self._wakeup.clear()

    async def _reconcile_batch(self) -> bool:
        names = list(self._queue)[:_MAX_CONCURRENT_SYNCS]
        for name in names:
            del self._queue[name]
        done = await asyncio.gather(*(self._reconcile(name) for name in names))
        return all(done)

    # One of them -------------------------------------------------------------------------------------------------

    async def _reconcile(self, name: str) -> bool:
        reservation = self._lister.get("", name)
        if reservation is None:
            return True
        fine = True
        for effect in self._effects(reservation):
            if isinstance(effect, lifecycle.RequeueReservationAt):
                self._enqueue_at(name, effect.at.timestamp())
            elif isinstance(effect, lifecycle.WriteReservationStatus):
                fine = await self._write(reservation, effect) and fine
            elif isinstance(effect, lifecycle.DeleteReservation):
                fine = await self._delete(reservation, effect) and fine
        if not fine:
            self._queue[name] = None
        return fine

    def _enqueue_at(self, name: str, at: float) -> None:
        if self._requeue_at.get(name) != at:
            self._requeue_at[name] = at
            heappush(self._requeue_heap, (at, name))

    def _effects(self, reservation: Reservation) -> Sequence[lifecycle.LifecycleEffect]:
        now = datetime.fromtimestamp(self._clock.time(), UTC)
        uid = reservation.metadata.uid
        message = self._cache.failure_messages.pop(uid, None)
        if message is not None and not reservation.status.node_name:
            self._record_failure(reservation, message)
            known = lifecycle.find_condition(reservation.status.conditions, lifecycle.SCHEDULED_CONDITION)
            if known is None or known.message != message or known.reason != lifecycle.UNSCHEDULABLE_REASON:
                return lifecycle.step(reservation, lifecycle.ReservationNotPlaced(message), now)
        unserved = lifecycle.unserved_message(reservation, self._scheduler_names)
        if unserved:
            return self._report_unserved(reservation, unserved, now)
        node = reservation.status.node_name
        looked = lifecycle.ReservationObserved(
            node_exists=self._context.handle.state.node(node) is not None if node else None,
            owners=self._owners(uid, node),
            keep_ended=self._gc_after,
        )
        return lifecycle.step(reservation, looked, now)

    def _report_unserved(
        self, reservation: Reservation, message: str, now: datetime
    ) -> Sequence[lifecycle.LifecycleEffect]:
        """Say that nobody schedules a Reservation, once and only after another scheduler had time to take it."""
        created = reservation.metadata.creation_timestamp or now
        if now < created + _UNSERVED_AFTER:
            return (lifecycle.RequeueReservationAt(created + _UNSERVED_AFTER),)
        self._record_failure(reservation, message)
        return lifecycle.step(reservation, lifecycle.ReservationNotPlaced(message), now)

    def _record_failure(self, reservation: Reservation, message: str) -> None:
        about, note = _reservation_reference(reservation), _truncate_note(message)
        template = reservation.spec.template
        scheduler = template.spec.scheduler_name if template is not None else ""
        recorder = self._context.recorders.get(scheduler, self._context.recorder)
        recorder.record(about, "Warning", "FailedScheduling", note, action="Scheduling")

    def _owners(self, uid: str, node: str) -> tuple[lifecycle.CurrentOwner, ...]:
        """Return the bound owners of a reservation; assumed ones may still be undone."""
        state = self._context.handle.state
        found = []
        for pod_uid, part in self._cache.register.owner_pods(uid).items():
            pod = state.placed_pod(pod_uid)
            if pod is not None and part.node == node == pod.node_name and not state.is_assumed(pod_uid):
                found.append(
                    lifecycle.CurrentOwner(namespace=pod.namespace, name=pod.name, uid=pod.uid, requests=part.requests)
                )
        return tuple(found)

    async def _write(self, reservation: Reservation, effect: lifecycle.WriteReservationStatus) -> bool:
        meta = reservation.metadata
        patch = {
            "metadata": {"resourceVersion": meta.resource_version},
            "status": lifecycle.status_patch(reservation.status, effect.status),
        }
        try:
            answer = await self._client.patch_object(
                RESERVATIONS, reservation, patch, kind="merge", subresource="status"
            )
        except TRANSIENT_ERRORS as outage:
            self._quiet.warning("the status of reservation %s is not written: %s", meta.name, outage)
            return False
        if isinstance(answer, ApiError):
            if answer.conflict or answer.not_found:  # the watch will show what came between
                return not answer.conflict
            self._quiet.warning("the status of reservation %s is not written: %s", meta.name, answer)
            return False
        self.writes += 1
        _LOG.info("reservation %s: %s", meta.name, effect.why)
        return True

    async def _delete(self, reservation: Reservation, effect: lifecycle.DeleteReservation) -> bool:
        meta = reservation.metadata
        try:
            answer = await self._client.delete(RESERVATIONS, meta.name, uid=meta.uid)
        except TRANSIENT_ERRORS as outage:
            self._quiet.warning("reservation %s is not deleted: %s", meta.name, outage)
            return False
        if isinstance(answer, ApiError) and not (answer.not_found or answer.conflict):
            self._quiet.warning("reservation %s is not deleted: %s", meta.name, answer)
            return False
        _LOG.info("reservation %s is deleted: %s", meta.name, effect.why)
        return True

    async def _remove_allocated_annotations(self, leftovers: dict[str, PodInfo]) -> bool:
        """Remove the allocated annotation from pods whose Reservation is gone; return False to retry."""
        patch = {"metadata": {"annotations": {A_RESERVATION_ALLOCATED: None}}}
        for uid, pod in list(leftovers.items()):
            try:
                answer = await self._client.patch(PODS, pod.name, patch, pod.namespace, kind="merge", uid=uid)
            except TRANSIENT_ERRORS as outage:
                self._quiet.warning("pod %s is not cleaned of its reservation: %s", pod.key, outage)
                return False
            if isinstance(answer, ApiError) and not (answer.not_found or answer.conflict):
                self._quiet.warning("pod %s is not cleaned of its reservation: %s", pod.key, answer)
                return False
            leftovers.pop(uid, None)
        return True

    # Pods that asked for a reservation ---------------------------------------------------------------------------

    def _record_events(self) -> None:
        remarks = self._cache.pending_events
        while remarks:
            _, (pod, note) = remarks.popitem()
            self._context.recorders.get(pod.scheduler, self._context.recorder).record(
                event_subject_of(pod),
                "Warning",
                "FailedScheduling-Reservation",
                _truncate_note(note),
                action="Scheduling",
            )


def _reservation_reference(reservation: Reservation) -> ObjectReference:
    meta = reservation.metadata
    return ObjectReference(api_version=RESERVATIONS.api_version, kind=RESERVATIONS.kind, name=meta.name, uid=meta.uid)


def _truncate_note(text: str) -> str:
    return text if len(text) <= _NOTE_BYTES else f"{text[: _NOTE_BYTES - 4]} ..."


def reservation_controllers(context: SchedulerControllerContext) -> Sequence[SchedulerController]:
    return (ReservationController(context),)
