"""A pod as reservations see it: who it is, what it requests, and which reservations it accepts; and owner matching."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from koord.api.annotations import reservation_affinity, reservation_exact_match
from koord.api.annotations.codec import Malformed
from koord.api.annotations.reservation_affinity import ReservationAffinity
from koord.api.annotations.reservation_options import ignores_reservations
from koord.api.meta import OwnerReference

Counts: TypeAlias = Mapping[str, int]

API_VERSION = "v1"  # of every pod


class Seeker(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's request to reservations. `affinity` None: any reservation will do, and none as well."""

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str] = {}
    owners: tuple[OwnerReference, ...] = ()
    requests: Counts = {}
    affinity: ReservationAffinity | None = None
    exact: tuple[str, ...] = ()  # resources of which it wants neither more nor less
    ignores: bool = False  # may use what is reserved and not taken, without becoming an owner

    @staticmethod
    def of(
        *,
        uid: str,
        namespace: str,
        name: str,
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
        owners: tuple[OwnerReference, ...],
        requests: Counts,
    ) -> Seeker | Malformed:
        affinity = reservation_affinity.parse(annotations)
        if isinstance(affinity, Malformed):
            return affinity
        exact = reservation_exact_match.parse(annotations)
        if isinstance(exact, Malformed):
            return exact
        return Seeker(
            uid=uid,
            namespace=namespace,
            name=name,
            labels=labels,
            owners=owners,
            requests=requests,
            affinity=affinity,
            exact=exact.resource_names if exact is not None else (),
            ignores=ignores_reservations(labels),
        )

    @property
    def named(self) -> str:
        """Return the reservation that the pod requests by name."""
        return self.affinity.name if self.affinity is not None else ""
