"""This module computes what a coordination.k8s.io/v1 Lease means for one candidate: who leads, until when, and
what to write. It is pure.

Three numbers keep two candidates from leading at once, whatever their clocks show. A holder trusts its
lease for `renew_deadline_s` from the moment it *sent* the last write that succeeded. Others wait the
lease's own duration from the moment they first *saw* that write. Both are measured on the measurer's own
monotonic clock, and sending comes before seeing; so clocks may differ in rate by duration / deadline (1.5
as configured here) before the two meet.
"""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime
from typing import Any, Literal

import msgspec

from koord.api.kubernetes.coordination import Lease
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
    """LeaderElectionRecord holds the fields of a Lease that election is about. Other fields may change without
    renewing it.
    """

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
