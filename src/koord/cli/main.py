"""This module is the `koord` command: a lazy table of subcommands, so that `koord --help` loads none of their
libraries.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from koord import __version__
from koord.cli.command_groups import LazyGroup

# name -> (module, attribute, one line of help); the module is imported only when the command is used
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("koord.cli.up.up", "up", "Run a whole cluster in this process."),
    "manifests": (
        "koord.cli.manifests.manifests",
        "manifests_command",
        "Print what installs koord on a cluster as YAML.",
    ),
    "crds": ("koord.cli.commands.crds", "crds", "Print the CustomResourceDefinitions as YAML."),
    "explain": ("koord.cli.command_groups", "explain", "Say why something is as it is."),
    "evictions": ("koord.cli.commands.evictions", "evictions", "List who evicted which pods, and how it ended."),
    "simulate": ("koord.cli.commands.simulate.simulate", "simulate", "Show where pods would go, changing nothing."),
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
    "sim": ("koord.cli.command_groups", "sim", "Replay published experiments."),
    "node": ("koord.cli.command_groups", "node", "Show what is on one node and who holds it."),
    "top": ("koord.cli.commands.top", "top", "Show what nodes use, have promised and lend."),
    "quota": ("koord.cli.commands.quota.quota", "quota", "Show what quotas may use now, and who lends to whom."),
    "reservation": ("koord.cli.commands.reservation", "reservation", "Show which room is kept for whom."),
    "gang": ("koord.cli.commands.gang", "gang", "Show who is in a gang and what it waits for."),
    "config": ("koord.cli.commands.config.check", "config", "Check configuration files without a cluster."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="koord")
def cli() -> None:
    """koord runs batch work in the gap that services leave, without hurting the services."""


def run() -> Any:
    """Run `koord` or `kubectl-koord`."""
    name = "kubectl koord" if sys.argv[0].endswith("kubectl-koord") else "koord"
    return cli(prog_name=name)


if __name__ == "__main__":
    run()
