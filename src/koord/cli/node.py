"""`koord node`: what is on one node, drawn from live objects. One module per picture."""

from __future__ import annotations

import click

from koord.cli.lazy import LazyGroup

COMMANDS: dict[str, tuple[str, str, str]] = {
    "cpus": ("koord.cli.node_cpus", "cpus", "Who holds which CPU of a node."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def node() -> None:
    """Show what is on one node and who holds it."""
