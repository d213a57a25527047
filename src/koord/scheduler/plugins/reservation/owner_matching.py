"""A pod as reservations see it: who it is, what it requests, and which reservations it accepts; and owner matching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from koord.api.annotations import reservation_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.reservation_codecs import ReservationAffinity, ignores_reservations
from koord.api.koordinator.scheduling import ReservationControllerReference, ReservationOwner
from koord.api.kubernetes.meta import OwnerReference, label_selector_as_selector
from koord.api.model import ObjectReference
from koord.values.amounts import Counts
from koord.values.selector import Operator, Selector

API_VERSION = "v1"  # of every pod


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


class OwnerMatcher(msgspec.Struct, frozen=True, kw_only=True):
    """One owner condition. All that is stated must hold; an empty condition matches every pod."""

    object: ObjectReference | None = None
    controller: ReservationControllerReference | None = None
    selector: Selector | None = None

    @staticmethod
    def from_spec(owner: ReservationOwner) -> OwnerMatcher:
        """Compile the condition. Raises SelectorError."""
        labels = owner.label_selector
        return OwnerMatcher(
            object=owner.object,
            controller=owner.controller,
            selector=None if labels is None else label_selector_as_selector(labels),
        )

    def matches(self, pod: ReservationRequest) -> bool:
        if self.object is not None and not _is_object(self.object, pod):
            return False
        if self.controller is not None and not _controls(self.controller, pod):
            return False
        return self.selector is None or self.selector.matches(pod.labels)

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


def _is_object(wanted: ObjectReference, pod: ReservationRequest) -> bool:
    """Return whether the pod is the referenced object. The kind is not checked: only pods can be owners."""
    return (
        (not wanted.uid or wanted.uid == pod.uid)
        and (not wanted.name or wanted.name == pod.name)
        and (not wanted.namespace or wanted.namespace == pod.namespace)
        and (not wanted.api_version or wanted.api_version == API_VERSION)
    )


def _controls(wanted: ReservationControllerReference, pod: ReservationRequest) -> bool:
    if wanted.namespace and wanted.namespace != pod.namespace:
        return False
    return any(_refers_to(wanted, owner) for owner in pod.owners)


def _refers_to(wanted: ReservationControllerReference, owner: OwnerReference) -> bool:
    return (
        (not wanted.controller or owner.controller)
        and (not wanted.uid or wanted.uid == owner.uid)
        and (not wanted.name or wanted.name == owner.name)
        and (not wanted.kind or wanted.kind == owner.kind)
        and (not wanted.api_version or wanted.api_version == owner.api_version)
    )
