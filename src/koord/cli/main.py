"""This module is the `koord` command: lazy tables of subcommands, so that help and completion load none of their
libraries.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import get_completion_class

from koord.cli.console_scripts import missing_library_message
from koord.version import build_info

# name -> (module, attribute, one line of help); the module is imported only when the command is used
LazyCommands = Mapping[str, tuple[str, str, str]]


class LazyGroup(click.Group):
    def __init__(self, *args: Any, lazy: LazyCommands, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._lazy.get(cmd_name)
        if entry is None:
            return None
        module, attribute, _ = entry
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as missing:
            message = missing_library_message(missing, "all")
            if not message:
                raise
            raise click.ClickException(f"`koord {cmd_name}`: {message}") from missing
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self._lazy.items()])


EXPLAIN_COMMANDS: LazyCommands = {
    "pod": ("koord.cli.commands.explain.pod", "pod", "Why a pod is where it is, or nowhere."),
    "eviction": (
        "koord.cli.commands.evictions",
        "eviction",
        "Who evicted a pod, by which rule and on which numbers.",
    ),
    "container": (
        "koord.cli.commands.explain.container",
        "container",
        "Who decided each value of a container's cgroup, and what the kernel holds.",
    ),
    "interference": (
        "koord.cli.commands.explain.interference",
        "interference",
        "Which pods are disturbed, by which batch pod, and what was done.",
    ),
    "node": ("koord.cli.commands.explain.node", "node", "Why a node lends what it lends to batch and mid pods."),
}


@click.group(cls=LazyGroup, lazy=EXPLAIN_COMMANDS)
def explain() -> None:
    """Say why something is as it is."""


NODE_COMMANDS: LazyCommands = {
    "devices": ("koord.cli.commands.node_occupancy", "devices", "Who holds which device of a node."),
    "cpus": ("koord.cli.commands.node_occupancy", "cpus", "Who holds which CPU of a node."),
    "capabilities": (
        "koord.cli.commands.node_agent",
        "capabilities",
        "Which kernel files work on a node, and which do not.",
    ),
    "hooks": (
        "koord.cli.commands.node_agent",
        "hooks",
        "How runtime hooks are connected on a node, and what each does.",
    ),
}


@click.group(cls=LazyGroup, lazy=NODE_COMMANDS)
def node() -> None:
    """Show what is on one node and who holds it."""


SIM_COMMANDS: LazyCommands = {
    "openb": ("koord.cli.commands.sim_openb", "openb", "Pack the openb trace of shared GPUs and compare.")
}


@click.group(cls=LazyGroup, lazy=SIM_COMMANDS)
def sim() -> None:
    """Replay published experiments on the scheduler's own engine."""


COMMANDS: LazyCommands = {
    "up": ("koord.cli.up.up", "up", "Run a whole cluster in this process."),
    "dashboard": (
        "koord.cli.commands.dashboard.command",
        "dashboard",
        "Serve a read-only web page about a cluster on this machine.",
    ),
    "manifests": (
        "koord.cli.manifests.manifests",
        "manifests_command",
        "Print what installs koord on a cluster as YAML.",
    ),
    "crds": ("koord.cli.manifests.manifests", "crds", "Print the CustomResourceDefinitions as YAML."),
    "explain": ("koord.cli.main", "explain", "Say why something is as it is."),
    "evictions": ("koord.cli.commands.evictions", "evictions", "List who evicted which pods, and how it ended."),
    "simulate": ("koord.cli.commands.simulate", "simulate", "Show where pods would go, changing nothing."),
    "deschedule": (
        "koord.cli.commands.deschedule",
        "deschedule",
        "Show what the descheduler would move, changing nothing.",
    ),
    "migrate": (
        "koord.cli.commands.migration",
        "migrate",
        "Move a pod to another node: a place first, then the eviction.",
    ),
    "migrations": (
        "koord.cli.commands.migration",
        "migrations",
        "Show which pods are on the move and what blocks them.",
    ),
    "sim": ("koord.cli.main", "sim", "Replay published experiments."),
    "node": ("koord.cli.main", "node", "Show what is on one node and who holds it."),
    "top": ("koord.cli.commands.top", "top", "Show what nodes use, have promised and lend."),
    "gpu": ("koord.cli.commands.gpu", "gpu", "Measure whether shares of GPUs are isolated."),
    "quota": ("koord.cli.commands.quota", "quota", "Show what quotas may use now, and who lends to whom."),
    "reservation": ("koord.cli.commands.reservation", "reservation", "Show which room is kept for whom."),
    "gang": ("koord.cli.commands.gang", "gang", "Show who is in a gang and what it waits for."),
    "doctor": (
        "koord.cli.commands.doctor.command",
        "doctor",
        "Check a cluster and its installation, and say how to repair it.",
    ),
    "support-bundle": (
        "koord.cli.commands.support_bundle.collection",
        "support_bundle",
        "Save what a report of a problem needs, without secrets.",
    ),
    "restore-nodes": (
        "koord.cli.commands.restore_nodes",
        "restore_nodes",
        "Put nodes back to what they were without koord; before an uninstall.",
    ),
    "migrate-from-koordinator": (
        "koord.cli.commands.migrate_from_koordinator.command",
        "migrate_from_koordinator",
        "Tell what a move from Koordinator changes, and how it is done.",
    ),
    "config": ("koord.cli.commands.config", "config", "Check configuration files without a cluster."),
    "completion": ("koord.cli.main", "completion", "Print the completion script of a shell."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, asked: _print_version(context) if asked else None,
    help="Show version, commit and time of the build, and exit.",
)
def cli() -> None:
    """koord runs batch work in the gap that services leave, without hurting the services."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options of koord.

    \b
      bash   source <(koord completion bash)              in ~/.bashrc
      zsh    source <(koord completion zsh)               in ~/.zshrc, after compinit
      fish   koord completion fish > ~/.config/fish/completions/koord.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click completes for these shells"
    click.echo(found(cli, {}, "koord", "_KOORD_COMPLETE").source())


def _print_version(context: click.Context) -> None:
    click.echo(f"koord {build_info()}")
    context.exit()


def run() -> Any:
    """Run `koord` or `kubectl-koord`."""
    name = "kubectl koord" if sys.argv[0].endswith("kubectl-koord") else "koord"
    return cli(prog_name=name)


if __name__ == "__main__":
    run()
