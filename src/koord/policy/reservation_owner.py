"""The right of a pod to own a reservation: the owner conditions of a Reservation, compiled and matched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self

import msgspec

from koord.api.koordinator.scheduling import ReservationControllerReference, ReservationOwner
from koord.api.kubernetes.meta import OwnerReference, label_selector_as_selector
from koord.api.model import ObjectReference
from koord.values.selector import Selector

POD_API_VERSION = "v1"


class OwnerCandidate(Protocol):
    """The fields of a pod that owner conditions ask for. An empty uid or name is not known, and meets none that
    states one.
    """

    @property
    def uid(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def owners(self) -> tuple[OwnerReference, ...]: ...


class OwnerCondition(msgspec.Struct, frozen=True, kw_only=True):
    """One owner condition. All that is stated must hold; an empty condition matches every pod."""

    object: ObjectReference | None = None
    controller: ReservationControllerReference | None = None
    selector: Selector | None = None

    @classmethod
    def from_spec(cls, owner: ReservationOwner) -> Self:
        """Compile the condition. Raises SelectorError."""
        labels = owner.label_selector
        return cls(
            object=owner.object,
            controller=owner.controller,
            selector=None if labels is None else label_selector_as_selector(labels),
        )

    def matches(self, pod: OwnerCandidate) -> bool:
        if self.object is not None and not _is_object(self.object, pod):
            return False
        if self.controller is not None and not _controls(self.controller, pod):
            return False
        return self.selector is None or self.selector.matches(pod.labels)


def _is_object(wanted: ObjectReference, pod: OwnerCandidate) -> bool:
    """Return whether the pod is the referenced object. The kind is not checked: only pods can be owners."""
    return (
        (not wanted.uid or wanted.uid == pod.uid)
        and (not wanted.name or wanted.name == pod.name)
        and (not wanted.namespace or wanted.namespace == pod.namespace)
        and (not wanted.api_version or wanted.api_version == POD_API_VERSION)
    )


def _controls(wanted: ReservationControllerReference, pod: OwnerCandidate) -> bool:
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
