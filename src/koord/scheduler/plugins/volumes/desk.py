"""VolumeBinder finds which claims of a pod are bound, which are delayed, and how a node would serve them.

BindingProgress then checks whether the decided bindings have come true.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec
import numpy as np

from koord.api.builtin import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from koord.api.volume import PersistentVolume, PersistentVolumeClaim
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes
from koord.scheduler.framework.verdict import Fault, Reject, unresolvable
from koord.scheduler.plugins.node_selector import Terms
from koord.scheduler.plugins.volumes.assumed import Assumed
from koord.scheduler.plugins.volumes.choice import SELECTED_NODE, Choice, bound_to, provisioned_near
from koord.scheduler.plugins.volumes.claims import (
    MISSING_CLAIM,
    Mention,
    class_of,
    is_bound,
    made_for,
    mentions,
    missing,
    not_made_for,
)
from koord.scheduler.plugins.volumes.pins import alike
from koord.scheduler.plugins.volumes.provisioning import FULL, UNABLE, Provisioning
from koord.scheduler.plugins.volumes.shelf import Shelf, reach, selector_of
from koord.scheduler.plugins.volumes.stock import Stock, storage
from koord.scheduler.plugins.volumes.zones import WAITS
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows
from koord.values.quotation import quoted
from koord.values.requirement import SelectorError

FAR = "node(s) didn't match PersistentVolume's node affinity"
NONE_TO_BIND = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
NO_VOLUME = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
REASONS = (FAR, NONE_TO_BIND, NO_SPACE, NO_VOLUME)  # in the order of the message
_BITS = {reason: 1 << i for i, reason in enumerate(REASONS)}
_IMMEDIATE = unresolvable("pod has unbound immediate PersistentVolumeClaims")


class Needs(msgspec.Struct):
    """A pod's claims. `bound_affinities` are the affinities of the bound claims' volumes, up to the first that
    does not exist.
    """

    reaches: tuple[Terms | None, ...] = ()
    lost: bool = False  # a bound claim's volume does not exist
    waiting: tuple[PersistentVolumeClaim, ...] = ()  # to be bound on the pod's node, smallest first
    selected: tuple[str | None, ...] = ()  # the selected-node annotations of the unbound claims
    shelves: tuple[Shelf, ...] = ()
    read: Hashable = None  # the version that `matchers` were built at

    def copy(self) -> Needs:
        return self


class Plan(msgspec.Struct, frozen=True):
    """How a node would serve the unbound claims. Most plans are never carried out, so nothing is prepared here."""

    node: str
    bind: tuple[tuple[PersistentVolume, PersistentVolumeClaim], ...] = ()
    make: tuple[PersistentVolumeClaim, ...] = ()

    def choice(self) -> Choice:
        bindings = tuple(bound_to(volume, claim) for volume, claim in self.bind)
        return Choice(self.node, bindings, tuple(provisioned_near(claim, self.node) for claim in self.make))


class Desk:
    def __init__(self, handle: Handle) -> None:
        self.assumed = handle.state.derived(Assumed)
        self._claims = handle.lister(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = handle.lister(PERSISTENT_VOLUMES)
        self._classes = handle.lister(STORAGE_CLASSES)
        self._provisioning = Provisioning(handle)
        self._stock = Stock(handle)

    @property
    def version(self) -> Hashable:
        """Return a value that changes with everything that can change how a node serves unbound claims."""
        return self._volumes.version, self.assumed.version, self._provisioning.version

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        shown = self._claims.get(namespace, name)
        return None if shown is None else self.assumed.claim(shown)

    def facts(self, pod: PodInfo) -> Hashable:
        """Return all that `pod_claims` reads; pods with equal signatures have equal claims."""
        return pod.namespace, tuple(self._facts(pod, mention) for mention in mentions(pod))

    def _facts(self, pod: PodInfo, mention: Mention) -> Hashable:
        claim = self.claim(pod.namespace, mention.claim)
        owner = pod.key if mention.ephemeral else ""
        if claim is None:
            return mention, owner
        meta = claim.metadata
        mine = made_for(claim, pod) if mention.ephemeral else True
        known = (mention, owner, mine, meta.uid, meta.resource_version, meta.annotations.get(SELECTED_NODE))
        if is_bound(claim):
            volume = self._volumes.get("", claim.spec.volume_name)
            return known, None if volume is None else (volume.metadata.uid, volume.metadata.resource_version)
        storage_class = self._classes.get("", class_of(claim))
        return known, "" if storage_class is None else (storage_class.volume_binding_mode, storage_class.metadata.uid)

    def needs(self, pod: PodInfo) -> Needs | Reject | Fault:
        # A claim that two volumes of the pod name is one claim, and needs one volume.
        claims = [self._usable(pod, mention) for mention in dict.fromkeys(mentions(pod))]
        refused = next((each for each in claims if isinstance(each, Reject)), None)
        if refused is not None:
            return refused
        found = Needs()
        waiting: list[PersistentVolumeClaim] = []
        immediate = False
        for claim in claims:
            assert isinstance(claim, PersistentVolumeClaim)
            if is_bound(claim):
                self._add_bound(found, claim)
                continue
            waits = self._waits(claim)
            if isinstance(waits, Fault):
                return waits
            immediate |= not waits
            waiting.append(claim)
        if immediate:
            return _IMMEDIATE
        found.waiting = tuple(sorted(waiting, key=lambda each: storage(each.spec.resources.requests)))
        found.selected = tuple(claim.metadata.annotations.get(SELECTED_NODE) for claim in found.waiting)
        return found

    def served(self, needs: Needs, node: NodeInfo) -> Plan | Reject:
        """Return how this node would serve the claims, or why it cannot."""
        assert node.node is not None
        known, reasons = node.node, []
        if not all(near is None or near.matches(known) for near in needs.reaches):
            reasons.append(FAR)
        plan = self._planned(needs, node)
        if not isinstance(plan, Plan):
            reasons.append(plan)
        if needs.lost and FAR not in reasons:  # the first claim that fails is the one that counts
            reasons.append(NO_VOLUME)
        if reasons:
            return unresolvable(*reasons)
        assert isinstance(plan, Plan)
        return plan

    def column(self, needs: Needs, table: NodeTable, rows: Rows) -> Codes:
        """Compute `find_pod_volumes` for many nodes: per row a bit for each of REASONS, none where the node can serve
        the claims.
        """
        codes = self._planned_column(needs, table, rows)
        far = np.zeros(len(codes), np.bool_)
        for near in needs.reaches:
            if near is not None:
                far |= ~near.mask(table, rows)
        codes[far] |= _BITS[FAR]
        if needs.lost:
            codes[~far] |= _BITS[NO_VOLUME]
        return codes

    def _planned_column(self, needs: Needs, table: NodeTable, rows: Rows) -> Codes:
        codes = np.zeros(len(table.alive[rows]), np.int32)
        if not needs.waiting:
            return codes
        shelves = self._shelves(needs)
        if any(needs.selected) or not _apart(shelves):
            return self._planned_rows(needs, table, rows, codes)
        for claim, shelf in zip(needs.waiting, shelves, strict=True):  # the first claim that cannot be provisioned gives the reason
            make = (codes == 0) & ~shelf.reached(table, rows)
            if make.any():
                unable, full = self._provisioning.objections(claim, table, rows)
                codes[make & unable] = _BITS[NONE_TO_BIND]
                codes[make & full] = _BITS[NO_SPACE]
        return codes

    def _planned_rows(self, needs: Needs, table: NodeTable, rows: Rows, codes: Codes) -> Codes:
        """Plan node by node, and only once for nodes with equal labels.

        This is needed where one claim's volume limits another's, or the node is already selected.
        """
        places = np.arange(table.size)[rows]
        named = {name for name in needs.selected if name is not None}
        if named:
            codes[:] = _BITS[NONE_TO_BIND]
            here = table.index.get(next(iter(named))) if len(named) == 1 else None
            if here is not None:
                codes[places == here.row] = self._planned_code(needs, here)
            return codes
        keys = [shelf.keys for shelf in self._shelves(needs)] + [
            self._provisioning.keys(each) for each in needs.waiting
        ]
        known = [each for each in keys if each is not None]
        if len(known) < len(keys):
            return np.asarray([self._planned_code(needs, table.nodes[row]) for row in places], np.int32)
        firsts, groups = alike(frozenset().union(*known), table, rows)
        worth = [self._planned_code(needs, table.nodes[places[first]]) for first in firsts]
        return np.asarray(worth, np.int32)[groups]

    def _planned_code(self, needs: Needs, node: NodeInfo | None) -> int:
        plan = self._planned(needs, node) if node is not None and node.node is not None else None
        return _BITS[plan] if isinstance(plan, str) else 0

    def _planned(self, needs: Needs, node: NodeInfo) -> Plan | str:
        if not needs.waiting:
            return Plan(node.name)
        assert node.node is not None
        selected = needs.selected
        if any(name is not None and name != node.name for name in selected):
            return NONE_TO_BIND
        bindings, taken = [], set[str]()
        make = [claim for claim, name in zip(needs.waiting, selected, strict=True) if name is not None]
        for claim, shelf, name in zip(needs.waiting, self._shelves(needs), selected, strict=True):
            if name is None:
                volume = shelf.pick(node.node, taken)
                if volume is None:
                    make.append(claim)
                else:
                    taken.add(volume.metadata.name)
                    bindings.append((volume, claim))
        for claim in make:
            objection = self._provisioning.objection(claim, node.labels)
            if objection:
                return {UNABLE: NONE_TO_BIND, FULL: NO_SPACE}[objection]
        return Plan(node.name, tuple(bindings), tuple(make))

    def _shelves(self, needs: Needs) -> Sequence[Shelf]:
        now = (self._volumes.version, self.assumed.version)
        if needs.read != now:
            needs.shelves, needs.read = tuple(self._shelf(claim) for claim in needs.waiting), now
        return needs.shelves

    def _shelf(self, claim: PersistentVolumeClaim) -> Shelf:
        items = self._stock.of(class_of(claim), storage(claim.spec.resources.requests))
        return Shelf(claim, items, self.assumed.volume)

    def _usable(self, pod: PodInfo, mention: Mention) -> PersistentVolumeClaim | Reject:
        name = mention.claim
        claim = self.claim(pod.namespace, name)
        if claim is None:
            if mention.ephemeral:
                awaited = "waiting for ephemeral volume controller to create the persistentvolumeclaim"
                return unresolvable(f"{awaited} {quoted(name)}")
            return unresolvable(missing(MISSING_CLAIM, name))
        if claim.status.phase == "Lost":
            gone = quoted(claim.spec.volume_name)
            return unresolvable(f"persistentvolumeclaim {quoted(name)} bound to non-existent persistentvolume {gone}")
        if claim.metadata.deletion_timestamp is not None:
            return unresolvable(f"persistentvolumeclaim {quoted(name)} is being deleted")
        if mention.ephemeral and not made_for(claim, pod):
            return unresolvable(not_made_for(claim, pod))
        return claim

    def _add_bound(self, needs: Needs, claim: PersistentVolumeClaim) -> None:
        if needs.lost:
            return
        volume: PersistentVolume | None = self._volumes.get("", claim.spec.volume_name)
        if volume is None:
            needs.lost = True
        else:
            needs.reaches += (reach(volume),)

    def _waits(self, claim: PersistentVolumeClaim) -> bool | Fault:
        """Return whether the claim is bound for its first consumer; one that names a volume is not."""
        name = class_of(claim)
        storage_class = self._classes.get("", name) if name else None
        if storage_class is None:
            return False
        if storage_class.volume_binding_mode is None:
            return Fault(f"VolumeBindingMode not set for StorageClass {quoted(name)}")
        try:
            selector_of(claim)
        except SelectorError as error:
            key = f"{claim.metadata.namespace}/{claim.metadata.name}"
            return Fault(f"error creating internal label selector for claim: {key}: {error}")
        return storage_class.volume_binding_mode == WAITS and not claim.spec.volume_name


def _apart(shelves: Sequence[Shelf]) -> bool:
    """Return whether no volume could be taken by one claim and then be missing for another."""
    if len(shelves) < 2:
        return True
    names = [shelf.names for shelf in shelves]
    return sum(map(len, names)) == len(frozenset().union(*names))
