"""kube-scheduler and its configuration: recorded answers still hold, and plugins are put in the same order."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.config_file import load_configuration
from koord.scheduler.configuration.plugin_selection import KUBERNETES_POINTS
from koord.scheduler.framework.extension_points import EXTENSION_POINTS
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.configuration.config_cases import ACCEPTED, HEAD, REFUSED
from tests.scheduler.configuration.kube_scheduler import SAID, ask, listed
from tools import assets
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

PROFILES = 60


@pytest.fixture
def binary() -> Path:
    path = assets.folder() / "kube-scheduler"
    if not path.is_file():
        pytest.skip("no kube-scheduler built: run `python -m tools.assets` first")
    return path


def test_what_was_recorded_is_what_it_says(binary: Path, plane: ControlPlane, tmp_path: Path) -> None:
    recorded = json.loads(SAID.read_text())
    for name, text in {**ACCEPTED, **REFUSED}.items():
        said = ask(binary, plane.kubeconfig, text, tmp_path)
        assert type(said) is type(recorded[name]), name
        if isinstance(said, dict):
            assert said == recorded[name], name


def test_random_profiles_have_the_same_plugins_in_the_same_order(
    binary: Path, plane: ControlPlane, tmp_path: Path
) -> None:
    chance = random.Random(35)
    taken = 0
    for _ in range(PROFILES):
        text = f"{HEAD}profiles: {json.dumps([{'schedulerName': 'a', 'plugins': some_plugins(chance)}])}\n"
        theirs = listed(binary, plane.kubeconfig, text, tmp_path)
        config = load_configuration(text)
        assert not isinstance(config, list), config
        ours = CompletedConfig.complete(config, REGISTRY)
        assert isinstance(ours, CompletedConfig) is (theirs is not None), text
        if isinstance(ours, CompletedConfig) and theirs is not None:
            taken += 1
            (roster,) = ours.selections
            names = {point.path: without_ours(roster.points[point.name]) for point in EXTENSION_POINTS}
            assert names == {path: [name for name, _ in held] for path, held in theirs.items()}, text
            assert {name: roster.weights[name] for name in names["score"]} == dict(theirs["score"]), text
    assert 0 < taken < PROFILES


def without_ours(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name != "DefaultPreBind"]


def some_plugins(chance: random.Random) -> dict[str, Any]:
    """Some points enable and disable some plugins that have them; now and then, some that do not."""
    made = {"multiPoint": some_set(chance, list(KUBERNETES_POINTS))} if chance.random() < 0.6 else {}
    for point in EXTENSION_POINTS:
        having = [name for name, points in KUBERNETES_POINTS.items() if point.name in points]
        pool = list(KUBERNETES_POINTS) if chance.random() < 0.03 else having
        if pool and chance.random() < 0.4:
            made[point.path] = some_set(chance, pool)
    return made


def some_set(chance: random.Random, pool: list[str]) -> dict[str, Any]:
    off = [*pool, "*"] if chance.random() < 0.4 else pool
    enabled = chance.sample(pool, min(len(pool), chance.randrange(3)))
    disabled = chance.sample(off, min(len(off), chance.randrange(3)))
    return {
        "enabled": [{"name": name, "weight": chance.randrange(5)} for name in enabled],
        "disabled": [{"name": name} for name in disabled],
    }
