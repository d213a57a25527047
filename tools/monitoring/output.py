"""The generated files: the pages of docs/reference, the rule file and the dashboards of the chart."""

from __future__ import annotations

from pathlib import Path

from tools.monitoring.dashboard import dashboard_json
from tools.monitoring.dashboards import DASHBOARDS
from tools.monitoring.reference import metrics_page
from tools.monitoring.rules import alerts_page, rule_file

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
CHART = ROOT / "charts" / "koord"
RULES = CHART / "files" / "alerts.yaml"


def generated_files() -> dict[Path, str]:
    """Return the text of every file that is generated."""
    return {
        REFERENCE / "metrics.md": metrics_page(),
        REFERENCE / "alerts.md": alerts_page(),
        RULES: rule_file(),
        **{CHART / "dashboards" / f"{one.uid}.json": dashboard_json(one) for one in DASHBOARDS},
    }
