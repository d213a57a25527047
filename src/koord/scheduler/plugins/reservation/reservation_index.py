"""An index of reservations and their owners that finds the reservations for a pod without scanning all of them.

Its content is a function of the live reservations and of the pods that hold a part of one, assumed pods included;
`ReservationIndex.build` makes the same from those alone. `handle` is the only mutator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from koord.api.kubernetes.meta import OwnerReference
from koord.scheduler.plugins.reservation.owner_matching import ANYONE, OwnerKey, ReservationRequest, owner_keys_of_pod
from koord.scheduler.plugins.reservation.reservation_info import ReservationInfo, ReservationOwnerPod, ReservationUsage


class ReservationSeen(msgspec.Struct, frozen=True):
    info: ReservationInfo


class ReservationGone(msgspec.Struct, frozen=True):
    """The reservation was deleted, or it ended: from now on its owners are pods like any other."""

    uid: str


class OwnerAssigned(msgspec.Struct, frozen=True):
    owner_pod: ReservationOwnerPod


class OwnerReleased(msgspec.Struct, frozen=True):
    """The pod ended, or its assumption was withdrawn."""

    pod: str  # uid


ReservationEvent: TypeAlias = ReservationSeen | ReservationGone | OwnerAssigned | OwnerReleased


_NO_OWNER_PODS: Mapping[str, ReservationOwnerPod] = {}


class ReservationIndex:
    def __init__(self) -> None:
        self._infos: dict[str, ReservationInfo] = {}
        self._owner_pods: dict[str, ReservationOwnerPod] = {}
        self._owner_pods_by_reservation: dict[str, dict[str, ReservationOwnerPod]] = {}  # reservation -> pod -> part
        self._usages: dict[str, ReservationUsage] = {}
        self._usages_by_node: dict[str, dict[str, ReservationUsage]] = {}
        self._index: dict[OwnerKey, set[str]] = {}
        self._names: dict[str, str] = {}
        # How many keys of the index are of one pod, of whoever comes, of a controller's pods.
        self._identity_keys = self._open_keys = self._controller_keys = 0
        self.is_by_labels_alone = True  # no reservation is for pods that it finds by anything but their labels
        self.owner_keys_version = 0  # moves when that does by which reservations are found
        self._label_values: dict[str, Counter[str]] = {}  # key -> values, of those among them that are labels

    @staticmethod
    def build(holdings: Iterable[ReservationInfo], occupants: Iterable[ReservationOwnerPod]) -> ReservationIndex:
        register = ReservationIndex()
        for info in holdings:
            register.handle(ReservationSeen(info))
        for owner_pod in occupants:
            register.handle(OwnerAssigned(owner_pod))
        return register

    # -- changing

    def handle(self, event: ReservationEvent) -> None:
        match event:
            case ReservationSeen(info):
                if self._infos.get(info.uid) != info:
                    self._forget(info.uid)
                    self._infos[info.uid] = info
                    self._names[info.name] = info.uid
                    for key in _owner_keys(info):
                        self._index.setdefault(key, set()).add(info.uid)
                        self._count(key, 1)
                    self._refresh(info.uid)
            case ReservationGone(uid):
                self._forget(uid)
            case OwnerAssigned(owner_pod):
                old = self._owner_pods.get(owner_pod.uid)
                if old != owner_pod:
                    if old is not None:
                        self._remove_owner(old)
                    self._owner_pods[owner_pod.uid] = owner_pod
                    self._owner_pods_by_reservation.setdefault(owner_pod.reservation, {})[owner_pod.uid] = owner_pod
                    self._refresh(owner_pod.reservation)
            case OwnerReleased(pod):
                left = self._owner_pods.get(pod)
                if left is not None:
                    self._remove_owner(left)

    def _remove_owner(self, owner_pod: ReservationOwnerPod) -> None:
        del self._owner_pods[owner_pod.uid]
        parts = self._owner_pods_by_reservation[owner_pod.reservation]
        del parts[owner_pod.uid]
        if not parts:
            del self._owner_pods_by_reservation[owner_pod.reservation]
        self._refresh(owner_pod.reservation)

    def _forget(self, uid: str) -> None:
        info = self._infos.pop(uid, None)
        if info is None:
            return
        for key in _owner_keys(info):
            found = self._index[key]
            found.discard(uid)
            self._count(key, -1)
            if not found:
                del self._index[key]
        if self._names.get(info.name) == uid:
            del self._names[info.name]
        self._refresh(uid, info.node)

    def _count(self, key: OwnerKey, sign: int) -> None:
        kind = key[0]
        self.owner_keys_version += 1
        if kind in ("name", "uid"):
            self._identity_keys += sign
        elif kind in ("controller", "controller-uid"):
            self._controller_keys += sign
        elif kind != "label":
            self._open_keys += sign
        else:
            values = self._label_values.setdefault(key[1], Counter())
            values[key[2]] += sign
            if not values[key[2]]:
                del values[key[2]]
                if not values:
                    del self._label_values[key[1]]
        self.is_by_labels_alone = not (self._identity_keys or self._controller_keys or self._open_keys)

    def _refresh(self, uid: str, last_node: str = "") -> None:
        """Recompute what is derived from one reservation."""
        before = self._usages.pop(uid, None)
        node = before.info.node if before is not None else last_node
        on_node = self._usages_by_node.get(node)
        if on_node is not None:
            on_node.pop(uid, None)
            if not on_node:
                del self._usages_by_node[node]
        info = self._infos.get(uid)
        if info is None or not info.available or not info.node:
            return
        parts = [part for part in self._owner_pods_by_reservation.get(uid, {}).values() if part.node == info.node]
        usage = _build_usage(info, parts)
        self._usages[uid] = usage
        self._usages_by_node.setdefault(info.node, {})[uid] = usage

    # -- reading

    def get(self, uid: str) -> ReservationUsage | None:
        """Return a reservation that holds something now."""
        return self._usages.get(uid)

    def by_name(self, name: str) -> ReservationUsage | None:
        return self._usages.get(self._names.get(name, ""))

    def owner_pod(self, pod: str) -> ReservationOwnerPod | None:
        return self._owner_pods.get(pod)

    def owner_pods(self, uid: str) -> Mapping[str, ReservationOwnerPod]:
        """Return the owner pods of a reservation by uid, also on other nodes and after it is gone."""
        return self._owner_pods_by_reservation.get(uid, _NO_OWNER_PODS)

    def info(self, uid: str) -> ReservationInfo | None:
        """Return any known reservation, whether or not it holds something now."""
        return self._infos.get(uid)

    def with_owners(
        self, usage: ReservationUsage, there: Container[str], more: Collection[ReservationOwnerPod] = ()
    ) -> ReservationUsage:
        """Return the reservation as it would be with those of its owners that are in `there`, and with `more`."""
        info = usage.info
        left = [part for pod, part in self.owner_pods(info.uid).items() if part.node == info.node and pod in there]
        if more:
            left += [part for part in more if part.reservation == info.uid]
        elif len(left) == usage.owner_count:
            return usage
        return _build_usage(info, left)

    def has_owner_identity(self, uid: str, name: str) -> bool:
        """Return whether some reservation is for a pod of exactly this name or uid."""
        if not self._identity_keys:
            return False
        return ("name", name) in self._index or ("uid", uid) in self._index

    def may_match(self, namespace: str, labels: Mapping[str, str], owners: tuple[OwnerReference, ...]) -> bool:
        """Return whether pods like this may match some reservation. It is asked of every pod, so it looks up little."""
        if self._label_values and self.has_label_of(labels):
            return True
        index = self._index
        if self._open_keys and (ANYONE in index or ("namespace", namespace) in index):
            return True
        if not self._controller_keys:
            return False
        return any(("controller", o.name) in index or ("controller-uid", o.uid) in index for o in owners)

    def has_label_of(self, labels: Mapping[str, str]) -> bool:
        """Return whether some reservation is for pods with one of these labels."""
        known = self._label_values
        if len(known) < len(labels):
            return any(labels.get(key) in values for key, values in known.items())
        for key, value in labels.items():  # a generator takes twice as long
            values = known.get(key)
            if values is not None and value in values:
                return True
        return False

    @property
    def usages(self) -> Mapping[str, ReservationUsage]:
        return self._usages

    @property
    def nodes(self) -> Collection[str]:
        """Return the nodes on which something is reserved."""
        return self._usages_by_node.keys()

    def on_node(self, node: str) -> tuple[ReservationUsage, ...]:
        """Return every reservation that holds something on a node, by name."""
        found = self._usages_by_node.get(node)
        return tuple(sorted(found.values(), key=lambda s: (s.info.name, s.info.uid))) if found else ()

    def candidates(self, pod: ReservationRequest) -> dict[str, list[ReservationUsage]]:
        """Return, by node, the matchable reservations that this pod can own, at the cost of what is found.

        A pod that names one is shown what is on that one's node, and everywhere when there is no such reservation. A
        pod that ignores reservations is shown all.
        """
        if pod.ignores_reservations:
            found: Collection[str] = self._usages.keys()
        else:
            found = set[str]().union(*(self._index.get(key, ()) for key in owner_keys_of_pod(pod)))
        one = self.by_name(pod.requested_name) if pod.requested_name else None
        by_node: dict[str, list[ReservationUsage]] = {}
        for uid in found:
            usage = self._usages.get(uid)
            if usage is None or not usage.is_matchable:
                continue
            if one is not None and usage.info.node != one.info.node:
                continue
            if pod.ignores_reservations or usage.info.matches_owner(pod):
                by_node.setdefault(usage.info.node, []).append(usage)
        for usages in by_node.values():
            usages.sort(key=lambda s: (s.info.name, s.info.uid))
        return by_node

    def assume_error(self, uid: str) -> str | None:
        """Return why a pod cannot be assumed into a reservation."""
        usage = self._usages.get(uid)
        if usage is None:
            return "cannot find target reservation"
        return "target reservation is terminating" if usage.info.terminating else None


def _build_usage(info: ReservationInfo, parts: Sequence[ReservationOwnerPod]) -> ReservationUsage:
    allocated: dict[str, int] = {}
    for part in parts:
        for name, amount in part.requests.items():
            if name in info.reserved:
                allocated[name] = allocated.get(name, 0) + amount
    return ReservationUsage(info=info, allocated=allocated, owner_count=len(parts))


def _owner_keys(info: ReservationInfo) -> set[OwnerKey]:
    return {key for owner in info.owners for key in owner.index_keys()}
