"""Events that change quotas, and their effects."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from koord.policy.quota.amount import Counts
from koord.policy.quota.claimant import Claimant
from koord.policy.quota.definition import Quota
from koord.policy.quota.refusal import Refusal


class QuotaSeen(msgspec.Struct, frozen=True):
    """The watch shows the quota, new or changed."""

    quota: Quota


class QuotaGone(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class Requested(msgspec.Struct, frozen=True):
    """The pod exists, new or changed. A pod that has ended is removed instead."""

    pod: Claimant


class Assigned(msgspec.Struct, frozen=True):
    """A node was chosen for the pod and no API server confirmed it yet (assume)."""

    uid: str


class Unassigned(msgspec.Struct, frozen=True):
    """The assumed node was given up again (forget)."""

    uid: str


class Released(msgspec.Struct, frozen=True):
    """The pod ended or was deleted."""

    uid: str


class TotalChanged(msgspec.Struct, frozen=True):
    """The total of all nodes changed."""

    total: Counts


class Refused(msgspec.Struct, frozen=True):
    """A pod was refused. It is only remembered, for the quota's report."""

    pod: str  # namespace/name
    quota: str
    refusal: Refusal
    at: float


Event: TypeAlias = QuotaSeen | QuotaGone | Requested | Assigned | Unassigned | Released | TotalChanged | Refused


class Eased(msgspec.Struct, frozen=True):
    """Pods that were refused in these trees may pass now. The check tells exactly which."""

    trees: frozenset[str]
    cause: Event


Effect: TypeAlias = Eased
