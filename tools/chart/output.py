"""The generated files of the chart, and the table of values in docs/install.md."""

from __future__ import annotations

from pathlib import Path

from koord import __version__
from tools.chart import cluster, uninstall, values, workloads
from tools.chart.program_config import config_templates

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "koord"
INSTALL = ROOT / "docs" / "install.md"
BEGIN, END = "<!-- values: written by make chart -->\n", "<!-- end of values -->\n"


def generated_files() -> dict[Path, str]:
    """Return the text of every file that is generated."""
    read = values.read_values((CHART / "values.yaml").read_text())
    templates = {
        "_configs.tpl": config_templates(),
        "namespace.yaml": cluster.namespace_template(),
        "priority-classes.yaml": cluster.priority_class_template(),
        "slo-controller-config.yaml": cluster.settings_template(),
        "webhooks.yaml": cluster.webhook_template(),
        "manager.yaml": workloads.manager_template(),
        "scheduler.yaml": workloads.scheduler_template(),
        "descheduler.yaml": workloads.descheduler_template(),
        "koordlet.yaml": workloads.koordlet_template(),
        "yarn-operator.yaml": workloads.yarn_operator_template(),
        "device-daemon.yaml": workloads.device_daemon_template(),
        "uninstall.yaml": uninstall.uninstall_template(),
    }
    data = {
        "gates.yaml": cluster.gate_file(),
        "flags.yaml": cluster.flag_file(),
        "ignored.yaml": values.ignored_file(),
        **{f"crds/{plural}.yaml": text for plural, text in cluster.crd_files().items()},
    }
    before, _, rest = INSTALL.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return {
        CHART / "Chart.yaml": chart_file(),
        CHART / "values.schema.json": values.values_schema(read),
        **{CHART / "templates" / name: text for name, text in templates.items()},
        **{CHART / "files" / name: text for name, text in data.items()},
        INSTALL: before + BEGIN + "\n" + values.values_table(read) + "\n" + END + after,
    }


def chart_file() -> str:
    """Return Chart.yaml with the version of the package: chart and image are one release."""
    lines = (CHART / "Chart.yaml").read_text().splitlines()
    versions = {"version": __version__, "appVersion": __version__}
    kept = [f"{key}: {versions[key]}" if (key := line.partition(":")[0]) in versions else line for line in lines]
    return "\n".join(kept) + "\n"
