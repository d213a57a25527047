"""Events that change quotas."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from koord.scheduler.plugins.elastic_quota.admission import QuotaRefusal
from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition, QuotaPod
from koord.values.resources import Counts


class QuotaUpdated(msgspec.Struct, frozen=True):
    """The watch shows the quota, new or changed."""

    quota: QuotaDefinition


class QuotaDeleted(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class QuotaPodUpdated(msgspec.Struct, frozen=True):
    """The pod exists, new or changed. A pod that has ended is removed instead."""

    pod: QuotaPod


class QuotaPodAssumed(msgspec.Struct, frozen=True):
    """A node was chosen for the pod and no API server confirmed it yet (assume)."""

    uid: str


class QuotaPodForgotten(msgspec.Struct, frozen=True):
    """The assumed node was given up again (forget)."""

    uid: str


class QuotaPodRemoved(msgspec.Struct, frozen=True):
    """The pod ended or was deleted."""

    uid: str


class ClusterTotalChanged(msgspec.Struct, frozen=True):
    """The total of all nodes changed."""

    total: Counts


class QuotaPodRefused(msgspec.Struct, frozen=True):
    """A pod was refused. It is only remembered, for the quota's report."""

    pod: str  # namespace/name
    quota: str
    refusal: QuotaRefusal
    at: float


QuotaEvent: TypeAlias = (
    QuotaUpdated
    | QuotaDeleted
    | QuotaPodUpdated
    | QuotaPodAssumed
    | QuotaPodForgotten
    | QuotaPodRemoved
    | ClusterTotalChanged
    | QuotaPodRefused
)
