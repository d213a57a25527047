"""This module is `koord deschedule --dry-run`: what a round of the descheduler would do, on a live cluster or
a snapshot, printed plugin by plugin, then what was declined and which nodes were not judged.

A dry run is planned first: which plugins it asks, by what configuration, and the notes for its reader.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from koord.api.config.component import PluginConfig, PluginEntry, PluginSet
from koord.api.config.descheduler import configuration
from koord.api.config.descheduler.configuration import (
    DeschedulerConfiguration,
    DeschedulerPlugins,
    DeschedulerProfile,
    defaulted,
)
from koord.api.koordinator.protocol import DESCHEDULER_NAME
from koord.cli import cluster_access
from koord.cli.commands.object_lists import list_live_objects, read_objects, save_objects
from koord.cli.daemons.descheduler_config import read_descheduler_config
from koord.cli.printing import plain_table, print_result
from koord.descheduler.configuration import DeschedulerSetup, build_setup, load_config
from koord.descheduler.explain import round_report
from koord.descheduler.framework.round import ready_nodes, run_round
from koord.descheduler.plugins.low_node_load.plugin import LowNodeLoad
from koord.descheduler.plugins.registry import ENTRY_POINT_GROUP, load_registry
from koord.descheduler.snapshot_source import required_resources, snapshot_from_lists
from koord.kube.client.typed_client import Client
from koord.scheduler.explain.what_if import ApiSnapshot as Kept
from koord.telemetry.clock import Clock

if TYPE_CHECKING:
    from rich.console import Console

PROPOSING_POINTS = ("deschedule", "balance")
IMMEDIATE_ANOMALY_CONDITION = {"timeout": "1m", "consecutiveAbnormalities": 1, "consecutiveNormalities": 1}


class DryRunPlan(msgspec.Struct, frozen=True):
    assembly: DeschedulerSetup
    notes: list[str]


def plan_dry_run(given: DeschedulerConfiguration, *, plugin: str = "", certain: bool = True) -> DryRunPlan | str:
    """Plan a dry run. `plugin` alone is asked, if named: with the arguments that the configuration has for it,
    whether or not it is enabled.
    """
    notes: list[str] = []
    config = defaulted(given)
    if plugin:
        chosen = _limit_to_plugin(config, plugin, notes)
        if isinstance(chosen, str):
            return chosen
        config = chosen
    running = _enabled_plugin_names(config)
    if not running:
        notes.append(
            "The configuration enables no plugin that moves pods. Name one with --plugin, for example LowNodeLoad."
        )
    if configuration.LOW_NODE_LOAD in running:
        if certain:
            config = _without_anomaly_wait(config)
            notes.append(
                "Every full node counts as certain. A running descheduler waits until a node was too full in several "
                "rounds in a row (anomalyCondition); --no-certain shows what a first round would do."
            )
        else:
            notes.append("This is a first round: no node can be known for long enough, unless one mark is enough.")
    made = _assembled(config)
    return made if isinstance(made, str) else DryRunPlan(made, [*notes, *_paused_plugin_notes(made)])


def _assembled(config: DeschedulerConfiguration) -> DeschedulerSetup | str:
    made = build_setup(config, load_registry(entry_points(group=ENTRY_POINT_GROUP)).factories)
    return "; ".join(map(str, made)) if isinstance(made, list) else made


def _enabled_plugin_names(config: DeschedulerConfiguration) -> set[str]:
    return {
        one.name
        for profile in config.profiles
        for point in PROPOSING_POINTS
        for one in getattr(profile.plugins or DeschedulerPlugins(), point).enabled
    }


def _limit_to_plugin(config: DeschedulerConfiguration, plugin: str, notes: list[str]) -> DeschedulerConfiguration | str:
    """Leave out the other plugins that propose; filters and evictors stay."""
    if plugin in _enabled_plugin_names(config):
        return _with_profiles(config, tuple(_profile_with_plugin(profile, plugin) for profile in config.profiles))
    notes.append(f"{plugin} is not enabled in the configuration: this is what it would do if it were.")
    first, *rest = (_profile_with_plugin(profile, plugin) for profile in config.profiles)
    configured = any(one.name == plugin and one.args for one in first.plugin_config)
    if not configured and plugin == configuration.LOW_NODE_LOAD:
        others = tuple(one for one in first.plugin_config if one.name != plugin)
        args = configuration.shipped_low_node_load_args()
        first = msgspec.structs.replace(first, plugin_config=(*others, PluginConfig(name=plugin, args=args)))
        low, high = (
            ", ".join(f"{k} {v}" for k, v in configuration.SHIPPED_LOW_THRESHOLDS.items()),
            ", ".join(f"{name} {percent}" for name, percent in configuration.SHIPPED_HIGH_THRESHOLDS.items()),
        )
        notes.append(f"It has no arguments: thresholds are those that are shipped, {low} % and {high} %.")
    wrong = ""
    for point in PROPOSING_POINTS:
        plugins = msgspec.structs.replace(
            first.plugins or DeschedulerPlugins(), **{point: PluginSet(enabled=(PluginEntry(name=plugin),))}
        )
        tried = _with_profiles(config, (msgspec.structs.replace(first, plugins=plugins), *rest))
        made = _assembled(tried)
        if not isinstance(made, str):
            return tried
        if "does not extend" not in made:
            wrong = wrong or made
    return wrong or f"{plugin} neither deschedules nor balances"


def _profile_with_plugin(profile: DeschedulerProfile, plugin: str) -> DeschedulerProfile:
    given = profile.plugins or DeschedulerPlugins()
    kept = {
        point: PluginSet(enabled=tuple(one for one in getattr(given, point).enabled if one.name == plugin))
        for point in PROPOSING_POINTS
    }
    limited: DeschedulerProfile = msgspec.structs.replace(profile, plugins=msgspec.structs.replace(given, **kept))
    return limited


def _without_anomaly_wait(config: DeschedulerConfiguration) -> DeschedulerConfiguration:
    def sure(profile: DeschedulerProfile) -> DeschedulerProfile:
        entries = tuple(
            msgspec.structs.replace(one, args=_immediate_args(one.args))
            if one.name == configuration.LOW_NODE_LOAD
            else one
            for one in profile.plugin_config
        )
        changed: DeschedulerProfile = msgspec.structs.replace(profile, plugin_config=entries)
        return changed

    return _with_profiles(config, tuple(map(sure, config.profiles)))


def _immediate_args(args: dict[str, Any]) -> dict[str, Any]:
    changed = {**args, "anomalyCondition": IMMEDIATE_ANOMALY_CONDITION}
    if args.get("nodePools"):
        changed["nodePools"] = [{**pool, "anomalyCondition": IMMEDIATE_ANOMALY_CONDITION} for pool in args["nodePools"]]
    return changed


def _with_profiles(
    config: DeschedulerConfiguration, profiles: tuple[DeschedulerProfile, ...]
) -> DeschedulerConfiguration:
    changed: DeschedulerConfiguration = msgspec.structs.replace(config, profiles=profiles)
    return changed


def _paused_plugin_notes(assembly: DeschedulerSetup) -> list[str]:
    running = {one.name for profile in assembly.profiles for one in (*profile.deschedule, *profile.balance)}
    return [
        f"{entry.name} is paused by its arguments and proposes nothing."
        for profile in assembly.config.profiles
        for entry in profile.plugin_config
        if entry.name in running and (entry.args or {}).get("paused")
    ]


MAX_TABLE_ROWS = 30  # rows of one table


class DescheduleDryRun(msgspec.Struct, frozen=True, kw_only=True):
    configuration: str  # where it came from
    plugins: list[str]
    certain: bool
    nodes: int
    pods: int
    notes: list[str]
    round: round_report.RoundReport
    pools: list[round_report.PoolLoadReport] = []  # as LowNodeLoad sees them


def print_dry_run(console: Console, found: DescheduleDryRun) -> None:
    asked = ", ".join(found.plugins) or "none"
    at = found.round.at
    console.print(f"A dry run over {found.nodes} nodes and {found.pods} pods. Nothing is changed.", style="bold")
    console.print(f"  configuration  {found.configuration}")
    console.print(f"  plugins        {asked}")
    if at is not None:
        console.print(f"  as of          {at:%Y-%m-%d %H:%M:%S} UTC")
    for note in found.notes:
        console.print(f"Note: {note}")
    for pool in found.pools:
        print_pool(console, pool)
    if found.round.error:
        console.print(f"\nThe round would end early: {found.round.error}", style="bold red")
    print_round(console, found.round)


def print_round(console: Console, account: round_report.RoundReport) -> None:
    if not account.proposals:
        console.print("\nNothing would move.", style="bold")
    for plugin in dict.fromkeys(one.plugin for one in account.proposals):
        mine = [one for one in account.proposals if one.plugin == plugin]
        console.print(f"\n{plugin} would {_proposal_counts(mine)}:", style="bold green")
        _print_moves(console, [one for one in mine if one.does == round_report.EVICT])
        for one in mine:
            if one.does != round_report.EVICT:
                console.print(f"  {_other_effect_text(one)}: {one.reason}")
    _print_refusals(console, "Wanted, and declined", account.refusals)
    _print_refusals(console, "Looked at, and not proposed", account.passed_over)
    if account.left_out:
        console.print("\nNodes that could not be judged:", style="bold yellow")
        table = plain_table("  NODE", "BY", "WHY")
        for out in account.left_out:
            table.add_row(f"  {out.node}", out.plugin, out.why)
        console.print(table)


def print_pool(console: Console, pool: round_report.PoolLoadReport) -> None:
    """Print the nodes of a pool; nodes within their thresholds are only counted when there are many."""
    title = f" of pool {pool.pool}" if pool.pool else ""
    shown = (
        [one for one in pool.nodes if one.standing != round_report.APPROPRIATE]
        if len(pool.nodes) > MAX_TABLE_ROWS
        else pool.nodes
    )
    if shown:
        console.print(f"\nLowNodeLoad sees the nodes{title} so:", style="bold")
        resources = list(dict.fromkeys(name for one in shown for name in one.used))
        of_prod = list(dict.fromkeys(name for one in shown for name in one.prod_used))
        titles = [name.upper() for name in resources] + [f"PROD {name.upper()}" for name in of_prod]
        columns = [f">{title} % (LOW..HIGH)" for title in titles]
        table = plain_table("  NODE", *columns, "STANDING")
        for one in shown:
            cells = [_usage_cell(one.used.get(name), one.low.get(name), one.high.get(name)) for name in resources]
            cells += [
                _usage_cell(one.prod_used.get(name), one.prod_low.get(name), one.prod_high.get(name))
                for name in of_prod
            ]
            table.add_row(f"  {one.node}", *cells, one.standing)
        console.print(table)
    if len(shown) < len(pool.nodes):
        console.print(f"  and {len(pool.nodes) - len(shown)} more that are {round_report.APPROPRIATE}")
    if pool.stops:
        console.print(f"LowNodeLoad does nothing{title}: {pool.stops}.")


def _usage_cell(used: float | None, low: float | None, high: float | None) -> str:
    if used is None:
        return "-"
    return f"{used:.1f}" if low == high == 100 else f"{used:.1f} ({low:g}..{high:g})"


def _print_refusals(console: Console, title: str, refusals: list[round_report.RefusalReport]) -> None:
    if not refusals:
        return
    console.print(f"\n{title}:", style="bold yellow")
    table = plain_table("  POD", "ON", "PLUGIN", "DECLINED BY", "BECAUSE")
    for no in refusals[:MAX_TABLE_ROWS]:
        table.add_row(f"  {no.pod}", no.node, no.plugin, no.by, no.why)
    console.print(table)
    if len(refusals) > MAX_TABLE_ROWS:
        console.print(f"  and {len(refusals) - MAX_TABLE_ROWS} more; -o json has all")


def _print_moves(console: Console, moves: list[round_report.ProposalReport]) -> None:
    if not moves:
        return
    table = plain_table("  POD", "FROM", "TO", "BY", "WHY")
    for one in moves:
        table.add_row(f"  {one.pod}", one.node, one.target or "(scheduler)", one.evictor, one.reason)
    console.print(table)


def _proposal_counts(mine: list[round_report.ProposalReport]) -> str:
    moves = sum(one.does == round_report.EVICT for one in mine)
    rest = len(mine) - moves
    parts = [f"move {moves} pod{'s' * (moves != 1)}"] * bool(moves)
    parts += [f"change {rest} other object{'s' * (rest != 1)}"] * bool(rest)
    return " and ".join(parts)


def _other_effect_text(one: round_report.ProposalReport) -> str:
    if one.pod:
        set_to = ", ".join(f"{name}={value}" for name, value in sorted(one.annotations.items()))
        return f"annotate {one.pod} with {set_to}"
    return f"{one.does} {one.node}"


_DRY_RUN_ONLY = (
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
@cluster_access.descheduler_options
@cluster_access.output_option
@cluster_access.cluster_options
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
        cluster_access.fail(_DRY_RUN_ONLY)
    if snapshot_file is not None:
        if save is not None:
            cluster_access.fail("--save needs a live cluster; with --snapshot there is a file already")
        config, source = _configuration_from_file(config_file) or (
            configuration.shipped_configuration(),
            "the one that is shipped",
        )
        plan = _plan_or_fail(config, plugin, certain)
        _print_result(_decide(plan, Kept(_read_snapshot_objects(Path(snapshot_file))), None, source, certain), output)
        return

    async def main(client: Client, clock: Clock) -> None:
        found = _configuration_from_file(config_file) or await _configuration_of_running_descheduler(
            client, descheduler_namespace, descheduler_port
        )
        plan = _plan_or_fail(found[0], plugin, certain)
        kept = Kept(await list_live_objects(client, required_resources(plan.assembly.plugins())))
        if save is not None:
            save_objects(kept.objects(), save)
        _print_result(_decide(plan, kept, clock.time(), found[1], certain), output)

    cluster_access.run_with_client(main, kubeconfig, context)


def _configuration_from_file(file: str | None) -> tuple[DeschedulerConfiguration, str] | None:
    if file is None:
        return None
    found = read_descheduler_config(file)
    if isinstance(found, list):
        cluster_access.fail(f"--config: {'; '.join(found)}")
    return found, file


async def _configuration_of_running_descheduler(
    client: Client, namespace: str, port: int
) -> tuple[DeschedulerConfiguration, str]:
    answer = await cluster_access.ask_program(client, DESCHEDULER_NAME, "/configz", namespace, port)
    config = load_config(answer.get("componentconfig")) if isinstance(answer, dict) else []
    if isinstance(config, list):
        return configuration.shipped_configuration(), "the one that is shipped, as no koord-descheduler answers"
    return config, "that of the running koord-descheduler"


def _plan_or_fail(config: DeschedulerConfiguration, plugin: str, certain: bool) -> DryRunPlan:
    plan = plan_dry_run(config, plugin=plugin, certain=certain)
    if isinstance(plan, str):
        cluster_access.fail(plan)
    return plan


def _read_snapshot_objects(place: Path) -> list[dict[str, Any]]:
    if not place.is_dir():
        return read_objects(str(place))
    files = sorted(file for file in place.iterdir() if file.suffix in (".yaml", ".yml", ".json"))
    if not files:
        cluster_access.fail(f"{place}: there is no .yaml or .json file in it")
    return [each for file in files for each in read_objects(str(file))]


def _decide(plan: DryRunPlan, kept: Kept, now_s: float | None, source: str, certain: bool) -> DescheduleDryRun:
    assembly = plan.assembly
    plugins = assembly.plugins()
    try:
        snapshot = snapshot_from_lists(kept.typed, plugins, now_s)
    except msgspec.ValidationError as error:
        cluster_access.fail(f"the snapshot holds something unexpected: {error}")
    ready = ready_nodes(snapshot, assembly.node_selector)
    watching = [one for one in plugins if isinstance(one, LowNodeLoad)]
    seen = [pool for one in watching for pool in round_report.report_pool_loads(one, ready, snapshot)]
    outcome = run_round(assembly.profiles, snapshot, assembly.limits, nodes=assembly.node_selector, dry_run=True)
    asked = [one.name for profile in assembly.profiles for one in (*profile.deschedule, *profile.balance)]
    return DescheduleDryRun(
        configuration=source,
        plugins=list(dict.fromkeys(asked)),
        certain=certain,
        nodes=len(snapshot.nodes),
        pods=len(snapshot.pods),
        pools=seen,
        notes=plan.notes,
        round=round_report.report_round(outcome, plugins, snapshot.now_s),
    )


def _print_result(found: DescheduleDryRun, output: str) -> None:
    print_result(found, output, lambda console: print_dry_run(console, found))
