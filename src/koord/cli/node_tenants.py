"""This module lists the occupants of a node for drawings of what each one holds: its pods and available
reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from koord.api import builtin, custom
from koord.api.annotations import reservation_allocated
from koord.cli import access
from koord.cli.printing import show
from koord.kube.client import Client
from koord.kube.refused import Refused, ok
from koord.telemetry.clock import Clock
from koord.values.names import dns1123_subdomain

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=msgspec.Struct)

_ENDED = ("Succeeded", "Failed")


class Resident(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    name: str
    annotations: Mapping[str, str]
    lives_in: str = ""  # uid of the reservation that it uses
    reservation: bool = False


def draw(
    name: str,
    look: Callable[[Client, str], Coroutine[Any, Any, F]],
    picture: Callable[[Console, F], None],
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Print what is found of a node, as a picture or as data."""
    if wrong := dns1123_subdomain(name):
        access.fail(f"{name!r} is no name of a node: {wrong[0]}")

    async def main(client: Client, clock: Clock) -> None:
        found = await look(client, name)
        show(found, output, lambda console: picture(console, found))

    access.run(main, kubeconfig, context)


async def residents(client: Client, node: str) -> list[Resident]:
    pods = ok(await client.list(builtin.PODS, fields=f"spec.nodeName={node}"))
    found = [
        Resident(
            uid=pod.metadata.uid,
            name=f"{pod.metadata.namespace}/{pod.metadata.name}",
            annotations=pod.metadata.annotations,
            lives_in=_reservation_of(pod.metadata.annotations),
        )
        for pod in pods.items
        if pod.status.phase not in _ENDED
    ]
    return found + await _standing(client, node)


async def _standing(client: Client, node: str) -> list[Resident]:
    reservations = await client.list(custom.RESERVATIONS)
    if isinstance(reservations, Refused) and not reservations.not_found:
        access.fail(str(reservations))
    if isinstance(reservations, Refused):  # a cluster without the kind has none
        return []
    return [
        Resident(
            uid=held.metadata.uid, name=held.metadata.name, annotations=held.metadata.annotations, reservation=True
        )
        for held in reservations.items
        if held.status.node_name == node and held.status.phase == "Available"
    ]


def _reservation_of(annotations: Mapping[str, str]) -> str:
    found = reservation_allocated.parse(annotations)
    return found.uid if isinstance(found, reservation_allocated.ReservationAllocated) else ""
