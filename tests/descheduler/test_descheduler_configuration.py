"""From a configuration to plugins that run: merging, refusals with their fields, and what is worth a warning."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.descheduler.configuration import shipped_configuration, shipped_low_node_load_args
from koord.api.config.descheduler.plugin_args import API_VERSION
from koord.descheduler.configuration import DeschedulerSetup, build_setup, config_warnings, load_config
from koord.descheduler.plugins.low_node_load.plugin import LowNodeLoad

LOADS = {"lowThresholds": {"cpu": 45}, "highThresholds": {"cpu": 75}}


def made(profiles: list[dict[str, Any]] | None = None, **config: Any) -> DeschedulerSetup | list[str]:
    document: dict[str, Any] = {"apiVersion": API_VERSION, "kind": "DeschedulerConfiguration", **config}
    if profiles is not None:
        document["profiles"] = profiles
    given = load_config(document)
    if isinstance(given, list):
        return [str(error) for error in given]
    found = build_setup(given)
    return [str(error) for error in found] if isinstance(found, list) else found


def profile(config: list[dict[str, Any]] | None = None, name: str = "p", **points: Any) -> dict[str, Any]:
    return {"name": name, "plugins": points, "pluginConfig": config or []}


def enabled(*names: str, off: str = "") -> dict[str, Any]:
    return {"enabled": [{"name": name} for name in names], "disabled": [{"name": off}] if off else []}


def good(found: DeschedulerSetup | list[str]) -> DeschedulerSetup:
    assert isinstance(found, DeschedulerSetup), found
    return found


def test_without_profiles_there_is_one_that_carries_migrations_out() -> None:
    (one,) = good(made()).profiles
    assert (one.name, one.evict.name, [p.name for p in one.filter]) == (
        "koord-descheduler",
        "MigrationController",
        ["MigrationController"],
    )
    assert one.filter[0] is one.evict, "one instance at both points"
    assert (one.deschedule, one.balance) == ((), ())


def test_disabled_and_enabled_again() -> None:
    found = good(made([profile(evict=enabled("MigrationController", off="*"))]))
    assert found.profiles[0].evict.name == "MigrationController"
    other = good(made([profile(evict=enabled("DefaultEvictor", off="*"), filter=enabled("DefaultEvictor"))]))
    assert other.profiles[0].evict.name == "DefaultEvictor"
    assert [p.name for p in other.profiles[0].filter] == ["MigrationController", "DefaultEvictor"]


@pytest.mark.parametrize(
    ("profiles", "words"),
    [
        pytest.param([profile(evict=enabled(off="*"))], "no evict plugin is enabled", id="no-evictor"),
        pytest.param([profile(evict=enabled("DefaultEvictor"))], "only one evict plugin can be enabled", id="two"),
        pytest.param([profile(balance=enabled("Nobody"))], 'BalancePlugin "Nobody" does not exist', id="unknown"),
        pytest.param([profile(deschedule=enabled("LowNodeLoad"))], "does not extend DeschedulePlugin", id="point"),
        pytest.param([profile(balance=enabled("LowNodeLoad", "LowNodeLoad"))], "already registered", id="twice"),
        pytest.param([profile(name="a"), profile(name="a")], "uplicate", id="names"),
        pytest.param([profile([{"name": "LowNodeLoad", "args": {}}] * 2)], "LowNodeLoad", id="config-twice"),
        pytest.param(
            [profile([{"name": "LowNodeLoad", "args": {"wrong": 1}}], balance=enabled("LowNodeLoad"))],
            "wrong",
            id="field",
        ),
        pytest.param(
            [profile([{"name": "PodLifeTime", "args": {}}], deschedule=enabled("PodLifeTime"))],
            "profiles[0].pluginConfig[0].args",
            id="args-of-others",
        ),
    ],
)
def test_refusals(profiles: list[dict[str, Any]], words: str) -> None:
    found = made(profiles)
    assert isinstance(found, list)
    assert words in "; ".join(found)


def test_marks_of_anomalies_outlive_the_time_between_rounds() -> None:
    config = [{"name": "LowNodeLoad", "args": {**LOADS, "detectorCacheTimeout": "5m"}}]
    found = good(made([profile(config, balance=enabled("LowNodeLoad"))], deschedulingInterval="10m"))
    (plugin,) = found.profiles[0].balance
    assert isinstance(plugin, LowNodeLoad)
    detectors = plugin.detectors[False]
    condition = plugin.pools[0].detector_condition
    marks = [detectors.mark_abnormal("n", condition, at * 600.0 - 0.001 * at) for at in range(7)]
    assert marks == [False] * 5 + [True] * 1 + [marks[6]]


def of_loads(args: dict[str, Any], migration: dict[str, Any] | None = None, **config: Any) -> list[str]:
    entries = [{"name": "LowNodeLoad", "args": args}, {"name": "MigrationController", "args": migration or {}}]
    found = good(made([profile(entries, balance=enabled("LowNodeLoad"))], **{"deschedulingInterval": "1m", **config}))
    return [f"{field} {why}" for field, why in config_warnings(found)]


@pytest.mark.parametrize(
    ("args", "migration", "config", "words"),
    [
        pytest.param({}, {}, {}, "nothing moves", id="no-thresholds"),
        pytest.param({"highThresholds": {"cpu": 70}}, {}, {}, "has no effect without lowThresholds", id="high-alone"),
        pytest.param({"lowThresholds": {"cpu": 70}}, {}, {}, "is alone", id="low-alone"),
        pytest.param({"lowThresholds": {"cpu": 5}, "highThresholds": {"cpu": 120}}, {}, {}, "100 or more", id="over"),
        pytest.param({**LOADS, "paused": True}, {}, {}, "does nothing", id="paused"),
        pytest.param(
            {**LOADS, "evictableNamespaces": {"include": ["a"]}},
            {"namespaces": {"exclude": ["a"]}},
            {},
            "all refused",
            id="no-namespace-left",
        ),
        pytest.param(LOADS, {"defaultJobTTL": "0s"}, {}, "do not time out", id="no-ttl"),
        pytest.param(LOADS, {"arbitrationArgs": {"enabled": False}}, {}, "always arbitrated", id="no-arbitration"),
        pytest.param(LOADS, {"priorityThreshold": {"name": "x"}}, {}, "give the value", id="priority-by-name"),
        pytest.param(LOADS, {"defaultDeleteOptions": {"dryRun": ["All"]}}, {}, "evict nobody", id="dry-run"),
        pytest.param(LOADS, {"defaultDeleteOptions": {"preconditions": {"uid": "x"}}}, {}, "all others", id="one-pod"),
        pytest.param(LOADS, {}, {"maxNoOfPodsToEvictTotal": 0}, "no pod is ever evicted", id="none-allowed"),
        pytest.param(LOADS, {}, {"deschedulingInterval": "0s"}, "one round", id="once"),
    ],
)
def test_what_upstream_accepts_and_never_fires_is_told(
    args: dict[str, Any], migration: dict[str, Any], config: dict[str, Any], words: str
) -> None:
    assert any(words in one for one in of_loads(args, migration, **config))


def test_an_ordinary_configuration_is_not_remarked_on() -> None:
    assert of_loads(LOADS) == []


@pytest.mark.parametrize("namespace", ["koordinator-system", "elsewhere"])
def test_the_shipped_configuration_is_not_remarked_on(namespace: str) -> None:
    found = build_setup(shipped_configuration(namespace))
    assert isinstance(found, DeschedulerSetup)
    assert config_warnings(found) == []


def test_arguments_of_a_plugin_that_is_not_enabled_are_remarked_on() -> None:
    for args in (LOADS, {**shipped_low_node_load_args(), "paused": True}):
        found = good(made([profile([{"name": "LowNodeLoad", "args": args}])], deschedulingInterval="1m"))
        assert [why for _, why in config_warnings(found)] == [
            "are of LowNodeLoad, which is not enabled: they have no effect"
        ]


def test_thresholds_of_a_priority_level_are_told_to_have_no_effect() -> None:
    levels = [
        {"name": "dear", "nodeSelector": {"matchLabels": {"a": "b"}}, "keepThreshold": {"cpu": 1}},
        {"name": "cheap", "nodeSelector": {"matchLabels": {"a": "c"}}},
    ]
    config = [{"name": "CustomPriority", "args": {"evictionOrder": levels}}]
    found = good(made([profile(config, balance=enabled("CustomPriority"))], deschedulingInterval="1m"))
    assert config_warnings(found) == [
        ("profiles[0].pluginConfig[0].args.evictionOrder[0].keepThreshold", "has no effect, as in Koordinator")
    ]
