"""What can happen to quotas, and what follows from it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from koord.policy.quota.amount import Counts
from koord.policy.quota.claimant import Claimant
from koord.policy.quota.definition import Quota
from koord.policy.quota.refusal import Refusal


class QuotaSeen(msgspec.Struct, frozen=True):
    """The watch shows the quota so, for the first time or changed."""

    quota: Quota


class QuotaGone(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class Requested(msgspec.Struct, frozen=True):
    """The pod exists so, for the first time or changed. A pod that has ended is Released."""

    pod: Claimant


class Assigned(msgspec.Struct, frozen=True):
    """A place was chosen for the pod, though no server confirmed it yet."""

    uid: str


class Unassigned(msgspec.Struct, frozen=True):
    """That place was given up again."""

    uid: str


class Released(msgspec.Struct, frozen=True):
    """The pod ended or is gone."""

    uid: str


class TotalChanged(msgspec.Struct, frozen=True):
    """What all nodes together can hold."""

    total: Counts


class Refused(msgspec.Struct, frozen=True):
    """A pod was told to wait. Only remembered, for the quota's statement."""

    pod: str  # namespace/name
    quota: str
    refusal: Refusal
    at: float


Event: TypeAlias = QuotaSeen | QuotaGone | Requested | Assigned | Unassigned | Released | TotalChanged | Refused


class Eased(msgspec.Struct, frozen=True):
    """Pods that were refused in these trees may pass now. `check` tells exactly which."""

    trees: frozenset[str]
    cause: Event


Effect: TypeAlias = Eased
