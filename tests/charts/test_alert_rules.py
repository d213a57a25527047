"""Alerts fire when they should and end when the reason is gone, as Prometheus' own tool evaluates them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.alert_cases import CASES, AlertCase
from tests.charts.promtool import promtool_binary, run_promtool
from tools.monitoring.alert import Alert
from tools.monitoring.dashboard import Dashboard, expressions
from tools.monitoring.dashboards import DASHBOARDS
from tools.monitoring.output import RULES
from tools.monitoring.rules import every_alert

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", autouse=True)
def promtool() -> None:
    if not promtool_binary().is_file():
        pytest.skip("no promtool built: run `python -m tools.assets promtool` first")


def test_the_rule_file_is_well_formed() -> None:
    status, said = run_promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert status == 0, said


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == {one.name for one in every_alert()}


def firing(alert: Alert, case: AlertCase) -> list[dict[str, Any]]:
    made = []
    for labels in case.labels:
        every = {"alertname": alert.name, "alertstate": "firing", "severity": alert.severity, **labels}
        inside = ",".join(f'{name}="{value}"' for name, value in sorted(every.items()))
        made.append({"labels": f"ALERTS{{{inside}}}", "value": 1})
    return made


def unit_test(alert: Alert, case: AlertCase) -> dict[str, Any]:
    expression = f'ALERTS{{alertname="{alert.name}",alertstate="firing"}}'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": [
            {"expr": expression, "eval_time": "0m", "exp_samples": []},
            {"expr": expression, "eval_time": f"{case.fires_m}m", "exp_samples": firing(alert, case)},
            {"expr": expression, "eval_time": f"{case.ends_m}m", "exp_samples": []},
        ],
    }


@pytest.mark.parametrize("alert", every_alert(), ids=lambda one: one.name)
def test_it_fires_and_ends(alert: Alert, tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [unit_test(alert, CASES[alert.name])]}
    path.write_text(yaml.safe_dump(document, width=10**6))
    status, said = run_promtool("test", "rules", str(path))
    assert status == 0, said


def test_a_program_that_nobody_scrapes_has_no_leader(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    expected = [
        {
            "labels": f'ALERTS{{alertname="{name}NoLeader",alertstate="firing",severity="critical",job="{job}"}}',
            "value": 1,
        }
        for name, job in (
            ("KoordDescheduler", "koord-descheduler"),
            ("KoordManager", "koord-manager"),
            ("KoordScheduler", "koord-scheduler"),
        )
    ]
    test = {
        "interval": "1m",
        "input_series": [],
        "promql_expr_test": [{"expr": 'ALERTS{alertstate="firing"}', "eval_time": "5m", "exp_samples": expected}],
    }
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    status, said = run_promtool("test", "rules", str(path))
    assert status == 0, said


def test_the_words_of_an_alert_are_filled_in(tmp_path: Path) -> None:
    """A wrong action in a template is seen only when it is rendered."""
    path = tmp_path / "test.yaml"
    case = CASES["KoordletNodeMetricStale"]
    (alert,) = [one for one in every_alert() if one.name == "KoordletNodeMetricStale"]
    annotations = {
        "summary": "n1 has not reported its usage for 15m 0s",
        "description": alert.description.replace("{{ $labels.node }}", "n1"),
        "runbook": "docs/reference/alerts.md#koordletnodemetricstale",
    }
    expected = [{"exp_labels": {"severity": "warning", "node": "n1"}, "exp_annotations": annotations}]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [{"eval_time": "15m", "alertname": alert.name, "exp_alerts": expected}],
    }
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    status, said = run_promtool("test", "rules", str(path))
    assert status == 0, said


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_every_expression_of_a_dashboard_is_promql(dashboard: Dashboard, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    rules = [{"record": f"dashboard:{place}", "expr": text} for place, text in enumerate(expressions(dashboard))]
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}, width=10**6))
    status, said = run_promtool("check", "rules", "--lint=none", str(path))
    assert status == 0, said
