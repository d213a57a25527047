"""The `koord` command: a lazy table of subcommands, so that `koord --help` loads none of their libraries."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from koord import __version__

# name -> (module, attribute, one line of help); the module is imported only when the command is used
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("koord.cli.up", "up", "Run a whole cluster in this process."),
    "manifests": ("koord.cli.manifests", "manifests_command", "Print what installs koord on a cluster as YAML."),
    "crds": ("koord.cli.crds", "crds", "Print the CustomResourceDefinitions as YAML."),
    "config": ("koord.cli.config_check", "config", "Check configuration files without a cluster."),
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, attribute, _ = entry
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="koord")
def cli() -> None:
    """koord runs batch work in the gap that services leave, without hurting the services."""


def run() -> Any:
    """Entry of both `koord` and `kubectl-koord`."""
    name = "kubectl koord" if sys.argv[0].endswith("kubectl-koord") else "koord"
    return cli(prog_name=name)


if __name__ == "__main__":
    run()
