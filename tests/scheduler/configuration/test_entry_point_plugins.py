"""A plugin of an installed package is found through its entry point, made, and put into a profile by configuration."""

from __future__ import annotations

import shutil
import sys
import tomllib
from importlib.metadata import distributions, entry_points
from pathlib import Path

import pytest

from koord.cli import scheduler_setup
from koord.cli.commands.config import check_text
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import load_configuration
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.plugins.registry import ENTRY_POINT_GROUP, load_plugins
from tests.scheduler.builders import make_node, make_pod, make_state
from tests.scheduler.plugins.volumes.volume_objects import ObjectHandle

PACKAGE = Path(__file__).parents[1] / "example_plugin"
COLOUR = "example.com/colour"
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: koord-scheduler
  plugins:
    multiPoint:
      enabled:
      - name: NodeColour
        weight: 2
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make what an installer leaves on the path: the modules, and a dist-info folder that names the entry points."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    offers = project["entry-points"][ENTRY_POINT_GROUP].items()
    (info / "entry_points.txt").write_text(
        "\n".join([f"[{ENTRY_POINT_GROUP}]", *(f"{name} = {at}" for name, at in offers)])
    )
    for module in PACKAGE.glob("*.py"):
        shutil.copy(module, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "koord_node_colour", raising=False)
    return str(project["name"])


def test_an_installed_plugin_runs_where_a_file_enables_it(installed: str) -> None:
    assert installed in {found.metadata["Name"] for found in distributions()}
    factories = load_plugins(entry_points(group=ENTRY_POINT_GROUP)).factories
    config = load_configuration(CONFIG)
    assert not isinstance(config, list), config
    completed_config = CompletedConfig.complete(config, factories)
    assert isinstance(completed_config, CompletedConfig), completed_config
    state = make_state([make_node("red", labels={COLOUR: "red"}), make_node("green", labels={COLOUR: "green"})])
    (profile,) = completed_config.make_profiles(ObjectHandle(state))
    assert {s.plugin.name: s.weight for s in profile.scorers}["NodeColour"] == 2
    chosen = SchedulingEngine(profile, state).decide(state.pod_info(make_pod("p", labels={COLOUR: "green"}))).decision
    assert isinstance(chosen, ChosenNode)
    assert (chosen.node, chosen.scores["NodeColour"]) == ("green", 200)


def test_it_does_not_run_unasked(installed: str) -> None:
    config = load_configuration(CONFIG.replace("enabled", "disabled"))
    assert not isinstance(config, list)
    completed_config = CompletedConfig.complete(config, load_plugins(entry_points(group=ENTRY_POINT_GROUP)).factories)
    assert isinstance(completed_config, CompletedConfig), completed_config
    assert all("NodeColour" not in names for names in completed_config.selections[0].points.values())


def test_config_check_accepts_it_and_says_what_the_profile_lacks(installed: str) -> None:
    (line,) = check_text("file", CONFIG).lines
    assert line[1].severity == "warning"
    assert "enables none of Koordinator's plugins" in line[1].error.rule


def test_koord_up_starts_beside_a_package_that_cannot_be_imported(
    installed: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "koord_node_colour.py").write_text("raise RuntimeError('built for another koord')")
    for _ in range(2):
        assert isinstance(scheduler_setup.scheduler_assembly(), CompletedConfig)
    warnings = [record.message for record in caplog.records if "NodeColour" in record.message]
    assert warnings == [
        "plugin NodeColour of koord_node_colour:NodeColour cannot be used: RuntimeError: built for another koord"
    ]
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    refused = scheduler_setup.scheduler_assembly(file)
    assert isinstance(refused, str)
    assert "RuntimeError: built for another koord" in refused
