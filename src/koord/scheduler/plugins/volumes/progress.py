"""BindingProgress checks how far the volumes that were decided for a pod have come since they were written."""

from __future__ import annotations

from koord.api.builtin import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from koord.api.node import Node
from koord.api.volume import PersistentVolume, PersistentVolumeClaim
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.plugins.volumes.choice import SELECTED_NODE, Binding, Choice, Provision
from koord.scheduler.plugins.volumes.claims import is_bound
from koord.scheduler.plugins.volumes.shelf import reach
from koord.values.quotation import quoted


class Progress:
    """Reads the API objects only: assumed volumes do not count."""

    def __init__(self, handle: Handle) -> None:
        self._state = handle.state
        self._claims = handle.lister(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = handle.lister(PERSISTENT_VOLUMES)

    def done(self, choice: Choice) -> bool | Fault:
        """Return True when every claim is bound, False while that can still be waited for."""
        info = self._state.node(choice.node)
        if info is None or info.node is None:
            return _failed(f"failed to get node {quoted(choice.node)}: node {quoted(choice.node)} not found")
        node = info.node
        steps = [self._bound(binding, node) for binding in choice.bindings]
        steps += [self._provisioned(provision, node) for provision in choice.provisions]
        return next((step for step in steps if step is not True), True)

    def _bound(self, binding: Binding, node: Node) -> bool | Fault:
        name, meta = binding.before.metadata.name, binding.claim.metadata
        volume, claim = self._volumes.get("", name), self._claims.get(meta.namespace, meta.name)
        if volume is None:
            return _failed(f"failed to check binding: could not find v1.PersistentVolume {quoted(name)}")
        if claim is None:
            return _no_claim("binding", binding.claim)
        if binding.write is not None and volume.metadata.resource_version == binding.before.metadata.resource_version:
            return False  # the write is not seen yet
        far = _far(volume, node)
        if far is not None:
            return far
        if volume.spec.claim_ref is None or not volume.spec.claim_ref.uid:
            return _failed(f"ClaimRef got reset for pv {quoted(name)}")
        return is_bound(claim)

    def _provisioned(self, provision: Provision, node: Node) -> bool | Fault:
        before = provision.before.metadata
        claim = self._claims.get(before.namespace, before.name)
        if claim is None:
            return _no_claim("provisioning pvc", provision.before)
        if provision.write is not None and claim.metadata.resource_version == before.resource_version:
            return False
        if not claim.metadata.annotations:
            return _failed(f"selectedNode annotation reset for PVC {quoted(before.name)}")
        if claim.metadata.annotations.get(SELECTED_NODE) != node.metadata.name:
            return _failed(f"provisioning failed for PVC {quoted(before.name)}")  # that is how a provisioner gives up
        if claim.spec.volume_name:
            volume = self._volumes.get("", claim.spec.volume_name)
            if volume is None:
                return False  # it may be on its way
            far = _far(volume, node)
            if far is not None:
                return far
        return is_bound(claim)


def _far(volume: PersistentVolume, node: Node) -> Fault | None:
    near = reach(volume)
    if near is None or near.matches(node):
        return None
    pair = f"pv {quoted(volume.metadata.name)} node affinity doesn't match node {quoted(node.metadata.name)}"
    return _failed(f"{pair}: no matching NodeSelectorTerms")


def _no_claim(what: str, claim: PersistentVolumeClaim) -> Fault:
    key = quoted(f"{claim.metadata.namespace}/{claim.metadata.name}")
    return _failed(f"failed to check {what}: could not find v1.PersistentVolumeClaim {key}")


def _failed(message: str) -> Fault:
    return Fault(f"binding volumes: {message}")
