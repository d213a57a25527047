"""Serve the reservations of a node below /apis/v1, with the fields of Koordinator's service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from koord.scheduler.cache.pod_info import HostPort
from koord.scheduler.plugins.reservation.cache import ReservationCache
from koord.scheduler.plugins.reservation.reservation_info import ReservationUsage
from koord.telemetry.http_routing import HttpCall, HttpHandler, error_reply, json_reply
from koord.values.resources import materialise, to_wire

_NOT_ENABLED = "no profile of this scheduler enables Reservation"

_NO_SELECTOR_INDEX = (
    "reservationSelectorIndex is not served: this scheduler finds reservations by an index of its own, which needs no "
    "keys or prefixes; the reservations of a node are at plugins/Reservation/nodeReservations/NODE"
)


def routes(cache: ReservationCache | None) -> tuple[tuple[str, HttpHandler], ...]:
    """Build the routes; `cache` is None when no profile has reservations."""

    def node(call: HttpCall) -> Any:
        if cache is None:
            return error_reply(404, _NOT_ENABLED)
        on_node = cache.register.on_node(call.parameters["nodeName"])
        return json_reply({"items": [reservation_item(cache, usage) for usage in on_node]})

    def selector_index(call: HttpCall) -> Any:
        return error_reply(501, _NO_SELECTOR_INDEX)

    return (
        ("/plugins/Reservation/nodeReservations/:nodeName", node),
        ("/plugins/Reservation/reservationSelectorIndex", selector_index),
    )


def reservation_item(cache: ReservationCache, usage: ReservationUsage) -> dict[str, Any]:
    info = usage.info
    known, holder = cache.reservations.get(info.uid), cache.state.placed_pod(info.uid)
    owners = sorted(cache.register.owner_pods(info.uid))
    reserved_ports = holder.shape.host_ports if holder is not None else ()
    used_ports = {port for uid in owners for port in _host_ports(cache, uid)}
    left = {name: amount - usage.allocated.get(name, 0) for name, amount in info.reserved.items()}
    return {
        "name": info.name,
        "namespace": holder.namespace if info.is_operating_pod and holder is not None else "",
        "uid": info.uid,
        "kind": "Pod" if info.is_operating_pod else "Reservation",
        "available": info.available,
        "allocateOnce": info.allocate_once,
        "allocatable": _wire(info.reserved),
        "reserved": _wire(info.node_reserved),
        "allocated": _wire(usage.allocated),
        "allocatablePorts": _ports(reserved_ports),
        "allocatedPorts": _ports(port for port in reserved_ports if port in used_ports),
        "availableResource": _wire({name: max(0, amount) for name, amount in left.items()}),
        "allocatedResource": _wire(usage.allocated),
        "owners": [msgspec.to_builtins(owner) for owner in known.spec.owners] if known is not None else [],
        "allocatePolicy": info.effective_policy,
        "assignedPods": [_assigned(cache, uid) for uid in owners],
    }


def _assigned(cache: ReservationCache, uid: str) -> dict[str, Any]:
    pod, part = cache.state.placed_pod(uid), cache.register.owner_pod(uid)
    return {
        "Namespace": pod.namespace if pod is not None else "",
        "Name": pod.name if pod is not None else "",
        "UID": uid,
        "Requests": _wire(part.requests) if part is not None else {},
        "Ports": _ports(_host_ports(cache, uid)),
    }


def _host_ports(cache: ReservationCache, uid: str) -> tuple[HostPort, ...]:
    pod = cache.state.placed_pod(uid)
    return pod.shape.host_ports if pod is not None else ()


def _ports(ports: Iterable[HostPort]) -> dict[str, list[str]]:
    """Return host ports by address, in the form that the node service has for used ports."""
    found: dict[str, list[str]] = {}
    for protocol, address, port in sorted(ports):
        found.setdefault(address, []).append(f"{protocol}/{port}")
    return found


def _wire(amounts: Any) -> dict[str, str]:
    return dict(to_wire(materialise(dict(amounts))))
