"""This module is `koord deschedule --dry-run`: what a round of the descheduler would do, on a live cluster or
a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from koord.api.config.descheduler import shipped
from koord.api.config.descheduler.configuration import DeschedulerConfiguration
from koord.api.protocol import DESCHEDULER_NAME
from koord.api.resource import Resource
from koord.cli import access
from koord.cli.deschedule_plan import Plan, planned
from koord.cli.deschedule_table import DryRun, print_dry_run
from koord.cli.descheduler_config import read
from koord.cli.printing import show
from koord.cli.simulate_input import objects_in
from koord.descheduler.assembly import load
from koord.descheduler.explain.account import round_account
from koord.descheduler.explain.gathering import gathered, wanted
from koord.descheduler.explain.load import standings
from koord.descheduler.framework.round import decide, ready_nodes
from koord.descheduler.plugins.low_node_load import LowNodeLoad
from koord.kube.client import Client
from koord.kube.refused import Refused
from koord.scheduler.explain.snapshot import Snapshot as Kept
from koord.telemetry.clock import Clock

PORT = 10251
_REAL = (
    "this command only shows what would happen: add --dry-run. Real rounds are those of koord-descheduler "
    "(koord up runs one; --set descheduler.config=FILE tells it which plugins to run)"
)


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what a round would do, changing nothing. There is no other way.")
@click.option("--plugin", default="", metavar="NAME", help="Only this plugin, whether or not it is enabled.")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="DeschedulerConfiguration. Default: that of the running koord-descheduler, else the one that is shipped.",
)
@click.option(
    "--snapshot",
    "snapshot_file",
    metavar="PATH",
    help="Decide on this file, or on the files of this folder (kubectl get nodes,pods,... -A -o yaml).",
)
@click.option("--save", metavar="FILE", help="Write the live cluster's state here, to be used as --snapshot later.")
@click.option(
    "--certain/--no-certain", default=True, show_default=True, help="Take a node that is too full now as one for long."
)
@click.option("--descheduler-namespace", default=access.NAMESPACE, show_default=True, help="Where it runs.")
@click.option("--descheduler-port", default=PORT, show_default=True, help="The port it tells about itself on.")
@access.output
@access.options
def deschedule(
    dry_run: bool,
    plugin: str,
    config_file: str | None,
    snapshot_file: str | None,
    save: str | None,
    certain: bool,
    descheduler_namespace: str,
    descheduler_port: int,
    output: str,
    kubeconfig: str,
    context: str,
) -> None:
    """Show which pods a round would move, from where to where and why, and which it would not and who said so.

    The decision is the descheduler's own, so a real round on the same state chooses the same pods.
    """
    if not dry_run:
        access.fail(_REAL)
    if snapshot_file is not None:
        if save is not None:
            access.fail("--save needs a live cluster; with --snapshot there is a file already")
        config, source = _configured(config_file) or (shipped.configuration(), "the one that is shipped")
        plan = _planned(config, plugin, certain)
        _print(_decided(plan, Kept(_kept(Path(snapshot_file))), None, source, certain), output)
        return

    async def main(client: Client, clock: Clock) -> None:
        found = _configured(config_file) or await _running(client, descheduler_namespace, descheduler_port)
        plan = _planned(found[0], plugin, certain)
        kept = await _live(client, wanted(plan.assembly.plugins()))
        if save is not None:
            _save(kept, save)
        _print(_decided(plan, kept, clock.time(), found[1], certain), output)

    access.run(main, kubeconfig, context)


def _configured(file: str | None) -> tuple[DeschedulerConfiguration, str] | None:
    if file is None:
        return None
    found = read(file)
    if isinstance(found, list):
        access.fail(f"--config: {'; '.join(found)}")
    return found, file


async def _running(client: Client, namespace: str, port: int) -> tuple[DeschedulerConfiguration, str]:
    answer = await access.ask(client, DESCHEDULER_NAME, "/configz", namespace, port)
    config = load(answer.get("componentconfig")) if isinstance(answer, dict) else []
    if isinstance(config, list):
        return shipped.configuration(), "the one that is shipped, as no koord-descheduler answers"
    return config, "that of the running koord-descheduler"


def _planned(config: DeschedulerConfiguration, plugin: str, certain: bool) -> Plan:
    plan = planned(config, plugin=plugin, certain=certain)
    if isinstance(plan, str):
        access.fail(plan)
    return plan


def _kept(place: Path) -> list[dict[str, Any]]:
    if not place.is_dir():
        return objects_in(str(place))
    files = sorted(file for file in place.iterdir() if file.suffix in (".yaml", ".yml", ".json"))
    if not files:
        access.fail(f"{place}: there is no .yaml or .json file in it")
    return [each for file in files for each in objects_in(str(file))]


async def _live(client: Client, resources: Sequence[Resource[Any]]) -> Kept:
    async def listed(resource: Resource[Any]) -> list[dict[str, Any]]:
        answer = await client.plain.list(resource)
        if isinstance(answer, Refused):
            if answer.not_found:  # a kind that this server does not have: there can be none of it
                return []
            access.fail(f"cannot list {resource.plural}: {answer.message}")
        return [{"apiVersion": resource.api_version, "kind": resource.kind, **item} for item in answer.items]

    lists = await asyncio.gather(*map(listed, resources))
    return Kept(item for items in lists for item in items)


def _save(kept: Kept, file: str) -> None:
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": kept.objects()}, sort_keys=False)
    try:
        Path(file).write_text(text)
    except OSError as error:
        access.fail(f"--save {file}: {error.strerror}")


def _decided(plan: Plan, kept: Kept, now_s: float | None, source: str, certain: bool) -> DryRun:
    assembly = plan.assembly
    plugins = assembly.plugins()
    try:
        snapshot = gathered(kept.typed, plugins, now_s)
    except msgspec.ValidationError as error:
        access.fail(f"the snapshot holds something unexpected: {error}")
    ready = ready_nodes(snapshot, assembly.nodes)
    watching = [one for one in plugins if isinstance(one, LowNodeLoad)]
    seen = [pool for one in watching for pool in standings(one, ready, snapshot)]
    outcome = decide(assembly.profiles, snapshot, assembly.limits, nodes=assembly.nodes, dry_run=True)
    asked = [one.name for profile in assembly.profiles for one in (*profile.deschedule, *profile.balance)]
    return DryRun(
        configuration=source,
        plugins=list(dict.fromkeys(asked)),
        certain=certain,
        nodes=len(snapshot.nodes),
        pods=len(snapshot.pods),
        pools=seen,
        notes=plan.notes,
        round=round_account(outcome, plugins, snapshot.now_s),
    )


def _print(found: DryRun, output: str) -> None:
    show(found, output, lambda console: print_dry_run(console, found))
