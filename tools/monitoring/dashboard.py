"""What a dashboard is, and its JSON for Grafana."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

Obj = dict[str, Any]

PanelKind = Literal["stat", "timeseries", "table", "bargauge"]
SCHEMA_VERSION = 39  # of Grafana 10 and later
WIDTH = 24
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_ROW_HEIGHT, _STAT_HEIGHT, _PANEL_HEIGHT = 1, 4, 8


class Query(msgspec.Struct, frozen=True):
    """An expression, and the name of each of its series: labels in double braces."""

    expression: str
    legend: str = ""


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One picture. `question` is what a reader wants to know from it; `bad` is the value from which it is red."""

    title: str
    question: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: PanelKind = "timeseries"
    width: int = 12
    bad: float | None = None


class Row(msgspec.Struct, frozen=True):
    title: str
    panels: tuple[Panel, ...]


class Variable(msgspec.Struct, frozen=True):
    """A choice at the top of the dashboard: the values of one label of a series."""

    name: str
    series: str
    label: str


class Dashboard(msgspec.Struct, frozen=True, kw_only=True):
    """`uid` is the name of the file and the address in Grafana."""

    uid: str
    title: str
    reader: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()


def expressions(dashboard: Dashboard) -> list[str]:
    """Return every expression of a dashboard, with its variables' values in place of their names."""
    found = [query.expression for row in dashboard.rows for panel in row.panels for query in panel.queries]
    for variable in dashboard.variables:
        found = [text.replace(f"${variable.name}", ".*") for text in found]
    return [text.replace("$__rate_interval", "5m").replace("$__range", "1h") for text in found]


def dashboard_json(dashboard: Dashboard) -> str:
    panels: list[Obj] = []
    top = 0
    for row in dashboard.rows:
        panels.append(_row(len(panels) + 1, row.title, top))
        top += _ROW_HEIGHT
        left = height = 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left, height = top + height, 0, 0
            tall = _STAT_HEIGHT if panel.kind == "stat" else _PANEL_HEIGHT
            place = {"h": tall, "w": panel.width, "x": left, "y": top}
            panels.append(_panel(len(panels) + 1, panel, place))
            left, height = left + panel.width, max(height, tall)
        top += height
    document: Obj = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.reader,
        "tags": ["koord"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource_variable(), *(_variable(one) for one in dashboard.variables)]},
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"


def _row(number: int, title: str, top: int) -> Obj:
    place = {"h": _ROW_HEIGHT, "w": WIDTH, "x": 0, "y": top}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(number: int, panel: Panel, place: Obj) -> Obj:
    steps: list[Obj] = [{"color": "green", "value": None}]
    if panel.bad is not None:
        steps.append({"color": "red", "value": panel.bad})
    instant = panel.kind in ("table", "bargauge")
    targets = [
        {
            "refId": chr(ord("A") + place_of),
            "datasource": _DATASOURCE,
            "expr": query.expression,
            "legendFormat": query.legend or "__auto",
            **({"instant": True, "range": False} if instant else {}),
            **({"format": "table"} if panel.kind == "table" else {}),
        }
        for place_of, query in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.question,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": _options(panel),
        "targets": targets,
    }


def _options(panel: Panel) -> Obj:
    reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    match panel.kind:
        case "stat":
            return {"reduceOptions": reduced, "colorMode": "value", "graphMode": "area"}
        case "bargauge":
            return {"reduceOptions": reduced, "displayMode": "basic", "orientation": "horizontal"}
        case "table":
            return {"showHeader": True}
        case "timeseries":
            return {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}}


def _datasource_variable() -> Obj:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}


def _variable(variable: Variable) -> Obj:
    query = f"label_values({variable.series}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.name,
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": "variable"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }
