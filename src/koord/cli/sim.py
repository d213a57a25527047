"""This module is the group `koord sim`: published experiments, replayed on koord's own programs."""

from __future__ import annotations

import click

from koord.cli.lazy import LazyGroup

COMMANDS: dict[str, tuple[str, str, str]] = {
    "openb": ("koord.cli.sim_openb", "openb", "Pack the openb trace of shared GPUs and compare."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def sim() -> None:
    """Replay published experiments on the scheduler's own engine."""
