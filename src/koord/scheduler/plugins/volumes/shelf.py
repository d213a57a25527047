"""PvMatcher holds the existing volumes that could serve a claim, and picks one for a node."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from koord.api.affinity import NodeSelector
from koord.api.node import Node
from koord.api.volume import PersistentVolume, PersistentVolumeClaim
from koord.scheduler.plugins.node_selector import Terms
from koord.scheduler.plugins.volumes.choice import is_held_for
from koord.scheduler.plugins.volumes.pins import near_pins
from koord.scheduler.plugins.volumes.stock import Item, kind_of
from koord.scheduler.state.table import Bools, NodeTable, Rows
from koord.values.selector import Selector


class Shelf:
    """The volumes that suit one claim on any node, smallest first; only their node affinity depends on the node."""

    def __init__(
        self,
        claim: PersistentVolumeClaim,
        items: Iterable[Item],
        as_assumed: Callable[[PersistentVolume], PersistentVolume],
    ) -> None:
        """Sort the volumes; `items` are of the claim's class, large enough and in order."""
        selector, kind, modes = selector_of(claim), kind_of(claim), frozenset(claim.spec.access_modes)
        self._held: list[PersistentVolume] = []
        self._free: list[PersistentVolume] = []
        # Places in `_free`, by where they are reached from.
        self._pins: dict[str, dict[str, list[int]]] = {}
        self._others: dict[NodeSelector | None, list[int]] = {}
        for item in items:
            volume = as_assumed(item.volume)
            ref, meta = volume.spec.claim_ref, volume.metadata
            if item.kind != kind or meta.deletion_timestamp is not None:
                continue
            if ref is not None:
                if is_held_for(volume, claim):
                    self._held.append(volume)
            elif item.offered and modes <= item.modes and (selector is None or selector.matches(meta.labels)):
                self._put(item, volume)

    def _put(self, item: Item, volume: PersistentVolume) -> None:
        at = len(self._free)
        self._free.append(volume)
        if item.pin is None:
            self._others.setdefault(item.near, []).append(at)
            return
        key, values = item.pin
        by_value = self._pins.setdefault(key, {})
        for value in values:
            by_value.setdefault(value, []).append(at)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(volume.metadata.name for volume in (*self._held, *self._free))

    @property
    def keys(self) -> frozenset[str] | None:
        """Return the labels that decide which volumes a node reaches; None when labels alone do not decide."""
        near = [volume.spec.node_affinity.required for volume in self._held if volume.spec.node_affinity is not None]
        terms = [term for each in (*near, *self._others) if each is not None for term in each.node_selector_terms]
        if any(term.match_fields for term in terms):
            return None
        return frozenset(self._pins).union(each.key for term in terms for each in term.match_expressions)

    def pick(self, node: Node, taken: Collection[str]) -> PersistentVolume | None:
        """Return the volume for the node. One reserved for the claim is the only candidate, whether the node reaches
        it or not.
        """
        for volume in self._held:
            if volume.metadata.name not in taken:
                near = reach(volume)
                return volume if near is None or near.matches(node) else None
        labels = node.metadata.labels
        found = [
            self._first(by_value.get(labels[key], ()), taken) for key, by_value in self._pins.items() if key in labels
        ]
        for near_by, places in self._others.items():
            if near_by is None or terms_of(near_by).matches(node):
                found.append(self._first(places, taken))
        at = min((place for place in found if place is not None), default=None)
        return None if at is None else self._free[at]

    def reached(self, table: NodeTable, rows: Rows) -> Bools:
        """Return the rows on which a volume would be picked, as long as no other claim took one."""
        everywhere = np.ones(len(table.alive[rows]), np.bool_)
        if self._held:
            near = reach(self._held[0])
            return everywhere if near is None else near.mask(table, rows)
        if None in self._others:
            return everywhere
        mask = near_pins(self._pins, table, rows)
        for near_by in self._others:
            assert near_by is not None
            mask |= terms_of(near_by).mask(table, rows)
        return mask

    def _first(self, places: Sequence[int], taken: Collection[str]) -> int | None:
        return next((at for at in places if self._free[at].metadata.name not in taken), None)


@functools.lru_cache(maxsize=1024)
def terms_of(near: NodeSelector) -> Terms:
    return Terms(near)


def reach(volume: PersistentVolume) -> Terms | None:
    near = volume.spec.node_affinity
    return terms_of(near.required) if near is not None and near.required is not None else None


def selector_of(claim: PersistentVolumeClaim) -> Selector | None:
    """Parse the claim's selector. Raise SelectorError."""
    wanted = claim.spec.selector
    if wanted is None:
        return None
    return Selector.of(wanted.match_labels, ((e.key, e.operator, e.values) for e in wanted.match_expressions))
