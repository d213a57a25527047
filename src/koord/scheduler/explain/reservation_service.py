"""Serve the reservations of a node below /apis/v1, with the fields of Koordinator's service."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.policy.reservation.standing import Standing
from koord.scheduler.explain.live import Explainer
from koord.scheduler.plugins.reservation.book import Book
from koord.telemetry.routing import Call, Handler, json, trouble
from koord.values.resources import materialise, to_wire

_NONE = "no profile of this scheduler enables Reservation"


def routes(explainer: Explainer) -> tuple[tuple[str, Handler], ...]:
    def node(call: Call) -> Any:
        book = explainer.reservations()
        if book is None:
            return trouble(404, _NONE)
        return json({"items": [item(book, standing) for standing in book.register.on(call.parameters["nodeName"])]})

    return (("/plugins/Reservation/nodeReservations/:nodeName", node),)


def item(book: Book, standing: Standing) -> dict[str, Any]:
    held = standing.holding
    known = book.reservations.get(held.uid)
    left = {name: amount - standing.allocated.get(name, 0) for name, amount in held.reserved.items()}
    return {
        "name": held.name,
        "namespace": "",
        "uid": held.uid,
        "kind": "Pod" if held.is_pod else "Reservation",
        "available": held.available,
        "allocateOnce": held.once,
        "allocatable": _wire(held.reserved),
        "reserved": _wire(held.inner),
        "allocated": _wire(standing.allocated),
        "availableResource": _wire({name: max(0, amount) for name, amount in left.items()}),
        "allocatedResource": _wire(standing.allocated),
        "owners": [_plain(owner) for owner in known.spec.owners] if known is not None else [],
        "allocatePolicy": held.wire_policy,
        "assignedPods": [_assigned(book, uid) for uid in sorted(book.register.parts(held.uid))],
    }


def _assigned(book: Book, uid: str) -> dict[str, Any]:
    pod, part = book.state.placed(uid), book.register.occupant(uid)
    return {
        "Namespace": pod.namespace if pod is not None else "",
        "Name": pod.name if pod is not None else "",
        "UID": uid,
        "Requests": _wire(part.requests) if part is not None else {},
    }


def _wire(amounts: Any) -> dict[str, str]:
    return dict(to_wire(materialise(dict(amounts))))


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)
