"""Alert rules name metrics that exist, say what to do, and point to a runbook that is there."""

from __future__ import annotations

import re

import pytest
import yaml

from tools.monitoring.alert import Alert, anchor
from tools.monitoring.expression import faults
from tools.monitoring.output import ROOT, RULES
from tools.monitoring.rules import GROUPS, every_alert, known_series


@pytest.mark.parametrize("alert", every_alert(), ids=lambda one: one.name)
def test_every_expression_names_what_exists(alert: Alert) -> None:
    assert faults(alert.expression, known_series()) == []


def test_every_recorded_expression_names_what_exists() -> None:
    recorded = [one for group in GROUPS for one in group.recordings]
    assert recorded
    for one in recorded:
        assert faults(one.expression, known_series()) == []


def test_alerts_have_a_name_of_their_own() -> None:
    names = [one.name for one in every_alert()]
    assert len(set(names)) == len(names) > 30


@pytest.mark.parametrize("alert", every_alert(), ids=lambda one: one.name)
def test_labels_in_the_words_are_labels_of_the_result(alert: Alert) -> None:
    """An aggregation keeps what it names: any other label would be an empty place in the message."""
    kept = re.findall(r"\b(?:sum|max|min) by \(([^()]*)\)", alert.expression)
    named = set(re.findall(r"\$labels\.(\w+)", f"{alert.summary} {alert.description}"))
    if kept and re.match(r"\(?(?:sum|max|min|time|histogram)", alert.expression):
        assert named <= {label.strip() for label in kept[0].split(",")}
    elif re.match(r"sum\(", alert.expression):
        assert named == set()


@pytest.mark.parametrize("alert", every_alert(), ids=lambda one: one.name)
def test_the_runbook_has_its_section(alert: Alert) -> None:
    path, _, heading = anchor(alert).partition("#")
    headings = re.findall(r"^### (.+)$", (ROOT / path).read_text(), re.M)
    assert heading in [text.lower() for text in headings]
    assert alert.steps


def test_the_rule_file_is_read_as_it_was_described() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    alerts = [rule for rule in rules if "alert" in rule]
    assert [rule["alert"] for rule in alerts] == [one.name for one in every_alert()]
    for rule in alerts:
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
