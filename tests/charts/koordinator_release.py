"""This module writes a chart like Koordinator's 1.8 as far as an upgrade can meet it: its objects by name, selector and
role reference, and definitions without a policy to keep them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from tests.koordinator_installation import certificate_secret, koordinator_objects


def write_koordinator_chart(folder: Path) -> Path:
    """Write the chart below a folder, and return its path."""
    chart = folder / "koordinator"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: koordinator\nversion: 1.8.0\nappVersion: 1.8.0\n")
    shutil.copy(Path(__file__).parent / "values" / "koordinator-1.8.yaml", chart / "values.yaml")
    secret, _ = certificate_secret()
    made = [*koordinator_objects(by_helm=False), secret]
    (chart / "templates" / "all.yaml").write_text(yaml.safe_dump_all(made, sort_keys=False))
    return chart
