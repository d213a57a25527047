"""Leader election over one coordination.k8s.io/v1 Lease: what the Lease means for one candidate (pure), and the
candidate that acquires it, works while holding it, stops before another may acquire it, and releases it.

It is compatible with client-go's leader election: both may compete for one Lease.

Three numbers keep two candidates from leading at once, whatever their clocks show. A holder trusts its lease for
`renew_deadline_s` from the moment it *sent* the last write that succeeded. Others wait the lease's own duration
from the moment they first *saw* that write. Both are measured on the measurer's own monotonic clock, and sending
comes before seeing; so clocks may differ in rate by duration / deadline (1.5 as configured here) before the two
meet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine
from datetime import datetime
from random import Random
from typing import Any, Literal, TypeVar

import msgspec

from koord.api.koordinator.protocol import NAMESPACE
from koord.api.kubernetes.builtin_kinds import LEASES
from koord.api.kubernetes.node import Lease
from koord.api.kubernetes.rbac import RbacRule
from koord.api.model import convert
from koord.kube.client.request_builder import Unstructured
from koord.kube.client.typed_client import Client
from koord.kube.rate_limit import RateLimitedLog, jitter
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock, now
from koord.values import timestamp


class LeaseConfig(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    identity: str  # unique to the process: a host name alone is shared by the next process on that host
    duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0
    jitter: float = 1.2  # how much longer than `retry_s` a candidate may wait between looks

    def __post_init__(self) -> None:
        if not self.identity:
            raise ValueError(f"lease {self.namespace}/{self.name}: a candidate needs an identity")
        if not self.duration_s > self.renew_deadline_s > self.jitter * self.retry_s > 0:
            raise ValueError(
                f"lease {self.namespace}/{self.name}: need duration > renew deadline > jitter * retry > 0, got "
                f"{self.duration_s} s, {self.renew_deadline_s} s, {self.jitter} * {self.retry_s} s"
            )


class LeaderElectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """LeaderElectionRecord holds the fields of a Lease for election. Others may change without renewing it."""

    holder: str = ""
    duration_s: int = 0
    acquired_at: datetime | None = None
    renewed_at: datetime | None = None
    transitions: int = 0


def record_from_lease(lease: Lease) -> LeaderElectionRecord:
    spec = lease.spec
    return LeaderElectionRecord(
        holder=spec.holder_identity or "",
        duration_s=spec.lease_duration_seconds or 0,
        acquired_at=spec.acquire_time,
        renewed_at=spec.renew_time,
        transitions=spec.lease_transitions or 0,
    )


class ObservedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """ObservedRecord is a record and when this candidate first saw it in this state, on its own monotonic clock."""

    record: LeaderElectionRecord
    since: float

    def observe(self, record: LeaderElectionRecord, now: float) -> ObservedRecord:
        return self if record == self.record else ObservedRecord(record=record, since=now)

    def is_expired(self, now: float) -> bool:
        return now >= self.since + self.record.duration_s


LeaseOwnership = Literal["free", "mine", "taken"]


def lease_ownership(
    observed: ObservedRecord, identity: str, own_acquire_times: Container[datetime | None], now: float
) -> LeaseOwnership:
    """Return whether the lease may be taken. `own_acquire_times` are the acquire times that this process wrote.

    The identity alone does not make a lease ours: a process that died under the same name may still be ending
    its work.
    """
    record = observed.record
    if not record.holder:
        return "free"
    if record.holder == identity and record.acquired_at in own_acquire_times:
        return "mine"
    return "free" if observed.is_expired(now) else "taken"


def acquired_record(record: LeaderElectionRecord | None, config: LeaseConfig, moment: datetime) -> LeaderElectionRecord:
    """Return the record that makes `config.identity` the holder; `record` is what is there now."""
    return LeaderElectionRecord(
        holder=config.identity,
        duration_s=config.duration_s,
        acquired_at=moment,
        renewed_at=moment,
        transitions=0 if record is None else record.transitions + 1,
    )


def renewed_record(record: LeaderElectionRecord, config: LeaseConfig, moment: datetime) -> LeaderElectionRecord:
    return msgspec.structs.replace(record, duration_s=config.duration_s, renewed_at=moment)


def released_record(record: LeaderElectionRecord, moment: datetime) -> LeaderElectionRecord:
    """Return a record without holder that even readers of times alone find expired within a second."""
    return LeaderElectionRecord(duration_s=1, acquired_at=moment, renewed_at=moment, transitions=record.transitions)


def lease_spec(record: LeaderElectionRecord) -> dict[str, Any]:
    """Return the JSON spec for a create or a merge patch; fields that are not about election are left as they are."""
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.duration_s,
        "acquireTime": None if record.acquired_at is None else timestamp.micro_text(record.acquired_at),
        "renewTime": None if record.renewed_at is None else timestamp.micro_text(record.renewed_at),
        "leaseTransitions": record.transitions,
    }


T = TypeVar("T")

_LOG = logging.getLogger(__name__)

ElectionEnd = Literal["lost", "finished"]


def lease_rules(name: str) -> tuple[RbacRule, ...]:
    """Return the RBAC rules to lead by the lease of this name in the product's namespace."""
    return (
        RbacRule("coordination.k8s.io", ("leases",), ("create",), namespace=NAMESPACE),  # a name cannot limit this verb
        RbacRule("coordination.k8s.io", ("leases",), ("get", "update"), names=(name,), namespace=NAMESPACE),
    )


