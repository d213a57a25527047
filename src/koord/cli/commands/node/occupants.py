"""This module lists the occupants of a node for drawings of what each one holds: its pods and available
reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from koord.api.annotations import reservation_codecs
from koord.api.koordinator import custom_kinds
from koord.api.kubernetes import builtin_kinds
from koord.cli import cluster_access
from koord.cli.printing import print_result
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.telemetry.clock import Clock
from koord.values.names import dns1123_subdomain

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=msgspec.Struct)

_ENDED_PHASES = ("Succeeded", "Failed")


class NodeOccupant(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    name: str
    annotations: Mapping[str, str]
    lives_in: str = ""  # uid of the reservation that it uses
    reservation: bool = False


def show_node(
    name: str,
    look: Callable[[Client, str], Coroutine[Any, Any, F]],
    picture: Callable[[Console, F], None],
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Print what is found of a node, as a picture or as data."""
    if wrong := dns1123_subdomain(name):
        cluster_access.fail(f"{name!r} is no name of a node: {wrong[0]}")

    async def main(client: Client, clock: Clock) -> None:
        found = await look(client, name)
        print_result(found, output, lambda console: picture(console, found))

    cluster_access.run_with_client(main, kubeconfig, context)


async def list_occupants(client: Client, node: str) -> list[NodeOccupant]:
    pods = unwrap(await client.list(builtin_kinds.PODS, fields=f"spec.nodeName={node}"))
    found = [
        NodeOccupant(
            uid=pod.metadata.uid,
            name=f"{pod.metadata.namespace}/{pod.metadata.name}",
            annotations=pod.metadata.annotations,
            lives_in=_consumed_reservation_uid(pod.metadata.annotations),
        )
        for pod in pods.items
        if pod.status.phase not in _ENDED_PHASES
    ]
    return found + await _available_reservations(client, node)


async def _available_reservations(client: Client, node: str) -> list[NodeOccupant]:
    reservations = await client.list(custom_kinds.RESERVATIONS)
    if isinstance(reservations, ApiError) and not reservations.not_found:
        cluster_access.fail(str(reservations))
    if isinstance(reservations, ApiError):  # a cluster without the kind has none
        return []
    return [
        NodeOccupant(
            uid=held.metadata.uid, name=held.metadata.name, annotations=held.metadata.annotations, reservation=True
        )
        for held in reservations.items
        if held.status.node_name == node and held.status.phase == "Available"
    ]


def _consumed_reservation_uid(annotations: Mapping[str, str]) -> str:
    found = reservation_codecs.parse_reservation_allocated(annotations)
    return found.uid if isinstance(found, reservation_codecs.ReservationAllocated) else ""
