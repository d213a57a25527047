"""This module holds coordination.k8s.io/v1 Lease, used for leader election and node heartbeats."""

from __future__ import annotations

from datetime import datetime

from koord.api.kubernetes.meta import Object
from koord.api.model import Submodel


class LeaseSpec(Submodel, frozen=True, kw_only=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True, kw_only=True):
    spec: LeaseSpec = LeaseSpec()