class LeaderElector:
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
        self._limited_log = RateLimitedLog(_LOG, clock)
        self._observed: ObservedRecord | None = None
        self._own_acquire_times: set[datetime | None] = set()  # acquire times we wrote: any of them may be in force
        self._held_lease: Unstructured | None = None  # the lease as we last wrote it, while it is ours
        self._safe_until = float("-inf")
        self._working = False
        self._leader = ""

    @property
    def is_leading(self) -> bool:
        """Return whether this process leads now; check it before a write, as a stalled process learns here."""
        return self._working and self._clock.monotonic() < self._safe_until

    @property
    def leader(self) -> str:
        """Return the identity that was last seen to hold the lease, or "" when nobody did."""
        return self._leader

    async def run(self) -> ElectionEnd:
        await self._acquire()
        _LOG.info("%s leads %s", self.config.identity, self.config.name)
        self._working = True
        work = asyncio.create_task(self._on_started(), name=f"leading-{self.config.name}")
        renewing = asyncio.create_task(self._renew(), name=f"renewing-{self.config.name}")
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = work.done()
            await _cancel_and_wait(work)  # renewing goes on: work that takes its time to end is still the leader's work
            await _cancel_and_wait(renewing)
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
        while not await self._with_deadline(self.config.renew_deadline_s, self._try_acquire_or_renew()):
            await self._clock.sleep(jitter(self.config.retry_s, self.config.jitter, self._rng))

    async def _renew(self) -> None:
        """Renew the lease; return when another holds it or may soon."""
        pause = self.config.retry_s
        while True:
            # After a slow answer little may be left: half of it for waiting, half for the next try.
            await self._clock.sleep(min(pause, max(0.0, self._safe_seconds_left() / 2)))
            renewed = False
            while not renewed and self._safe_seconds_left() > 0:
                renewed = bool(await self._with_deadline(self._safe_seconds_left(), self._try_acquire_or_renew()))
                if not renewed and not self._may_hold_lease():
                    self._safe_until = float("-inf")
                    return
                if not renewed:
                    await self._clock.sleep(min(pause, max(0.0, self._safe_seconds_left())))
            if not renewed:
                self._limited_log.warning("lease %s could not be renewed in time", self.config.name)
                return

    def _safe_seconds_left(self) -> float:
        return self._safe_until - self._clock.monotonic()

    def _may_hold_lease(self) -> bool:
        seen = self._observed
        return seen is None or (
            seen.record.holder == self.config.identity and seen.record.acquired_at in self._own_acquire_times
        )

    async def _try_acquire_or_renew(self) -> bool:
        """Try once to acquire or renew; return whether the lease is held, counted from before the write was sent."""
        if self._held_lease is not None and self._observed is not None:
            wanted = renewed_record(self._observed.record, self.config, now(self._clock))
            written = await self._write(wanted, self._held_lease)
            if written is not None:
                return written
        found = await self._client.dynamic.get(LEASES, self.config.name, self.config.namespace)
        if isinstance(found, ApiError):
            return await self._create() if found.not_found else self._failed("read", found)
        moment = self._clock.monotonic()
        record = record_from_lease(convert(found, Lease))
        self._observe(record, moment)
        assert self._observed is not None
        match lease_ownership(self._observed, self.config.identity, self._own_acquire_times, moment):
            case "taken":
                self._held_lease = None
                return False
            case "mine":
                wanted = renewed_record(record, self.config, now(self._clock))
            case "free":
                wanted = acquired_record(record, self.config, now(self._clock))
        return bool(await self._write(wanted, found))

    async def _create(self) -> bool:
        # A lease that vanished under a holder we believe in was deleted by hand, and the holder may not know yet.
        seen = self._observed
        moment = self._clock.monotonic()
        if seen is not None and lease_ownership(seen, self.config.identity, self._own_acquire_times, moment) == "taken":
            return False
        wanted = acquired_record(None, self.config, now(self._clock))
        self._own_acquire_times.add(wanted.acquired_at)
        body = {"metadata": {"name": self.config.name}, "spec": lease_spec(wanted)}
        created = await self._client.dynamic.create(LEASES, body, self.config.namespace)
        if isinstance(created, ApiError):
            return False if created.already_exists else self._failed("create", created)
        return self._record_acquired(created, moment)

    async def _write(self, wanted: LeaderElectionRecord, stored: Unstructured) -> bool | None:
        """Write the record; return whether it was accepted, None when the lease differs from `stored`."""
        self._own_acquire_times.add(wanted.acquired_at)
        sent_at = self._clock.monotonic()
        result = await self._put(wanted, stored)
        if not isinstance(result, ApiError):
            return self._record_acquired(result, sent_at)
        if result.conflict or result.not_found:
            self._held_lease = None
            return None
        return self._failed("write", result)

    async def _put(self, wanted: LeaderElectionRecord, stored: Unstructured) -> Unstructured | ApiError:
        """Replace the lease with every field that others put there.

        Roles that let a program lead allow `update`, as client-go uses it, and often not `patch`. The resource
        version that `stored` carries is the precondition.
        """
        body = {**stored, "spec": {**stored.get("spec", {}), **lease_spec(wanted)}}
        return await self._client.dynamic.replace(LEASES, body, self.config.namespace)

    def _record_acquired(self, written: Unstructured, sent_at: float) -> bool:
        record = record_from_lease(convert(written, Lease))
        self._observe(record, self._clock.monotonic())
        self._held_lease = written
        self._own_acquire_times = {record.acquired_at}
        self._safe_until = max(self._safe_until, sent_at + self.config.renew_deadline_s)
        return self._safe_seconds_left() > 0

    def _observe(self, record: LeaderElectionRecord, moment: float) -> None:
        seen = self._observed
        self._observed = ObservedRecord(record=record, since=moment) if seen is None else seen.observe(record, moment)
        if record.holder != self._leader:
            self._leader = record.holder
            if self._on_new_leader is not None:
                self._on_new_leader(record.holder)

    async def _release(self) -> None:
        """Release the lease, best effort, so that others need not wait for it to expire."""
        if self._held_lease is None or self._observed is None:
            return
        given_back = released_record(self._observed.record, now(self._clock))
        stored, self._held_lease, self._safe_until = self._held_lease, None, float("-inf")
        await self._with_deadline(self.config.renew_deadline_s, self._write_release(given_back, stored))

    async def _write_release(self, given_back: LeaderElectionRecord, stored: Unstructured) -> bool:
        result = await self._put(given_back, stored)
        if isinstance(result, ApiError) and result.conflict:
            # A renewal that was cut short may have been written all the same.
            found = await self._client.dynamic.get(LEASES, self.config.name, self.config.namespace)
            if isinstance(found, ApiError):
                return self._failed("read", found)
            record = record_from_lease(convert(found, Lease))
            if record.holder != self.config.identity or record.acquired_at not in self._own_acquire_times:
                return True  # another holds it by now
            result = await self._put(given_back, found)
        if isinstance(result, ApiError):
            return self._failed("release", result)
        self._observe(given_back, self._clock.monotonic())
        return True

    def _failed(self, what: str, why: object) -> bool:
        self._limited_log.warning("lease %s/%s: %s failed: %s", self.config.namespace, self.config.name, what, why)
        return False

    async def _with_deadline(self, seconds: float, call: Coroutine[Any, Any, T]) -> T | None:
        """Return the call's result, or None when it got no response or took longer by this process' own clock."""
        task = asyncio.ensure_future(call)
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._failed("request", f"no answer within {seconds:.1f} s")
                return None
            return task.result()
        except TRANSIENT_ERRORS as error:
            self._failed("request", error)
            return None
        finally:
            await _cancel_and_wait(timer)
            await _cancel_and_wait(task)


async def _cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end. Its error is logged here, because a cancelled caller never asks for it."""
    running = task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None and running:
        _LOG.error("a task of the election failed while it was ending", exc_info=error)
