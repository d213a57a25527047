"""This module is the group `koord explain`. Each thing explained has a module of its own."""

from __future__ import annotations

import click

from koord.cli.lazy import LazyGroup

COMMANDS = {
    "pod": ("koord.cli.explain_pod", "pod", "Why a pod is where it is, or nowhere."),
    "eviction": ("koord.cli.explain_eviction", "eviction", "Who evicted a pod, by which rule and on which numbers."),
    "node": ("koord.cli.explain_node", "node", "Why a node lends what it lends to batch and mid pods."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def explain() -> None:
    """Say why something is as it is."""
