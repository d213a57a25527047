"""Decide whether a kubelet admits a pod that was bound to its node; a rejection is final. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from koord.embedded.kubelet.view import Template

# Resources that every node has. An extended resource that a node does not list is somebody else's business.
_NATIVE = frozenset(("cpu", "memory", "ephemeral-storage", "pods"))


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    message: str


def admit(
    template: Template,
    allocatable: Mapping[str, int],
    used: Mapping[str, int],
    ports: Collection[tuple[str, str, int]],
    labels: Mapping[str, str],
) -> Rejection | None:
    """Return why the node rejects the pod, or None. `used` and `ports` are those of the pods on the node that
    are not over.
    """
    for name, asked in (("pods", 1), *template.requests.items()):
        known = name in allocatable
        if asked == 0 or (not known and name not in _NATIVE):
            continue
        taken, room = used.get(name, 0), allocatable.get(name, 0)
        if taken + asked > room:
            return _rejected(
                f"OutOf{name}",
                f"Node didn't have enough resource: {name}, requested: {asked}, used: {taken}, capacity: {room}",
            )
    if any(labels.get(key) != value for key, value in template.node_selector.items()):
        return _rejected(
            "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        )
    if any(_clashes(port, taken) for port in template.host_ports for taken in ports):
        return _rejected(
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        )
    return None


def _clashes(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    """Return whether two host ports are the same, on the same address or with either of them on all addresses."""
    return one[1:] == other[1:] and (one[0] == other[0] or "0.0.0.0" in (one[0], other[0]))


def _rejected(reason: str, message: str) -> Rejection:
    return Rejection(reason=reason, message=f"Pod was rejected: {message}")
