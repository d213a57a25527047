"""What an alert is: a rule of Prometheus with the words that a person needs when it fires."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["critical", "warning", "info"]
RUNBOOK = "docs/reference/alerts.md"


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """An expression that is recorded under a name, because alerts or dashboards read it over a long time."""

    name: str
    expression: str
    labels: frozenset[str]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """`lasts` is how long the expression must hold, in Prometheus' words. `steps` are what to do, in order."""

    name: str
    severity: Severity
    expression: str
    lasts: str
    summary: str
    description: str
    meaning: str
    steps: tuple[str, ...]


class AlertGroup(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    alerts: tuple[Alert, ...]
    recordings: tuple[Recording, ...] = ()


def anchor(alert: Alert) -> str:
    """Return the place of an alert in the runbook, as Markdown names headings."""
    return f"{RUNBOOK}#{alert.name.lower()}"
