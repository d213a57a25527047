"""This module is `koord dashboard`: the dashboard of any cluster, served on this machine alone."""

from __future__ import annotations

import asyncio
import signal

import click

from koord.api.config.component import parse_bind_address
from koord.cli import cluster_access
from koord.cli.commands.dashboard.running import RunningDashboard
from koord.dashboard.server import NotLoopback
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.telemetry.clock import Clock


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="A loopback address. Port 0: any free port.",
)
@cluster_access.cluster_options
def dashboard(listen: str, kubeconfig: str, context: str) -> None:
    """Serve a read-only dashboard of a cluster on this machine, and print its address.

    A kubeconfig is enough: nodes, pods and what they request come from the API server. What koord's programs report is
    shown where they run. The address carries a token and works on this machine only; Ctrl-C ends it.
    """
    address = parse_bind_address(listen)
    if address is None:
        cluster_access.fail(f"--listen {listen}: expected HOST:PORT, for example 127.0.0.1:8080")
    host, port = address[0] or "127.0.0.1", address[1]

    async def main(client: Client, clock: Clock) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with InformerFactory(client, clock) as informers:
            running = RunningDashboard(client, informers, clock)
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
