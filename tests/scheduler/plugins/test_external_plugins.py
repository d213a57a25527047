"""A plugin outside of this repository is found by entry point, built and called; so is the page that explains how."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.extension_points import POINT_METHODS
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW
from koord.scheduler.plugins.registry import ENTRY_POINT_GROUP, REGISTRY, load_plugins
from tests.scheduler.builders import make_node, make_pod, make_state
from tests.scheduler.configuration.fake_plugins import assembled
from tests.scheduler.fake_handles import StateOnlyHandle
from tests.scheduler.plugin_equivalence import profile_of

PACKAGE = Path(__file__).parents[1] / "example_plugin"
PAGE = Path(__file__).parents[3] / "docs" / "plugins.md"
COLOUR = "example.com/colour"


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """What an installed package would offer: its entry points, with its modules where Python finds them."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    return [
        EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in project["entry-points"][ENTRY_POINT_GROUP].items()
    ]


def cluster() -> ClusterState:
    nodes = [make_node("red", labels={COLOUR: "red"}), make_node("green", labels={COLOUR: "green"}), make_node("plain")]
    return make_state(nodes, [make_pod("old", node="plain")])


def engine_with(offers: list[EntryPoint], state: ClusterState) -> SchedulingEngine:
    factories = load_plugins(offers).factories
    plugins = [factories[offer.name](None, StateOnlyHandle(state)) for offer in offers]
    return SchedulingEngine(profile_of(plugins), state)


def painted(state: ClusterState, name: str, colour: str) -> PodInfo:
    return state.pod_info(make_pod(name, labels={COLOUR: colour}))


def test_is_found_beside_our_own(offers: list[EntryPoint]) -> None:
    found = load_plugins(offers).factories
    assert set(found) == {*REGISTRY, "NodeColour"}


def test_filters_and_scores(offers: list[EntryPoint]) -> None:
    state = cluster()
    engine = engine_with(offers, state)
    chosen = engine.decide(painted(state, "a", "green")).decision
    assert isinstance(chosen, ChosenNode)
    assert (chosen.node, chosen.scores) == ("green", {"NodeColour": 100})
    refused = engine.decide(painted(state, "b", "blue")).decision
    assert isinstance(refused, Unschedulable)
    assert refused.message() == "0/3 nodes are available: 3 node(s) were not blue."
    assert refused.rejecting_plugins() == {"NodeColour"}


def test_a_plugin_that_says_nothing_of_itself_is_asked_about_every_pod(offers: list[EntryPoint]) -> None:
    """Pods whose specs are equal and whose labels differ must not share what such a plugin said."""
    state = cluster()
    engine = engine_with(offers, state)
    for colour in ("green", "red", "green", "red"):
        chosen = engine.decide(painted(state, f"p-{colour}", colour)).decision
        assert isinstance(chosen, ChosenNode)
        assert chosen.node == colour


def test_a_built_in_plugin_cannot_be_replaced() -> None:
    found = load_plugins([EntryPoint("NodeName", "somewhere:NodeName", ENTRY_POINT_GROUP)])
    assert found.factories["NodeName"] is REGISTRY["NodeName"]
    assert found.warnings == ("plugin NodeName of somewhere:NodeName is not used: koord has a plugin of this name",)


def test_one_that_cannot_be_loaded_is_refused_only_where_it_is_enabled() -> None:
    found = load_plugins([EntryPoint("Broken", "no_such_module:Broken", ENTRY_POINT_GROUP)])
    words = (
        "plugin Broken of no_such_module:Broken cannot be used: ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert found.warnings == (words,)
    assert isinstance(assembled({"profiles": [{}]}, found.factories), CompletedConfig)
    enabled = {"multiPoint": {"enabled": [{"name": "Broken"}]}}
    errors = assembled({"profiles": [{"plugins": enabled}]}, found.factories)
    assert isinstance(errors, list)
    (error,) = errors
    assert error.field.startswith("profiles[0].plugins.multiPoint.enabled")
    assert error.rule == f'initializing plugin "Broken": {words}'


def test_two_packages_with_one_name_are_refused_where_it_is_enabled(offers: list[EntryPoint]) -> None:
    found = load_plugins([*offers, *offers])
    assert [warning.rpartition(": ")[2] for warning in found.warnings] == [
        "two installed packages offer a plugin of this name"
    ]
    with pytest.raises(ValueError, match="two installed packages"):
        found.factories["NodeColour"](None, StateOnlyHandle(cluster()))


class Raising(Plugin):
    name = "Raising"

    def __init__(self) -> None:
        raise KeyError("colour")


def test_one_that_cannot_be_made_is_an_error_of_the_file() -> None:
    enabled = {"multiPoint": {"enabled": [{"name": "Raising"}]}}
    errors = assembled({"profiles": [{"plugins": enabled}]}, {**REGISTRY, "Raising": lambda args, handle: Raising()})
    assert isinstance(errors, list)
    assert [error.rule for error in errors] == ["initializing plugin \"Raising\": KeyError: 'colour'"]


class Counting(Plugin):
    """Counts how often it is asked."""

    name = "Counting"

    def __init__(self) -> None:
        self.asked = 0

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> None:
        self.asked += 1


class CountingRows(Counting):
    scope = ROW


@pytest.mark.parametrize(
    ("make", "asked"),
    [
        pytest.param(Counting, 3 * 3, id="says-nothing-and-is-asked-of-every-node-every-time"),
        pytest.param(CountingRows, 3 + 1 + 1, id="with-a-scope-only-nodes-that-changed"),
    ],
)
def test_what_a_scope_buys(make: Callable[[], Counting], asked: int) -> None:
    state, plugin = cluster(), make()
    engine = SchedulingEngine(profile_of([plugin]), state)
    for i in range(3):
        pod = painted(state, f"p{i}", "green")
        chosen = engine.decide(pod).decision
        assert isinstance(chosen, ChosenNode)
        state.assume(pod, chosen.node)
    assert plugin.asked == asked


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_shows_the_package_that_is_tested() -> None:
    assert blocks("python")[0] == (PACKAGE / "koord_node_colour.py").read_text()
    shown: dict[str, Any] = tomllib.loads(blocks("toml")[0])
    kept = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    assert shown["project"]["entry-points"] == kept["project"]["entry-points"]


def test_the_page_documents_every_point() -> None:
    page = PAGE.read_text()
    missing = [method.__name__ for method in POINT_METHODS if f"**`{method.__name__}(" not in page]
    assert not missing
