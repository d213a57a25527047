"""This module is `koord quota`: what every quota may use now and why, and what it would say of a pod."""

from __future__ import annotations

import click
import msgspec

from koord.api.protocol import SCHEDULER
from koord.cli import access, local_scheduler
from koord.cli.explain_pod import PORT
from koord.cli.printing import show
from koord.cli.quota_table import print_tree, print_verdicts
from koord.kube.client import Client
from koord.scheduler.explain.quota import Tree, Verdict
from koord.scheduler.explain.quota_service import TREE
from koord.telemetry.clock import Clock


@click.group()
def quota() -> None:
    """Show what quotas may use now, and who lends to whom."""


@quota.command()
@click.argument("name", default="")
@click.option("--scheduler-namespace", default=access.NAMESPACE, show_default=True, help="Where koord-scheduler runs.")
@click.option("--scheduler-port", default=PORT, show_default=True, help="The port of its --port.")
@access.output
@access.options
def tree(name: str, scheduler_namespace: str, scheduler_port: int, output: str, kubeconfig: str, context: str) -> None:
    """A statement of all quotas, or of NAME and those below it.

    Guaranteed (min), cap (max), entitled now, in use, asked for, lent to whom, borrowed from whom, and why the last pod
    was refused. The numbers are the running scheduler's own.
    """

    async def main(client: Client, clock: Clock) -> None:
        answer = await access.ask(client, SCHEDULER, f"/apis/v1{TREE}", scheduler_namespace, scheduler_port)
        if isinstance(answer, str):
            access.fail(f"koord-scheduler tells nothing of quotas: {answer}")
        found = _below(msgspec.convert(answer, Tree), name)
        if name and not found.quotas:
            access.fail(f"there is no quota {name}")
        show(found, output, lambda console: print_tree(console, found, clock.time()))

    access.run(main, kubeconfig, context)


def _below(found: Tree, name: str) -> Tree:
    if not name:
        return found
    kept = {name}
    for one in found.quotas:  # parents come before their children
        if one.parent in kept:
            kept.add(one.quota)
    return Tree(tuple(one for one in found.quotas if one.quota in kept))


@quota.command("what-if")
@click.option("-f", "--filename", "files", multiple=True, required=True, metavar="FILE", help="Pods or workloads.")
@click.option("-n", "--namespace", default="default", show_default=True, help="For objects that name none.")
@click.option("--snapshot", "snapshot_file", metavar="FILE", help="Decide on this file instead of a live cluster.")
@access.output
@access.options
def what_if(
    files: tuple[str, ...], namespace: str, snapshot_file: str | None, output: str, kubeconfig: str, context: str
) -> None:
    """Say whether pods would be let in by their quotas, one after another. Nothing is changed.

    Whether a node has room for them is a question for `koord simulate`.
    """
    from koord.cli.quota_question import asked_live, asked_of_file

    assembly = local_scheduler.assembled()
    if isinstance(assembly, str):
        access.fail(assembly)

    def answer(found: list[Verdict]) -> None:
        show(found, output, lambda console: print_verdicts(console, found))

    if snapshot_file is not None:
        answer(asked_of_file(assembly, files, namespace, snapshot_file))
        return

    async def main(client: Client, clock: Clock) -> None:
        answer(await asked_live(client, assembly, files, namespace))

    access.run(main, kubeconfig, context)
