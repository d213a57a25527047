"""This module runs one candidate for a Lease: acquire it, work while holding it, stop before another may
acquire it, and release it.

The rules are in koord.kube.lease. It is compatible with client-go's leader election: both may compete for
one Lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import datetime
from random import Random
from typing import Any, Literal, TypeVar

from koord.api.builtin import LEASES
from koord.api.coordination import Lease
from koord.api.model import convert
from koord.kube import lease
from koord.kube.client import Client
from koord.kube.lease import LeaseConfig, Record, Sighting
from koord.kube.noise import QuietLog
from koord.kube.outage import OUTAGE
from koord.kube.ratelimit import jittered
from koord.kube.refused import Refused
from koord.kube.verb import Plain
from koord.telemetry.clock import Clock, now

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

Ended = Literal["lost", "finished"]


class Election:
    """LeaderElector runs the work while this process leads. `run` returns "lost" when leadership was lost and
    "finished" when the work ended by itself; it may be run again.

    Give it a client of its own: renewals must not queue behind a busy program's rate limit.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        config: LeaseConfig,
        *,
        on_started: Callable[[], Coroutine[Any, Any, None]],
        on_stopped: Callable[[], None] | None = None,
        on_new_leader: Callable[[str], None] | None = None,
        rng: Random | None = None,
    ) -> None:
        """Create a candidate.

        `on_started` is the work: a task that runs while leading and is cancelled when leadership ends. It has the
        time between the renew deadline and the lease's duration to wind down. `on_stopped` is called when it is
        over.
        """
        self.config = config
        self._client = client
        self._clock = clock
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._on_new_leader = on_new_leader
        self._rng = rng or Random()
        self._quiet = QuietLog(_LOG, clock)
        self._sighting: Sighting | None = None
        self._terms: set[datetime | None] = set()  # acquire times we wrote: any of them may be in force
        self._stored: Plain | None = None  # the lease as we last wrote it, while it is ours
        self._safe_until = float("-inf")
        self._working = False
        self._leader = ""

    @property
    def leading(self) -> bool:
        """Return whether this process leads now. Check it before a write that must not be done twice: a stalled
        process learns here that its time is up.
        """
        return self._working and self._clock.monotonic() < self._safe_until

    @property
    def leader(self) -> str:
        """Return the identity that was last seen to hold the lease, or "" when nobody did."""
        return self._leader

    async def run(self) -> Ended:
        await self._acquire()
        _LOG.info("%s leads %s", self.config.identity, self.config.name)
        self._working = True
        work = asyncio.create_task(self._on_started(), name=f"leading-{self.config.name}")
        renewing = asyncio.create_task(self._renew(), name=f"renewing-{self.config.name}")
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = work.done()
            await _end(work)  # renewing goes on: work that takes its time to end is still the leader's work
            await _end(renewing)
            self._working = False
            _LOG.info("%s no longer leads %s", self.config.identity, self.config.name)
            if self._on_stopped is not None:
                self._on_stopped()
            await self._release()
        if not work.cancelled():
            work.result()
        if not renewing.cancelled():
            renewing.result()
        return "finished" if finished else "lost"

    async def _acquire(self) -> None:
        while not await self._within(self.config.renew_deadline_s, self._attempt()):
            await self._clock.sleep(jittered(self.config.retry_s, self.config.jitter, self._rng))

    async def _renew(self) -> None:
        """Renew the lease; return when another holds it or may soon."""
        pause = self.config.retry_s
        while True:
            # After a slow answer little may be left: half of it for waiting, half for the next try.
            await self._clock.sleep(min(pause, max(0.0, self._left() / 2)))
            renewed = False
            while not renewed and self._left() > 0:
                renewed = bool(await self._within(self._left(), self._attempt()))
                if not renewed and not self._may_be_ours():
                    self._safe_until = float("-inf")
                    return
                if not renewed:
                    await self._clock.sleep(min(pause, max(0.0, self._left())))
            if not renewed:
                self._quiet.warning("lease %s could not be renewed in time", self.config.name)
                return

    def _left(self) -> float:
        return self._safe_until - self._clock.monotonic()

    def _may_be_ours(self) -> bool:
        seen = self._sighting
        return seen is None or (seen.record.holder == self.config.identity and seen.record.acquired_at in self._terms)

    async def _attempt(self) -> bool:
        """Try once to acquire or renew; return whether the lease is held, counted from before the write was sent."""
        if self._stored is not None and self._sighting is not None:
            wanted = lease.renewal(self._sighting.record, self.config, now(self._clock))
            written = await self._write(wanted, self._stored)
            if written is not None:
                return written
        found = await self._client.plain.get(LEASES, self.config.name, self.config.namespace)
        if isinstance(found, Refused):
            return await self._create() if found.not_found else self._failed("read", found)
        moment = self._clock.monotonic()
        record = lease.record_of(convert(found, Lease))
        self._see(record, moment)
        assert self._sighting is not None
        match lease.standing(self._sighting, self.config.identity, self._terms, moment):
            case "taken":
                self._stored = None
                return False
            case "mine":
                wanted = lease.renewal(record, self.config, now(self._clock))
            case "free":
                wanted = lease.claim(record, self.config, now(self._clock))
        return bool(await self._write(wanted, found))

    async def _create(self) -> bool:
        # A lease that vanished under a holder we believe in was deleted by hand, and the holder may not know yet.
        seen = self._sighting
        moment = self._clock.monotonic()
        if seen is not None and lease.standing(seen, self.config.identity, self._terms, moment) == "taken":
            return False
        wanted = lease.claim(None, self.config, now(self._clock))
        self._terms.add(wanted.acquired_at)
        body = {"metadata": {"name": self.config.name}, "spec": lease.spec_of(wanted)}
        created = await self._client.plain.create(LEASES, body, self.config.namespace)
        if isinstance(created, Refused):
            return False if created.already_exists else self._failed("create", created)
        return self._won(created, moment)

    async def _write(self, wanted: Record, stored: Plain) -> bool | None:
        """Write the record; return whether it was accepted, or None when the lease differs from `stored` and must be
        read again.
        """
        self._terms.add(wanted.acquired_at)
        sent_at = self._clock.monotonic()
        result = await self._put(wanted, stored)
        if not isinstance(result, Refused):
            return self._won(result, sent_at)
        if result.conflict or result.not_found:
            self._stored = None
            return None
        return self._failed("write", result)

    async def _put(self, wanted: Record, stored: Plain) -> Plain | Refused:
        """Replace the lease with every field that others put there.

        Roles that let a program lead allow `update`, as client-go uses it, and often not `patch`. The resource
        version that `stored` carries is the precondition.
        """
        body = {**stored, "spec": {**stored.get("spec", {}), **lease.spec_of(wanted)}}
        return await self._client.plain.replace(LEASES, body, self.config.namespace)

    def _won(self, written: Plain, sent_at: float) -> bool:
        record = lease.record_of(convert(written, Lease))
        self._see(record, self._clock.monotonic())
        self._stored = written
        self._terms = {record.acquired_at}
        self._safe_until = max(self._safe_until, sent_at + self.config.renew_deadline_s)
        return self._left() > 0

    def _see(self, record: Record, moment: float) -> None:
        seen = self._sighting
        self._sighting = Sighting(record=record, since=moment) if seen is None else seen.seen(record, moment)
        if record.holder != self._leader:
            self._leader = record.holder
            if self._on_new_leader is not None:
                self._on_new_leader(record.holder)

    async def _release(self) -> None:
        """Release the lease, best effort, so that others need not wait for it to expire."""
        if self._stored is None or self._sighting is None:
            return
        given_back = lease.release(self._sighting.record, now(self._clock))
        stored, self._stored, self._safe_until = self._stored, None, float("-inf")
        await self._within(self.config.renew_deadline_s, self._write_release(given_back, stored))

    async def _write_release(self, given_back: Record, stored: Plain) -> bool:
        result = await self._put(given_back, stored)
        if isinstance(result, Refused):
            return self._failed("release", result)
        self._see(given_back, self._clock.monotonic())
        return True

    def _failed(self, what: str, why: object) -> bool:
        self._quiet.warning("lease %s/%s: %s failed: %s", self.config.namespace, self.config.name, what, why)
        return False

    async def _within(self, seconds: float, call: Coroutine[Any, Any, T]) -> T | None:
        """Return the call's result, or None when it failed to get a response or took longer by this process' own
        clock.
        """
        task = asyncio.ensure_future(call)
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._failed("request", f"no answer within {seconds:.1f} s")
                return None
            return task.result()
        except OUTAGE as error:
            self._failed("request", error)
            return None
        finally:
            await _end(timer)
            await _end(task)


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end. Its error is logged here, because a cancelled caller never asks for it."""
    running = task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None and running:
        _LOG.error("a task of the election failed while it was ending", exc_info=error)
