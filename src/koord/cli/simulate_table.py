"""This module is `koord simulate`: what the scheduler would decide about pods, on a live cluster or a
snapshot. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from koord.cli.explain_pod_table import print_attempt
from koord.scheduler.explain.whatif import Outcome

if TYPE_CHECKING:
    from rich.console import Console

DETAILED = 5  # more pods than this are told in a line each


def print_outcomes(console: Console, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        words, style = _line(outcome)
        console.print(words, style=style)
        if outcome.attempt is not None and len(outcomes) <= DETAILED:
            print_attempt(console, outcome.attempt, "How")
    if len(outcomes) > DETAILED:
        placed = sum(bool(outcome.node) for outcome in outcomes)
        making = sum(bool(outcome.after_eviction_on) for outcome in outcomes)
        later = f", {making} more after others made way" if making else ""
        console.print(f"{placed} of {len(outcomes)} pods would be placed{later}; -o json has the details of each")


def _line(outcome: Outcome) -> tuple[str, str]:
    if outcome.node:
        return f"{outcome.pod} would go to {outcome.node}", "bold green"
    if outcome.after_eviction_on:
        victims = ", ".join(outcome.attempt.victims) if outcome.attempt is not None else ""
        return f"{outcome.pod} would go to {outcome.after_eviction_on} once {victims} made way", "bold yellow"
    if outcome.gated_by:
        return f"{outcome.pod} would be held back by {outcome.gated_by}: {outcome.message}", "bold yellow"
    return f"{outcome.pod} would go nowhere: {outcome.message}", "bold red"
