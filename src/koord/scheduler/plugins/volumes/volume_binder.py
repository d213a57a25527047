"""VolumeBinder finds which claims of a pod are bound, which are delayed, and how a node would serve them.

BindingProgress then checks whether the decided bindings have come true.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.kubernetes.volume import PersistentVolume, PersistentVolumeClaim
from koord.policy.node_match import NodeTerms
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes
from koord.scheduler.framework.verdict import Fault, Reject, unresolvable
from koord.scheduler.plugins.node_affinity import node_terms_mask
from koord.scheduler.plugins.volumes.pod_volumes import (
    CLAIM_KIND,
    SELECTED_NODE,
    AssumedVolumes,
    ClaimReference,
    DynamicProvision,
    PodVolumes,
    StaticBinding,
    bind_volume,
    claim_references,
    is_bound,
    is_owned_by_pod,
    not_found_message,
    not_owner_message,
    provision_on_node,
    storage_class_of,
)
from koord.scheduler.plugins.volumes.pv_matcher import (
    CANNOT_PROVISION,
    NO_CAPACITY,
    ProvisioningCheck,
    PvIndex,
    PvMatcher,
    claim_selector,
    group_rows_by_labels,
    storage_quantity,
    volume_node_affinity,
)
from koord.scheduler.plugins.volumes.volume_zone import WAIT_FOR_FIRST_CONSUMER
from koord.values.go_format import quoted
from koord.values.selector import SelectorError

NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
NOT_ENOUGH_SPACE = "node(s) did not have enough free storage"
PV_NOT_EXIST = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
REASONS = (NODE_CONFLICT, BIND_CONFLICT, NOT_ENOUGH_SPACE, PV_NOT_EXIST)  # in the order of the message
_BITS = {reason: 1 << i for i, reason in enumerate(REASONS)}
_UNBOUND_IMMEDIATE = unresolvable("pod has unbound immediate PersistentVolumeClaims")


class PodClaims(msgspec.Struct):
    """A pod's claims. `bound_affinities` are of the bound claims' volumes, up to the first that does not exist."""

    bound_affinities: tuple[NodeTerms | None, ...] = ()
    has_missing_volume: bool = False  # a bound claim's volume does not exist
    unbound: tuple[PersistentVolumeClaim, ...] = ()  # to be bound on the pod's node, smallest first
    selected_nodes: tuple[str | None, ...] = ()  # the selected-node annotations of the unbound claims
    matchers: tuple[PvMatcher, ...] = ()
    matchers_version: Hashable = None  # the version that `matchers` were built at

    def copy(self) -> PodClaims:
        return self


class VolumePlan(msgspec.Struct, frozen=True):
    """VolumePlan states how a node would serve the unbound claims. Most are never executed: nothing is prepared."""

    node: str
    bind: tuple[tuple[PersistentVolume, PersistentVolumeClaim], ...] = ()
    provision: tuple[PersistentVolumeClaim, ...] = ()

    def to_pod_volumes(self) -> PodVolumes:
        bindings = tuple(bind_volume(volume, claim) for volume, claim in self.bind)
        return PodVolumes(self.node, bindings, tuple(provision_on_node(claim, self.node) for claim in self.provision))


class VolumeBinder:
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("persistentvolumeclaims", "persistentvolumes"), (*READ_VERBS, "patch")),
    )

    def __init__(self, handle: Handle) -> None:
        self.assumed = handle.state.derived(AssumedVolumes)
        self._claims = handle.lister(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = handle.lister(PERSISTENT_VOLUMES)
        self._classes = handle.lister(STORAGE_CLASSES)
        self.provisioning = ProvisioningCheck(handle)
        self._pv_index = PvIndex(handle)

    @property
    def version(self) -> Hashable:
        """Return a value that changes with everything that can change how a node serves unbound claims."""
        return self._volumes.version, self.assumed.version, self.provisioning.version

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        shown = self._claims.get(namespace, name)
        return None if shown is None else self.assumed.claim(shown)

    def signature(self, pod: PodInfo) -> Hashable:
        """Return all that `pod_claims` reads; pods with equal signatures have equal claims."""
        return pod.namespace, tuple(self._claim_signature(pod, reference) for reference in claim_references(pod))

    def _claim_signature(self, pod: PodInfo, reference: ClaimReference) -> Hashable:
        claim = self.claim(pod.namespace, reference.claim)
        owner = pod.key if reference.ephemeral else ""
        if claim is None:
            return reference, owner
        meta = claim.metadata
        mine = is_owned_by_pod(claim, pod) if reference.ephemeral else True
        known = (reference, owner, mine, meta.uid, meta.resource_version, meta.annotations.get(SELECTED_NODE))
        if is_bound(claim):
            volume = self._volumes.get("", claim.spec.volume_name)
            return known, None if volume is None else (volume.metadata.uid, volume.metadata.resource_version)
        storage_class = self._classes.get("", storage_class_of(claim))
        return known, "" if storage_class is None else (storage_class.volume_binding_mode, storage_class.metadata.uid)

    def pod_claims(self, pod: PodInfo) -> PodClaims | Reject | Fault:
        # A claim that two volumes of the pod name is one claim, and needs one volume.
        claims = [self._check_claim(pod, reference) for reference in dict.fromkeys(claim_references(pod))]
        refused = next((each for each in claims if isinstance(each, Reject)), None)
        if refused is not None:
            return refused
        found = PodClaims()
        waiting: list[PersistentVolumeClaim] = []
        immediate = False
        for claim in claims:
            assert isinstance(claim, PersistentVolumeClaim)
            if is_bound(claim):
                self._add_bound(found, claim)
                continue
            waits = self._is_delayed_binding(claim)
            if isinstance(waits, Fault):
                return waits
            immediate |= not waits
            waiting.append(claim)
        if immediate:
            return _UNBOUND_IMMEDIATE
        found.unbound = tuple(sorted(waiting, key=lambda each: storage_quantity(each.spec.resources.requests)))
        found.selected_nodes = tuple(claim.metadata.annotations.get(SELECTED_NODE) for claim in found.unbound)
        return found

    def find_pod_volumes(self, pod_claims: PodClaims, node: NodeInfo) -> VolumePlan | Reject:
        """Return how this node would serve the claims, or why it cannot."""
        assert node.node is not None
        known, reasons = node.node, []
        if not all(near is None or near.matches(known) for near in pod_claims.bound_affinities):
            reasons.append(NODE_CONFLICT)
        plan = self._plan(pod_claims, node)
        if not isinstance(plan, VolumePlan):
            reasons.append(plan)
        if (
            pod_claims.has_missing_volume and NODE_CONFLICT not in reasons
        ):  # the first claim that fails is the one that counts
            reasons.append(PV_NOT_EXIST)
        if reasons:
            return unresolvable(*reasons)
        assert isinstance(plan, VolumePlan)
        return plan

    def find_pod_volumes_columns(self, pod_claims: PodClaims, table: NodeTable, rows: Rows) -> Codes:
        """Compute `find_pod_volumes` for many nodes: per row a bit for each of REASONS, none where it succeeds."""
        codes = self._plan_column(pod_claims, table, rows)
        far = np.zeros(len(codes), np.bool_)
        for near in pod_claims.bound_affinities:
            if near is not None:
                far |= ~node_terms_mask(near, table, rows)
        codes[far] |= _BITS[NODE_CONFLICT]
        if pod_claims.has_missing_volume:
            codes[~far] |= _BITS[PV_NOT_EXIST]
        return codes

    def _plan_column(self, pod_claims: PodClaims, table: NodeTable, rows: Rows) -> Codes:
        codes = np.zeros(len(table.alive[rows]), np.int32)
        if not pod_claims.unbound:
            return codes
        matchers = self._matchers(pod_claims)
        if any(pod_claims.selected_nodes) or not _are_disjoint(matchers):
            return self._plan_rows(pod_claims, table, rows, codes)
        for claim, matcher in zip(
            pod_claims.unbound, matchers, strict=True
        ):  # the first claim that cannot be provisioned gives the reason
            make = (codes == 0) & ~matcher.matching_rows(table, rows)
            if make.any():
                unable, full = self.provisioning.check_columns(claim, table, rows)
                codes[make & unable] = _BITS[BIND_CONFLICT]
                codes[make & full] = _BITS[NOT_ENOUGH_SPACE]
        return codes

    def _plan_rows(self, pod_claims: PodClaims, table: NodeTable, rows: Rows, codes: Codes) -> Codes:
        """Plan node by node, and only once for nodes with equal labels.

        This is needed where one claim's volume limits another's, or the node is already selected.
        """
        places = np.arange(table.size)[rows]
        named = {name for name in pod_claims.selected_nodes if name is not None}
        if named:
            codes[:] = _BITS[BIND_CONFLICT]
            here = table.index.get(next(iter(named))) if len(named) == 1 else None
            if here is not None:
                codes[places == here.row] = self._plan_code(pod_claims, here)
            return codes
        keys = [matcher.label_keys for matcher in self._matchers(pod_claims)] + [
            self.provisioning.label_keys(each) for each in pod_claims.unbound
        ]
        known = [each for each in keys if each is not None]
        if len(known) < len(keys):
            return np.asarray([self._plan_code(pod_claims, table.nodes[row]) for row in places], np.int32)
        firsts, groups = group_rows_by_labels(frozenset().union(*known), table, rows)
        worth = [self._plan_code(pod_claims, table.nodes[places[first]]) for first in firsts]
        return np.asarray(worth, np.int32)[groups]

    def _plan_code(self, pod_claims: PodClaims, node: NodeInfo | None) -> int:
        plan = self._plan(pod_claims, node) if node is not None and node.node is not None else None
        return _BITS[plan] if isinstance(plan, str) else 0

    def _plan(self, pod_claims: PodClaims, node: NodeInfo) -> VolumePlan | str:
        if not pod_claims.unbound:
            return VolumePlan(node.name)
        assert node.node is not None
        selected = pod_claims.selected_nodes
        if any(name is not None and name != node.name for name in selected):
            return BIND_CONFLICT
        bindings, taken = [], set[str]()
        make = [claim for claim, name in zip(pod_claims.unbound, selected, strict=True) if name is not None]
        for claim, matcher, name in zip(pod_claims.unbound, self._matchers(pod_claims), selected, strict=True):
            if name is None:
                volume = matcher.pick(node.node, taken)
                if volume is None:
                    make.append(claim)
                else:
                    taken.add(volume.metadata.name)
                    bindings.append((volume, claim))
        for claim in make:
            objection = self.provisioning.check(claim, node.labels)
            if objection:
                return {CANNOT_PROVISION: BIND_CONFLICT, NO_CAPACITY: NOT_ENOUGH_SPACE}[objection]
        return VolumePlan(node.name, tuple(bindings), tuple(make))

    def _matchers(self, pod_claims: PodClaims) -> Sequence[PvMatcher]:
        now = (self._volumes.version, self.assumed.version)
        if pod_claims.matchers_version != now:
            pod_claims.matchers, pod_claims.matchers_version = (
                tuple(self._matcher(claim) for claim in pod_claims.unbound),
                now,
            )
        return pod_claims.matchers

    def _matcher(self, claim: PersistentVolumeClaim) -> PvMatcher:
        items = self._pv_index.at_least(storage_class_of(claim), storage_quantity(claim.spec.resources.requests))
        return PvMatcher(claim, items, self.assumed.volume)

    def _check_claim(self, pod: PodInfo, reference: ClaimReference) -> PersistentVolumeClaim | Reject:
        name = reference.claim
        claim = self.claim(pod.namespace, name)
        if claim is None:
            if reference.ephemeral:
                awaited = "waiting for ephemeral volume controller to create the persistentvolumeclaim"
                return unresolvable(f"{awaited} {quoted(name)}")
            return unresolvable(not_found_message(CLAIM_KIND, name))
        if claim.status.phase == "Lost":
            gone = quoted(claim.spec.volume_name)
            return unresolvable(f"persistentvolumeclaim {quoted(name)} bound to non-existent persistentvolume {gone}")
        if claim.metadata.deletion_timestamp is not None:
            return unresolvable(f"persistentvolumeclaim {quoted(name)} is being deleted")
        if reference.ephemeral and not is_owned_by_pod(claim, pod):
            return unresolvable(not_owner_message(claim, pod))
        return claim

    def _add_bound(self, pod_claims: PodClaims, claim: PersistentVolumeClaim) -> None:
        if pod_claims.has_missing_volume:
            return
        volume: PersistentVolume | None = self._volumes.get("", claim.spec.volume_name)
        if volume is None:
            pod_claims.has_missing_volume = True
        else:
            pod_claims.bound_affinities += (volume_node_affinity(volume),)

    def _is_delayed_binding(self, claim: PersistentVolumeClaim) -> bool | Fault:
        """Return whether the claim is bound for its first consumer; one that names a volume is not."""
        name = storage_class_of(claim)
        storage_class = self._classes.get("", name) if name else None
        if storage_class is None:
            return False
        if storage_class.volume_binding_mode is None:
            return Fault(f"VolumeBindingMode not set for StorageClass {quoted(name)}")
        try:
            claim_selector(claim)
        except SelectorError as error:
            key = f"{claim.metadata.namespace}/{claim.metadata.name}"
            return Fault(f"error creating internal label selector for claim: {key}: {error}")
        return storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER and not claim.spec.volume_name


def _are_disjoint(matchers: Sequence[PvMatcher]) -> bool:
    """Return whether no volume could be taken by one claim and then be missing for another."""
    if len(matchers) < 2:
        return True
    names = [matcher.volume_names for matcher in matchers]
    return sum(map(len, names)) == len(frozenset().union(*names))


class BindingProgress:
    """Reads the API objects only: assumed volumes do not count."""

    def __init__(self, handle: Handle) -> None:
        self._state = handle.state
        self._claims = handle.lister(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = handle.lister(PERSISTENT_VOLUMES)

    def is_complete(self, choice: PodVolumes) -> bool | Fault:
        """Return True when every claim is bound, False while that can still be waited for."""
        info = self._state.node(choice.node)
        if info is None or info.node is None:
            return _binding_fault(f"failed to get node {quoted(choice.node)}: node {quoted(choice.node)} not found")
        node = info.node
        steps = [self._is_bound(binding, node) for binding in choice.bindings]
        steps += [self._is_provisioned(provision, node) for provision in choice.provisions]
        return next((step for step in steps if step is not True), True)

    def _is_bound(self, binding: StaticBinding, node: Node) -> bool | Fault:
        name, meta = binding.before.metadata.name, binding.claim.metadata
        volume, claim = self._volumes.get("", name), self._claims.get(meta.namespace, meta.name)
        if volume is None:
            return _binding_fault(f"failed to check binding: could not find v1.PersistentVolume {quoted(name)}")
        if claim is None:
            return _claim_not_found("binding", binding.claim)
        if binding.write is not None and volume.metadata.resource_version == binding.before.metadata.resource_version:
            return False  # the write is not seen yet
        far = _node_conflict(volume, node)
        if far is not None:
            return far
        if volume.spec.claim_ref is None or not volume.spec.claim_ref.uid:
            return _binding_fault(f"ClaimRef got reset for pv {quoted(name)}")
        return is_bound(claim)

    def _is_provisioned(self, provision: DynamicProvision, node: Node) -> bool | Fault:
        before = provision.before.metadata
        claim = self._claims.get(before.namespace, before.name)
        if claim is None:
            return _claim_not_found("provisioning pvc", provision.before)
        if provision.write is not None and claim.metadata.resource_version == before.resource_version:
            return False
        if not claim.metadata.annotations:
            return _binding_fault(f"selectedNode annotation reset for PVC {quoted(before.name)}")
        if claim.metadata.annotations.get(SELECTED_NODE) != node.metadata.name:
            return _binding_fault(
                f"provisioning failed for PVC {quoted(before.name)}"
            )  # that is how a provisioner gives up
        if claim.spec.volume_name:
            volume = self._volumes.get("", claim.spec.volume_name)
            if volume is None:
                return False  # it may be on its way
            far = _node_conflict(volume, node)
            if far is not None:
                return far
        return is_bound(claim)


def _node_conflict(volume: PersistentVolume, node: Node) -> Fault | None:
    near = volume_node_affinity(volume)
    if near is None or near.matches(node):
        return None
    pair = f"pv {quoted(volume.metadata.name)} node affinity doesn't match node {quoted(node.metadata.name)}"
    return _binding_fault(f"{pair}: no matching NodeSelectorTerms")


def _claim_not_found(what: str, claim: PersistentVolumeClaim) -> Fault:
    key = quoted(f"{claim.metadata.namespace}/{claim.metadata.name}")
    return _binding_fault(f"failed to check {what}: could not find v1.PersistentVolumeClaim {key}")


def _binding_fault(message: str) -> Fault:
    return Fault(f"binding volumes: {message}")
