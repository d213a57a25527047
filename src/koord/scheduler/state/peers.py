"""Pods of one namespace with equal labels: to every label selector they are one. Counted by `tally`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from koord.scheduler.state.tally import Tally


class Peers:
    """`memo` is where plugins keep what they derive from a namespace and labels; it goes when the last such pod does.

    `rows` says where the placed ones are, `ending` the part of them that is being deleted, `tallies` who counts them.
    The three belong to the tallies of the cluster state.
    """

    __slots__ = ("__weakref__", "ending", "labels", "memo", "namespace", "placed", "rows", "tallies")

    def __init__(self, namespace: str, labels: Mapping[str, str]) -> None:
        self.namespace = namespace
        self.labels = labels
        self.memo: dict[Hashable, Any] = {}
        self.placed = 0
        self.rows: dict[int, int] = {}
        self.ending: dict[int, int] = {}
        self.tallies: list[Tally] = []

    def __repr__(self) -> str:
        return f"Peers({self.namespace}, {dict(self.labels)}, {self.placed} placed)"


class Crowd:
    """One Peers for each namespace and label set that some pod has."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, Peers] = WeakValueDictionary()

    def of(self, namespace: str, labels: Mapping[str, str]) -> Peers:
        key = (namespace, frozenset(labels.items()))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Peers(namespace, labels)
        return known

    def __len__(self) -> int:
        return len(self._known)
