"""A pod as reservations see it: who it is, what it requests, and which reservations it accepts; and owner matching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from koord.api.annotations import reservation_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.reservation_codecs import ReservationAffinity, ignores_reservations
from koord.api.kubernetes.meta import OwnerReference
from koord.policy.reservation_owner import OwnerCondition
from koord.values.resources import Counts
from koord.values.selector import Operator


class ReservationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's request to reservations. `affinity` None: any reservation will do, and none as well."""

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str] = {}
    owners: tuple[OwnerReference, ...] = ()
    requests: Counts = {}
    affinity: ReservationAffinity | None = None
    exact_resources: tuple[str, ...] = ()  # resources of which it wants neither more nor less
    ignores_reservations: bool = False  # may use what is reserved and not taken, without becoming an owner

    @staticmethod
    def from_pod(
        *,
        uid: str,
        namespace: str,
        name: str,
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
        owners: tuple[OwnerReference, ...],
        requests: Counts,
    ) -> ReservationRequest | MalformedAnnotation:
        affinity = reservation_codecs.parse_reservation_affinity(annotations)
        if isinstance(affinity, MalformedAnnotation):
            return affinity
        exact = reservation_codecs.parse_exact_match_reservation(annotations)
        if isinstance(exact, MalformedAnnotation):
            return exact
        return ReservationRequest(
            uid=uid,
            namespace=namespace,
            name=name,
            labels=labels,
            owners=owners,
            requests=requests,
            affinity=affinity,
            exact_resources=exact.resource_names if exact is not None else (),
            ignores_reservations=ignores_reservations(labels),
        )

    @property
    def requested_name(self) -> str:
        """Return the reservation that the pod requests by name."""
        return self.affinity.name if self.affinity is not None else ""


# Something that a pod has and the condition demands. Pods and conditions that share no key cannot match.
OwnerKey: TypeAlias = tuple[str, ...]
ANYONE: OwnerKey = ("anyone",)

_PINNING_OPERATORS = (Operator.EQUALS, Operator.DOUBLE_EQUALS, Operator.IN)


class OwnerMatcher(OwnerCondition, frozen=True, kw_only=True):
    """One owner condition, with the keys by which the index finds it."""

    def index_keys(self) -> tuple[OwnerKey, ...]:
        """Return the keys of the most selective demand; several when any of several values will do."""
        if self.object is not None:
            if self.object.uid:
                return (("uid", self.object.uid),)
            if self.object.name:
                return (("name", self.object.name),)
        if self.controller is not None:
            if self.controller.uid:
                return (("controller-uid", self.controller.uid),)
            if self.controller.name:
                return (("controller", self.controller.name),)
        if self.selector is not None:
            if self.selector.matches_nothing:
                return ()
            pinned = [r for r in self.selector.requirements if r.operator in _PINNING_OPERATORS]
            if pinned:
                fewest = min(pinned, key=lambda r: len(r.values))
                return tuple(("label", fewest.key, value) for value in fewest.values)
        if self.object is not None and self.object.namespace:
            return (("namespace", self.object.namespace),)
        if self.controller is not None and self.controller.namespace:
            return (("namespace", self.controller.namespace),)
        return (ANYONE,)


def owner_keys_of_pod(pod: ReservationRequest) -> Iterator[OwnerKey]:
    """Yield every key under which a reservation for this pod can be indexed."""
    yield ANYONE
    yield ("uid", pod.uid)
    yield ("name", pod.name)
    yield ("namespace", pod.namespace)
    for owner in pod.owners:
        yield ("controller-uid", owner.uid)
        yield ("controller", owner.name)
    for key, value in pod.labels.items():
        yield ("label", key, value)
