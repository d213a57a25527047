"""This module is the group `koord node`. Each picture has a module of its own."""

from __future__ import annotations

import click

from koord.cli.lazy import LazyGroup

COMMANDS: dict[str, tuple[str, str, str]] = {
    "devices": ("koord.cli.node_devices", "devices", "Who holds which device of a node."),
    "cpus": ("koord.cli.node_cpus", "cpus", "Who holds which CPU of a node."),
    "capabilities": (
        "koord.cli.node_capabilities",
        "capabilities",
        "Which kernel files work on a node, and which do not.",
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def node() -> None:
    """Show what is on one node and who holds it."""
