"""This module is `koord dashboard`: the dashboard of any cluster, served on this machine alone."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import click

from koord.api.config.component import parse_bind_address
from koord.api.kubernetes.builtin_kinds import NAMESPACES
from koord.cli import cluster_access
from koord.cli.commands.dashboard.program_places import PORTS, GivenPlaces
from koord.cli.commands.dashboard.running import RunningDashboard
from koord.dashboard.history_file import HistoryFile
from koord.dashboard.server import NotLoopback
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError
from koord.telemetry.clock import Clock

NO_HISTORY = "none"


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="A loopback address. Port 0: any free port.",
)
@click.option(
    "--history",
    default="",
    metavar="FILE",
    help="Where time lines are kept over restarts; none: nowhere. Default: a file for each cluster below "
    "$XDG_STATE_HOME or ~/.local/state.",
)
@click.option(
    "--program-namespace", default="", help="Where koord's programs run. Default: found by their label koord-app."
)
@click.option(
    "--program-port",
    "ports",
    multiple=True,
    metavar="PROGRAM=PORT",
    help=f"The port of one of {', '.join(PORTS)}. Default: the one that its pods call metrics.",
)
@cluster_access.cluster_options
def dashboard(
    listen: str, history: str, program_namespace: str, ports: tuple[str, ...], kubeconfig: str, context: str
) -> None:
    """Serve a read-only dashboard of a cluster on this machine, and print its address.

    A kubeconfig is enough: nodes, pods and what they request come from the API server. What koord's programs report is
    shown where they run. The address carries a token and works on this machine only; Ctrl-C ends it.
    """
    address = parse_bind_address(listen)
    if address is None:
        cluster_access.fail(f"--listen {listen}: expected HOST:PORT, for example 127.0.0.1:8080")
    host, port = address[0] or "127.0.0.1", address[1]
    given = GivenPlaces(namespace=program_namespace, ports=_parse_ports(ports))

    async def main(client: Client, clock: Clock) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with InformerFactory(client, clock) as informers:
            kept = await _history_file(client, history)
            if isinstance(kept, str):
                click.echo(f"koord: {kept}", err=True)
                kept = None
            running = RunningDashboard(client, informers, clock, kept, given)
            try:
                url = await running.listen(host, port)
            except NotLoopback as wrong:
                cluster_access.fail(f"--listen {listen}: {wrong}")
            except (OSError, ValueError) as error:
                cluster_access.fail(f"cannot listen on {listen}: {getattr(error, 'strerror', None) or error}")
            running.start()
            try:
                click.echo(f"koord: dashboard {url}")
                await stop.wait()
            finally:
                await running.stop()

    cluster_access.run_with_client(main, kubeconfig, context)


def _parse_ports(texts: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in texts:
        name, _, port = text.partition("=")
        if name not in PORTS or not port.isdecimal() or not 0 < int(port) < 65536:
            cluster_access.fail(f"--program-port {text}: expected PROGRAM=PORT, PROGRAM one of {', '.join(PORTS)}")
        found[name] = int(port)
    return found


async def _history_file(client: Client, stated: str) -> HistoryFile | str | None:
    """Return the file of this cluster's past, None where nothing is to be kept, or why nothing can be."""
    if stated:
        return None if stated == NO_HISTORY else HistoryFile(Path(stated))
    found = await client.get(NAMESPACES, "kube-system")  # its uid is what tells clusters apart
    if isinstance(found, ApiError):
        return f"the past is not kept, because the cluster cannot be told from others: {found.message}"
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return HistoryFile(Path(base) / "koord" / "dashboard" / f"{found.metadata.uid}.json")
