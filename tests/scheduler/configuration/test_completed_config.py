"""A completed configuration runs the right plugins at each point, with the right order, weights and arguments."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.scheduler import configuration
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.scheduler.configuration.completed_config import CompletedConfig, ValidationHandle
from koord.scheduler.configuration.plugin_selection import (
    KNOWN_POINTS,
    KOORDINATOR_POINTS,
    settings_without_effect,
    without_unsupported_plugins,
)
from koord.scheduler.framework.extension_points import EXTENSION_POINTS, POINT_METHODS, overrides
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.configuration.fake_plugins import assembled, factories, names, profile, profiles

ABC = factories(dict.fromkeys("ABC", ("filter", "score", "pre_enqueue")))
FIRST, LAST = "NodeUnschedulable", "DynamicResources"  # of the default filters


def on(*plugins: str) -> list[dict[str, str]]:
    return [{"name": name} for name in plugins]


@pytest.mark.parametrize(
    ("plugins", "order"),
    [
        pytest.param(
            {"filter": {"enabled": on("B", "A")}}, [FIRST, "...", LAST, "B", "A"], id="own-follow-the-defaults"
        ),
        pytest.param(
            {"multiPoint": {"enabled": on("B", "A")}}, [FIRST, "...", LAST, "B", "A"], id="everywhere-means-here-too"
        ),
        pytest.param(
            {"multiPoint": {"enabled": on("A", "B")}, "filter": {"enabled": on("C", "B")}},
            ["B", FIRST, "...", LAST, "A", "C"],
            id="named-twice-come-first",
        ),
        pytest.param(
            {"filter": {"enabled": on("A", "NodeName")}},
            ["NodeName", FIRST, "...", LAST, "A"],
            id="a-default-named-here-comes-first",
        ),
        pytest.param(
            {"filter": {"enabled": on("A", "NodeName"), "disabled": on("NodeName")}},
            [FIRST, "...", LAST, "A", "NodeName"],
            id="a-default-replaced-here-comes-last",
        ),
        pytest.param(
            {"filter": {"enabled": on("A", "NodeName", "B"), "disabled": on("*")}},
            ["A", "NodeName", "B"],
            id="all-off-leaves-the-order-of-the-point",
        ),
        pytest.param({"filter": {"disabled": on("*")}}, [], id="all-off"),
        pytest.param(
            {"multiPoint": {"enabled": on("A", "B"), "disabled": on("*")}, "queueSort": {"enabled": on("PrioritySort")}}
            | {"bind": {"enabled": on("DefaultBinder")}, "filter": {"disabled": on("A")}},
            ["B"],
            id="off-here-only",
        ),
    ],
)
def test_order(plugins: dict[str, Any], order: list[str]) -> None:
    found = names(profile(plugins, ABC), "filter")
    if "..." in order:
        before, after = order[: order.index("...")], order[order.index("...") + 1 :]
        found = [*found[: len(before)], "...", *found[-len(after) :]]
    assert found == order


@pytest.mark.parametrize(
    ("plugins", "weight"),
    [
        pytest.param({"score": {"enabled": [{"name": "A", "weight": 7}]}}, 7, id="of-the-point"),
        pytest.param({"multiPoint": {"enabled": [{"name": "A", "weight": 7}]}}, 7, id="of-all-points"),
        pytest.param({"multiPoint": {"enabled": on("A")}}, 1, id="none-stated"),
        pytest.param({"score": {"enabled": [{"name": "A", "weight": 0}]}}, 1, id="zero"),
        pytest.param(
            {"multiPoint": {"enabled": [{"name": "A", "weight": 7}]}, "score": {"enabled": on("A")}},
            1,
            id="the-point-wins-even-without-one",
        ),
    ],
)
def test_weights(plugins: dict[str, Any], weight: int) -> None:
    assert {s.plugin.name: s.weight for s in profile(plugins, ABC).scorers}["A"] == weight


def test_the_default_weights_are_those_of_kubernetes() -> None:
    assert {s.plugin.name: s.weight for s in profile({}).scorers} == {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "NodeResourcesFit": 1,
        "PodTopologySpread": 2,
        "InterPodAffinity": 2,
        "DynamicResources": 2,
        "NodeResourcesBalancedAllocation": 1,
        "ImageLocality": 1,
    }


def test_one_instance_per_profile_shared_by_its_points() -> None:
    first, second = profiles({"profiles": [{"schedulerName": "a"}, {"schedulerName": "b"}]})
    for found in (first, second):
        by_name: dict[str, set[int]] = {}
        for method in POINT_METHODS:
            for plugin in found.plugins_at(method):
                by_name.setdefault(plugin.name, set()).add(id(plugin))
        assert all(len(instances) == 1 for instances in by_name.values())
    assert not {id(p) for p in first.plugins()} & {id(p) for p in second.plugins()}


def test_each_profile_has_its_own_arguments() -> None:
    made: list[Any] = []

    class Taking(Plugin):
        name = "Taking"

        def __init__(self, args: Any = None, handle: Any = None) -> None:
            made.append(args)
            if args and args.get("bad"):
                raise ValueError("bad is bad")

        def filter(self, *asked: Any) -> None:
            return None

    def document(**args: Any) -> dict[str, Any]:
        enabled = {"plugins": {"filter": {"enabled": on("Taking")}}}
        stated = {"schedulerName": "a", **enabled, "pluginConfig": [{"name": "Taking", "args": args}]}
        return {"profiles": [stated, {"schedulerName": "b", **enabled}]}

    factories = {**REGISTRY, "Taking": Taking}
    profiles(document(colour="red"), factories)
    assert made == [{"colour": "red"}, None] * 2  # once to learn, once to run
    errors = assembled(document(bad=1), factories)
    assert isinstance(errors, list)
    assert [str(e) for e in errors] == [
        'profiles[0].pluginConfig[0].args: {"bad":1}: initializing plugin "Taking": bad is bad'
    ]


def test_a_plugin_registered_under_another_name_is_refused() -> None:
    errors = assembled(
        {"profiles": [{"plugins": {"filter": {"enabled": on("Alias")}}}]}, {**REGISTRY, "Alias": REGISTRY["NodeName"]}
    )
    assert isinstance(errors, list)
    assert [e.field for e in errors] == ["profiles[0].plugins.filter.enabled[0].name"]
    assert "'NodeName'" in errors[0].rule


def test_profiles_that_sort_differently_through_all_points_are_refused() -> None:
    made = factories({"Fifo": ("sort_key",)})
    off = {"multiPoint": {"disabled": on("PrioritySort"), "enabled": on("Fifo")}}
    errors = assembled({"profiles": [{"schedulerName": "a"}, {"schedulerName": "b", "plugins": off}]}, made)
    assert isinstance(errors, list)
    assert [e.rule for e in errors] == ['different queue sort plugins for profile "b": "Fifo", first: "PrioritySort"']


def test_a_second_queue_sort_through_all_points_is_refused() -> None:
    both = {"profiles": [{"plugins": {"multiPoint": {"enabled": on("Fifo")}}}]}
    errors = assembled(both, factories({"Fifo": ("sort_key",)}))
    assert isinstance(errors, list)
    assert [(e.field, e.value) for e in errors] == [("profiles[0].plugins.queueSort", ["PrioritySort", "Fifo"])]


def test_arguments_without_effect_are_told() -> None:
    config = [{"name": "Foo", "args": {"a": 1}}, {"name": "ImageLocality"}, {"name": "NodeName"}]
    plugins = {"multiPoint": {"disabled": on("ImageLocality")}}
    completed_config = assembled({"profiles": [{"plugins": plugins, "pluginConfig": config}]})
    assert isinstance(completed_config, CompletedConfig)
    assert completed_config.unused_plugin_configs == ("Foo", "ImageLocality")


def test_our_plugins_have_no_point_that_files_do_not_know() -> None:
    """Else a profile that disables one at all points known to Kubernetes would still run a part of it."""
    (found,) = profiles({})
    for plugin in found.plugins():
        held = {point.name for point in EXTENSION_POINTS if any(overrides(plugin, m) for m in point.methods)}
        assert held <= set(KNOWN_POINTS[plugin.name]), plugin.name


# The profile that Koordinator ships ------------------------------------------------------------------------------

METHODS = {point.name: point.methods[0].__name__ for point in EXTENSION_POINTS}
BUILT = factories({name: [METHODS[p] for p in points] for name, points in KOORDINATOR_POINTS.items()})


def test_the_shipped_profile_runs_once_its_plugins_are_there() -> None:
    completed_config = CompletedConfig.complete(configuration.configuration(), BUILT)
    assert isinstance(completed_config, CompletedConfig), completed_config
    (found,) = completed_config.make_profiles(ValidationHandle())
    assert found.scheduler_name == "koord-scheduler"
    assert names(found, "pre_filter")[-6:] == [
        "SchedulingHint",
        "Coscheduling",
        "Reservation",
        "NodeNUMAResource",
        "DeviceShare",
        "ElasticQuota",
    ]
    assert names(found, "pre_filter")[0] == "NodeAffinity"
    assert names(found, "filter")[-4:] == ["Reservation", "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare"]
    assert names(found, "post_filter") == ["Reservation", "Coscheduling", "ElasticQuota"]
    reserving = [name for name in names(found, "reserve") if name in KOORDINATOR_POINTS]
    assert reserving[:3] == ["Reservation", "LoadAwareScheduling", "NodeNUMAResource"]
    assert names(found, "bind") == ["Reservation", "DefaultBinder"]
    assert names(found, "pre_bind")[0] == "VolumeBinding"
    assert names(found, "sort_key") == ["PrioritySort"]
    assert {s.plugin.name: s.weight for s in found.scorers}["Reservation"] == 5000


def test_what_is_left_out_of_the_shipped_profile_is_told() -> None:
    config, left_out = without_unsupported_plugins(configuration.configuration(), REGISTRY)
    assert set(left_out) == set(KOORDINATOR_POINTS) - set(REGISTRY) - {
        "NodeResourcesFitPlus",
        "ScarceResourceAvoidance",
    }
    completed_config = CompletedConfig.complete(config, REGISTRY)
    assert isinstance(completed_config, CompletedConfig), completed_config
    (found,) = completed_config.make_profiles(ValidationHandle())
    assert names(found, "bind") == ["Reservation", "DefaultBinder"]
    assert not completed_config.unused_plugin_configs


def test_nothing_is_left_out_when_all_is_built() -> None:
    config, left_out = without_unsupported_plugins(configuration.configuration(), BUILT)
    assert left_out == ()
    assert isinstance(CompletedConfig.complete(config, BUILT), CompletedConfig)


def test_defaults_that_are_not_built_stay_out() -> None:
    lacking = {name: made for name, made in REGISTRY.items() if name not in ("ImageLocality", "DefaultPreBind")}
    refused = assembled({}, lacking)
    assert isinstance(refused, list)
    assert [e.value for e in refused] == ["DefaultPreBind", "ImageLocality"]
    given = configuration.configuration()
    config, left_out = without_unsupported_plugins(given, lacking)
    assert {"ImageLocality", "DefaultPreBind"} <= set(left_out)
    assert isinstance(CompletedConfig.complete(config, lacking), CompletedConfig)


def test_a_name_that_nobody_knows_is_not_left_out() -> None:
    document = {"profiles": [{"plugins": {"filter": {"enabled": on("Foo")}}}]}
    completed_config = assembled(document, factories({"Foo": ("filter",)}))
    assert isinstance(completed_config, CompletedConfig)
    config, left_out = without_unsupported_plugins(completed_config.config, REGISTRY)
    assert left_out == ()
    assert isinstance(CompletedConfig.complete(config, REGISTRY), list)


def test_a_plugin_of_koordinator_that_is_not_built_gets_one_clear_error() -> None:
    lacking = {name: made for name, made in REGISTRY.items() if name != "Coscheduling"}
    plugins = {"permit": {"enabled": on("Coscheduling")}, "postBind": {"enabled": on("Coscheduling")}}
    errors = assembled({"profiles": [{"plugins": plugins}]}, lacking)
    assert isinstance(errors, list)
    assert [e.rule.partition(": ")[2] for e in errors] == [
        "it is a plugin of Koordinator that this version of koord does not have yet"
    ]


def test_claims_are_not_watched_when_the_gate_says_so() -> None:
    asked: list[str] = []

    class Noting(ValidationHandle):
        def lister(self, resource: Any) -> Any:
            asked.append(resource.plural)
            return super().lister(resource)

    for gates in ({}, {"DisableDynamicResourceAllocationInformer": True}):
        completed_config = CompletedConfig.complete(shipped_without_unbuilt(), REGISTRY, gates)
        assert isinstance(completed_config, CompletedConfig)
        asked.clear()
        completed_config.make_profiles(Noting())
        assert ("resourceclaims" in asked) is not bool(gates)


def shipped_without_unbuilt() -> Any:
    return without_unsupported_plugins(configuration.configuration(), REGISTRY)[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (KubeSchedulerConfiguration(), []),
        (KubeSchedulerConfiguration(percentage_of_nodes_to_score=100, parallelism=16), []),
        (KubeSchedulerConfiguration(percentage_of_nodes_to_score=30), ["percentageOfNodesToScore changes nothing"]),
        (KubeSchedulerConfiguration(parallelism=4), ["parallelism changes nothing"]),
    ],
)
def test_settings_that_have_nothing_to_do_are_told(given: KubeSchedulerConfiguration, said: list[str]) -> None:
    assert [sentence.partition(":")[0] for sentence in settings_without_effect(given)] == said
