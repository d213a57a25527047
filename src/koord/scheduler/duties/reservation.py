"""Keep Reservations up to date: owners and their usage, expiry, the end of those that were used, and garbage collection.

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

from koord.api.custom import RESERVATIONS
from koord.api.koord_scheduling import Reservation
from koord.api.part import ObjectReference
from koord.api.protocol import A_RESERVATION_ALLOCATED
from koord.kube.noise import QuietLog
from koord.kube.outage import OUTAGE
from koord.kube.refused import Refused
from koord.policy.reservation import condition
from koord.policy.reservation.lifecycle import Delete, Effect, HeldBy, LookAgain, Looked, NotPlaced, WriteStatus, step
from koord.policy.reservation.writing import status_patch
from koord.scheduler.duties.duty import Duty, Post
from koord.scheduler.plugins.reservation import ReservationPlugin
from koord.scheduler.shell.teller import about_pod
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import PODS

_LOG = logging.getLogger(__name__)

# The time of day may jump, so nobody sleeps longer than this on what it says.
_LONGEST_S = 15.0
_RETRY_S = 1.0
_AT_A_TIME = 16
# Kubernetes' limit of what an event may say.
_NOTE_BYTES = 1024


class ReservationKeeper:
    """Reconcile Reservations, and record why pods could not use theirs."""
    name: ClassVar[str] = "reservation keeper"

    def __init__(self, post: Post) -> None:
        plugin = post.plugins[0]
        assert isinstance(plugin, ReservationPlugin)
        args = plugin.args
        self._book = plugin.book
        self._post = post
        self._client, self._clock = post.client, post.clock
        self._keep = None if args.disable_garbage_collection else timedelta(seconds=args.gc_duration_seconds)
        self._sweep_s = float(args.gc_interval_seconds)
        self._lister = post.handle.lister(RESERVATIONS)
        self._due: dict[str, None] = {}  # names to look at
        self._later: dict[str, float] = {}  # when to look again, in seconds since 1970
        self._alarms: list[tuple[float, str]] = []  # a heap of the same; those that no longer hold are passed over
        self._nodes_seen = float("-inf")
        self._leftovers: dict[str, PodInfo] | None = {} if plugin.clean_owners else None  # owners to be cleaned
        self._work = asyncio.Event()
        self._quiet = QuietLog(_LOG, post.clock)
        self.writes = 0
        self._lister.on_change(self._seen)
        self._book.watch(self._changed)

    # What is to be looked at -------------------------------------------------------------------------------------

    def _seen(self, old: Reservation | None, new: Reservation | None) -> None:
        if new is None and old is not None:
            self._later.pop(old.metadata.name, None)
            self._due.pop(old.metadata.name, None)
            self._left_behind(old.metadata.uid)
        elif new is not None:
            self._mark(new.metadata.name)

    def _changed(self, uid: str) -> None:
        known = self._book.reservations.get(uid)
        if known is not None:
            self._mark(known.metadata.name)
        elif uid in self._book.remarks:
            self._work.set()

    def _left_behind(self, uid: str) -> None:
        if self._leftovers is not None:
            placed = (self._post.handle.state.placed(owner) for owner in self._book.register.parts(uid))
            self._leftovers.update({pod.uid: pod for pod in placed if pod is not None})
            self._work.set()

    def _mark(self, name: str) -> None:
        self._due[name] = None
        self._work.set()

    async def run(self) -> None:
        swept = self._clock.monotonic()
        self._sweep()
        while True:
            self._tell()
            self._wake_late()
            if self._leftovers and not await self._clean(self._leftovers):
                await self._clock.sleep(_RETRY_S)
                continue
            if self._due and not await self._look_at_all():
                await self._clock.sleep(_RETRY_S)
                continue
            if not self._due:
                await self._rest()
            if self._clock.monotonic() - swept >= self._sweep_s:
                swept = self._clock.monotonic()
                self._sweep()

    def _sweep(self) -> None:
        for reservation in self._lister.list():
            self._mark(reservation.metadata.name)

    def _wake_late(self) -> None:
        """Enqueue the Reservations whose time is up, and now and then those whose node is gone."""
        now = self._clock.time()
        while self._alarms and self._alarms[0][0] <= now:
            at, name = heappop(self._alarms)
            if self._later.get(name) == at:
                del self._later[name]
                self._due[name] = None
        if self._clock.monotonic() - self._nodes_seen < _LONGEST_S:
            return
        self._nodes_seen = self._clock.monotonic()
        for name in self._book.register.nodes:
            if self._post.handle.state.node(name) is None:
                self._due.update(dict.fromkeys(standing.holding.name for standing in self._book.register.on(name)))

    async def _rest(self) -> None:
        longest = self._alarms[0][0] - self._clock.time() if self._alarms else _LONGEST_S
        try:
            async with asyncio.timeout(min(max(longest, 0.0), _LONGEST_S)):
                await self._work.wait()
        except TimeoutError:
            return
        finally:
            self._work.clear()

    async def _look_at_all(self) -> bool:
        names = list(self._due)[:_AT_A_TIME]
        for name in names:
            del self._due[name]
        done = await asyncio.gather(*(self._look_at(name) for name in names))
        return all(done)

    # One of them -------------------------------------------------------------------------------------------------

    async def _look_at(self, name: str) -> bool:
        reservation = self._lister.get("", name)
        if reservation is None:
            return True
        fine = True
        for effect in self._effects(reservation):
            if isinstance(effect, LookAgain):
                self._remind(name, effect.at.timestamp())
            elif isinstance(effect, WriteStatus):
                fine = await self._write(reservation, effect) and fine
            elif isinstance(effect, Delete):
                fine = await self._delete(reservation, effect) and fine
        if not fine:
            self._due[name] = None
        return fine

    def _remind(self, name: str, at: float) -> None:
        if self._later.get(name) != at:
            self._later[name] = at
            heappush(self._alarms, (at, name))

    def _effects(self, reservation: Reservation) -> Sequence[Effect]:
        now = datetime.fromtimestamp(self._clock.time(), UTC)
        uid = reservation.metadata.uid
        message = self._book.failures.pop(uid, None)
        if message is not None and not reservation.status.node_name:
            self._post.recorder.record(
                _about(reservation), "Warning", "FailedScheduling", _short(message), action="Scheduling"
            )
            known = condition.find(reservation.status.conditions, condition.SCHEDULED)
            if known is None or known.message != message or known.reason != condition.UNSCHEDULABLE:
                return step(reservation, NotPlaced(message), now)
        node = reservation.status.node_name
        looked = Looked(
            node_exists=self._post.handle.state.node(node) is not None if node else None,
            owners=self._owners(uid, node),
            keep_ended=self._keep,
        )
        return step(reservation, looked, now)

    def _owners(self, uid: str, node: str) -> tuple[HeldBy, ...]:
        """Return the bound owners of a reservation; assumed ones may still be undone."""
        state = self._post.handle.state
        found = []
        for pod_uid, part in self._book.register.parts(uid).items():
            pod = state.placed(pod_uid)
            if pod is not None and part.node == node == pod.node_name and not state.is_assumed(pod_uid):
                found.append(HeldBy(namespace=pod.namespace, name=pod.name, uid=pod.uid, requests=part.requests))
        return tuple(found)

    async def _write(self, reservation: Reservation, effect: WriteStatus) -> bool:
        meta = reservation.metadata
        patch = {
            "metadata": {"resourceVersion": meta.resource_version},
            "status": status_patch(reservation.status, effect.status),
        }
        try:
            answer = await self._client.patch(
                RESERVATIONS, meta.name, patch, kind="merge", subresource="status", uid=meta.uid
            )
        except OUTAGE as outage:
            self._quiet.warning("the status of reservation %s is not written: %s", meta.name, outage)
            return False
        if isinstance(answer, Refused):
            if answer.conflict or answer.not_found:  # the watch will show what came between
                return not answer.conflict
            self._quiet.warning("the status of reservation %s is not written: %s", meta.name, answer)
            return False
        self.writes += 1
        _LOG.info("reservation %s: %s", meta.name, effect.why)
        return True

    async def _delete(self, reservation: Reservation, effect: Delete) -> bool:
        meta = reservation.metadata
        try:
            answer = await self._client.delete(RESERVATIONS, meta.name, uid=meta.uid)
        except OUTAGE as outage:
            self._quiet.warning("reservation %s is not deleted: %s", meta.name, outage)
            return False
        if isinstance(answer, Refused) and not (answer.not_found or answer.conflict):
            self._quiet.warning("reservation %s is not deleted: %s", meta.name, answer)
            return False
        _LOG.info("reservation %s is deleted: %s", meta.name, effect.why)
        return True

    async def _clean(self, leftovers: dict[str, PodInfo]) -> bool:
        """Remove the allocated annotation from pods whose Reservation is gone; return False to retry."""
        patch = {"metadata": {"annotations": {A_RESERVATION_ALLOCATED: None}}}
        for uid, pod in list(leftovers.items()):
            try:
                answer = await self._client.patch(PODS, pod.name, patch, pod.namespace, kind="merge", uid=uid)
            except OUTAGE as outage:
                self._quiet.warning("pod %s is not cleaned of its reservation: %s", pod.key, outage)
                return False
            if isinstance(answer, Refused) and not (answer.not_found or answer.conflict):
                self._quiet.warning("pod %s is not cleaned of its reservation: %s", pod.key, answer)
                return False
            leftovers.pop(uid, None)
        return True

    # Pods that asked for a reservation ---------------------------------------------------------------------------

    def _tell(self) -> None:
        remarks = self._book.remarks
        while remarks:
            _, (pod, note) = remarks.popitem()
            self._post.recorder.record(
                about_pod(pod), "Warning", "FailedScheduling-Reservation", _short(note), action="Scheduling"
            )


def _about(reservation: Reservation) -> ObjectReference:
    meta = reservation.metadata
    return ObjectReference(api_version=RESERVATIONS.api_version, kind=RESERVATIONS.kind, name=meta.name, uid=meta.uid)


def _short(text: str) -> str:
    return text if len(text) <= _NOTE_BYTES else f"{text[: _NOTE_BYTES - 4]} ..."


def keeper(post: Post) -> Sequence[Duty]:
    return (ReservationKeeper(post),)
