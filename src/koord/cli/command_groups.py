"""This module holds the command groups of `koord`. A command's module is loaded only when it is used, so that
help and completion stay fast.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

# name -> (module, attribute, one line of help)
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
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self._lazy.items()])


EXPLAIN_COMMANDS = {
    "pod": ("koord.cli.commands.explain.pod", "pod", "Why a pod is where it is, or nowhere."),
    "eviction": (
        "koord.cli.commands.explain.eviction",
        "eviction",
        "Who evicted a pod, by which rule and on which numbers.",
    ),
    "node": ("koord.cli.commands.explain.node", "node", "Why a node lends what it lends to batch and mid pods."),
}


@click.group(cls=LazyGroup, lazy=EXPLAIN_COMMANDS)
def explain() -> None:
    """Say why something is as it is."""


NODE_COMMANDS: dict[str, tuple[str, str, str]] = {
    "devices": ("koord.cli.commands.node.devices", "devices", "Who holds which device of a node."),
    "cpus": ("koord.cli.commands.node.cpus", "cpus", "Who holds which CPU of a node."),
    "capabilities": (
        "koord.cli.commands.node.capabilities",
        "capabilities",
        "Which kernel files work on a node, and which do not.",
    ),
}


@click.group(cls=LazyGroup, lazy=NODE_COMMANDS)
def node() -> None:
    """Show what is on one node and who holds it."""


SIM_COMMANDS: dict[str, tuple[str, str, str]] = {
    "openb": ("koord.cli.commands.sim_openb", "openb", "Pack the openb trace of shared GPUs and compare."),
}


@click.group(cls=LazyGroup, lazy=SIM_COMMANDS)
def sim() -> None:
    """Replay published experiments on the scheduler's own engine."""
