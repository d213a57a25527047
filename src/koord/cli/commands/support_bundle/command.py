"""This module is `koord support-bundle`: it saves the findings of koord doctor, objects and logs in an archive."""

from __future__ import annotations

from pathlib import Path

import click

from koord.cli import cluster_access
from koord.cli.commands.doctor.command import CANNOT_ASK, reason_not_to_judge
from koord.cli.commands.doctor.gather import gather_facts
from koord.cli.commands.doctor.registry import CHECK_IDS, run_checks
from koord.cli.commands.support_bundle.collection import build_archive, collect_bundle
from koord.cli.printing import format_bytes
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.telemetry.certificates import write_private_file
from koord.telemetry.clock import Clock

TAIL_LINES = 5000


@click.command("support-bundle")
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .tar.gz to write."
)
@click.option(
    "-n", "--namespace", default=cluster_access.NAMESPACE, show_default=True, help="Where koord is installed."
)
@click.option("--tail", default=TAIL_LINES, show_default=True, type=click.IntRange(1), help="Lines of each log.")
@click.option("--koordlet-port", default=PORT, show_default=True, help="The port of koordlet's --addr.")
@cluster_access.cluster_options
def support_bundle(output: Path, namespace: str, tail: int, koordlet_port: int, kubeconfig: str, context: str) -> None:
    """Save what a report of a problem needs in an archive: findings of koord doctor, objects of koord's kinds, events,
    leases, logs and versions.

    Secrets are left out; tokens, passwords, private keys and values of environment variables are replaced. Look into
    the archive before you send it: names and addresses of your cluster are in it. Ends with 0 when it was written, 2
    when the cluster could not be asked or the file not written.
    """

    async def main(client: Client, clock: Clock) -> None:
        facts = await gather_facts(client, clock, namespace, checks=CHECK_IDS, port=koordlet_port)
        if wrong := reason_not_to_judge(facts):
            cluster_access.fail(wrong, CANNOT_ASK)
        content = await collect_bundle(client, facts, run_checks(facts), tail)
        archive = build_archive(content, facts.at.timestamp())
        try:
            write_private_file(output, archive)
        except OSError as error:
            cluster_access.fail(f"cannot write {output}: {error.strerror}", CANNOT_ASK)
        click.echo(f"{output}: {len(content.files)} files, {format_bytes(len(archive))}")
        click.echo("Left out:")
        for line in content.left_out:
            click.echo(f"  {line}")

    cluster_access.run_with_client(main, kubeconfig, context, exit_code=CANNOT_ASK)
