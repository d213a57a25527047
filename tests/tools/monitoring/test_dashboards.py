"""Dashboards name metrics that exist, and their panels do not lie upon each other."""

from __future__ import annotations

import json

import pytest

from tools.monitoring.dashboard import WIDTH, Dashboard, dashboard_json, expressions
from tools.monitoring.dashboards import DASHBOARDS
from tools.monitoring.expression import faults
from tools.monitoring.output import CHART
from tools.monitoring.rules import known_series


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_every_expression_names_what_exists(dashboard: Dashboard) -> None:
    made = expressions(dashboard)
    assert len(made) > 8
    for text in made:
        assert faults(text, known_series()) == [], text


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_variables_come_from_labels_that_exist(dashboard: Dashboard) -> None:
    text = dashboard_json(dashboard)
    for variable in dashboard.variables:
        assert variable.label in known_series()[variable.series]
        assert f"${variable.name}" in text


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_labels_in_the_legend_are_labels_of_the_series(dashboard: Dashboard) -> None:
    known = known_series()
    for row in dashboard.rows:
        for panel in row.panels:
            for query in panel.queries:
                for label in (part.split("}}")[0] for part in query.legend.split("{{")[1:]):
                    named = any(label in known[name] and name in query.expression for name in known)
                    assert named or label in ("job", "instance", "node"), (panel.title, label)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_panels_have_a_place_of_their_own(dashboard: Dashboard) -> None:
    panels = json.loads(dashboard_json(dashboard))["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for one in panels:
        place = one["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, one["title"]
        taken |= cells


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_every_panel_answers_a_question(dashboard: Dashboard) -> None:
    for row in dashboard.rows:
        for panel in row.panels:
            assert panel.question.endswith(("?", ".")), panel.title
            assert panel.queries


def test_the_folder_holds_these_and_no_others() -> None:
    assert {path.stem for path in (CHART / "dashboards").iterdir()} == {one.uid for one in DASHBOARDS}
    assert len({one.title for one in DASHBOARDS}) == len(DASHBOARDS)
