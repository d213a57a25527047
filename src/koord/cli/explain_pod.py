"""This module is `koord explain pod`: where a pod stands with the scheduler, asked of the scheduler itself."""

from __future__ import annotations

import click
import msgspec

from koord.api.builtin import PODS
from koord.api.protocol import SCHEDULER
from koord.cli import access
from koord.cli.explain_pod_table import print_account
from koord.cli.printing import show
from koord.kube.client import Client
from koord.kube.refused import Refused
from koord.scheduler.explain.account import Account
from koord.telemetry.clock import Clock

PORT = 10251


@click.command()
@click.argument("pod", metavar="[NAMESPACE/]NAME")
@click.option("-n", "--namespace", default="", help="The pod's namespace, if it is not part of its name.")
@click.option("--scheduler-namespace", default=access.NAMESPACE, show_default=True, help="Where koord-scheduler runs.")
@click.option("--scheduler-port", default=PORT, show_default=True, help="The port of its --port.")
@access.output
@access.options
def pod(
    pod: str,
    namespace: str,
    scheduler_namespace: str,
    scheduler_port: int,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Say why a pod is where it is.

    Held back before the queue and by whom, queued, backing off, refused by which plugins on how many nodes, waiting to
    be allowed, or bound and how the best nodes scored.
    """
    space, _, name = pod.rpartition("/")
    space = space or namespace or "default"

    async def main(client: Client, clock: Clock) -> None:
        path = f"/apis/v1/explain/pods/{space}/{name}"
        answer = await access.ask(client, SCHEDULER, path, scheduler_namespace, scheduler_port)
        if isinstance(answer, str):
            known = await client.get(PODS, name, space)
            if isinstance(known, Refused):
                access.fail(known.message)
            access.fail(f"koord-scheduler gives no account of {space}/{name}: {answer}")
        found = msgspec.convert(answer, Account)
        show(found, output, lambda console: print_account(console, found, clock.time()))

    access.run(main, kubeconfig, context)
