"""Match pods against the owners of a reservation, with the index key under which candidates are found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from koord.api.koord_scheduling import ReservationControllerReference, ReservationOwner
from koord.api.meta import OwnerReference
from koord.api.part import ObjectReference
from koord.policy.reservation.seeker import API_VERSION, Seeker
from koord.values.requirement import Operator
from koord.values.selector import Selector

# Something that a pod has and the condition demands. Pods and conditions that share no key cannot match.
Key: TypeAlias = tuple[str, ...]
ANYONE: Key = ("anyone",)

_PINS = (Operator.EQUALS, Operator.DOUBLE_EQUALS, Operator.IN)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """One owner condition. All that is stated must hold; an empty condition matches every pod."""

    object: ObjectReference | None = None
    controller: ReservationControllerReference | None = None
    selector: Selector | None = None

    @staticmethod
    def of(owner: ReservationOwner) -> Owner:
        """Compile the condition. Raises SelectorError."""
        labels = owner.label_selector
        return Owner(
            object=owner.object,
            controller=owner.controller,
            selector=None
            if labels is None
            else Selector.of(labels.match_labels, ((e.key, e.operator, e.values) for e in labels.match_expressions)),
        )

    def matches(self, pod: Seeker) -> bool:
        if self.object is not None and not _is(self.object, pod):
            return False
        if self.controller is not None and not _controls(self.controller, pod):
            return False
        return self.selector is None or self.selector.matches(pod.labels)

    def index_keys(self) -> tuple[Key, ...]:
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
            if self.selector.nothing:
                return ()
            pinned = [r for r in self.selector.requirements if r.operator in _PINS]
            if pinned:
                fewest = min(pinned, key=lambda r: len(r.values))
                return tuple(("label", fewest.key, value) for value in fewest.values)
        if self.object is not None and self.object.namespace:
            return (("namespace", self.object.namespace),)
        if self.controller is not None and self.controller.namespace:
            return (("namespace", self.controller.namespace),)
        return (ANYONE,)


def keys_of(pod: Seeker) -> Iterator[Key]:
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


def _is(wanted: ObjectReference, pod: Seeker) -> bool:
    """Return whether the pod is the referenced object. The kind is not checked: only pods can be owners."""
    return (
        (not wanted.uid or wanted.uid == pod.uid)
        and (not wanted.name or wanted.name == pod.name)
        and (not wanted.namespace or wanted.namespace == pod.namespace)
        and (not wanted.api_version or wanted.api_version == API_VERSION)
    )


def _controls(wanted: ReservationControllerReference, pod: Seeker) -> bool:
    if wanted.namespace and wanted.namespace != pod.namespace:
        return False
    return any(_refers(wanted, owner) for owner in pod.owners)


def _refers(wanted: ReservationControllerReference, owner: OwnerReference) -> bool:
    return (
        (not wanted.controller or owner.controller)
        and (not wanted.uid or wanted.uid == owner.uid)
        and (not wanted.name or wanted.name == owner.name)
        and (not wanted.kind or wanted.kind == owner.kind)
        and (not wanted.api_version or wanted.api_version == owner.api_version)
    )
