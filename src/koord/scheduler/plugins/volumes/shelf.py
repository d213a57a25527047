"""Which existing volumes could serve a claim, and which of them on a given node."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from koord.api.node import Node
from koord.api.part import ResourceList
from koord.api.volume import PersistentVolume, PersistentVolumeClaim
from koord.scheduler.plugins.node_selector import Terms
from koord.scheduler.plugins.volumes.choice import is_held_for
from koord.scheduler.plugins.volumes.claims import class_of
from koord.values.quantity import Quantity
from koord.values.selector import Selector

_FILESYSTEM = "Filesystem"
_NONE = Quantity.from_value(0)


class Candidate(msgspec.Struct, frozen=True):
    volume: PersistentVolume
    size: Quantity
    reach: Terms | None  # None: from everywhere

    def reached_from(self, node: Node) -> bool:
        return self.reach is None or self.reach.matches(node)


class Shelf:
    """The volumes that suit one claim wherever the pod goes, smallest first; only their reach depends on the node."""

    def __init__(self, claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume]) -> None:
        wanted = storage(claim.spec.resources.requests)
        selector = selector_of(claim)
        held: list[Candidate] = []
        free: list[Candidate] = []
        for volume in volumes:
            ref = volume.spec.claim_ref
            if class_of(volume) != class_of(claim) or (ref is not None and not is_held_for(volume, claim)):
                continue
            size = storage(volume.spec.capacity)
            if size < wanted or volume.metadata.deletion_timestamp is not None or not _alike(claim, volume):
                continue
            if ref is not None:
                held.append(Candidate(volume, size, reach(volume)))
            elif _offered(claim, volume, selector):
                free.append(Candidate(volume, size, reach(volume)))
        free.sort(key=lambda each: (each.size, each.volume.metadata.name))
        self._held, self._free = held, free

    def pick(self, node: Node, taken: Collection[str]) -> PersistentVolume | None:
        """A volume that is held for the claim is the only one that will do, reached or not."""
        for candidate in self._held:
            if candidate.volume.metadata.name not in taken:
                return candidate.volume if candidate.reached_from(node) else None
        for candidate in self._free:
            if candidate.volume.metadata.name not in taken and candidate.reached_from(node):
                return candidate.volume
        return None


def reach(volume: PersistentVolume) -> Terms | None:
    near = volume.spec.node_affinity
    return Terms(near.required) if near is not None and near.required is not None else None


def storage(amounts: ResourceList) -> Quantity:
    found = amounts.get("storage")
    return _NONE if found is None else Quantity.parse(found)


def selector_of(claim: PersistentVolumeClaim) -> Selector | None:
    """Raises SelectorError."""
    wanted = claim.spec.selector
    if wanted is None:
        return None
    return Selector.of(wanted.match_labels, ((e.key, e.operator, e.values) for e in wanted.match_expressions))


def _alike(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    if (claim.spec.volume_mode or _FILESYSTEM) != (volume.spec.volume_mode or _FILESYSTEM):
        return False
    return (claim.spec.volume_attributes_class_name or "") == (volume.spec.volume_attributes_class_name or "")


def _offered(claim: PersistentVolumeClaim, volume: PersistentVolume, selector: Selector | None) -> bool:
    if volume.status.phase != "Available" or not set(claim.spec.access_modes) <= set(volume.spec.access_modes):
        return False
    return selector is None or selector.matches(volume.metadata.labels)
