"""The configuration as it changes: what is kept, when programs are told, what is said on the ConfigMap."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.builtin import CONFIG_MAPS
from koord.kube.refused import ok
from koord.manager.configuration.configuration import Configuration
from koord.manager.configuration.document import colocation_layers, threshold_layers
from koord.manager.configuration.kept import Kept
from koord.manager.world import World
from tests.manager.manager_world import in_world
from tests.manager.slo_config import NAME, NAMESPACE, config_events, settle, with_configuration, write_config


def enabled(kept: Kept[Any]) -> bool:
    return bool(kept.value.cluster.enable)


def test_before_anything_is_known_nothing_is_available() -> None:
    kept = Kept("colocation-config", colocation_layers)
    assert (kept.available, kept.seen, kept.error) == (False, False, "")
    assert kept.standing.state == "Unknown"


def test_text_that_cannot_be_read_keeps_what_was_good() -> None:
    kept = Kept("resource-threshold-config", threshold_layers)
    told: list[bool] = []
    kept.on_change(lambda: told.append(kept.available))
    kept.take("{")
    assert (kept.available, kept.seen) == (False, True)
    assert kept.standing.reason == "Unreadable"
    assert "nothing is changed until it is corrected" in kept.error
    kept.take('{"clusterStrategy":{"enable":true}}')
    assert enabled(kept)
    kept.take('{"clusterStrategy":{"enable":0}}')
    assert enabled(kept)
    assert kept.error == (
        "resource-threshold-config: clusterStrategy.enable is 0, must be true or false; "
        "the last good settings stay in use"
    )
    assert kept.standing.state == "Rejected"
    kept.take(None)
    assert not enabled(kept)
    assert (kept.error, kept.standing.state) == ("", "Default")
    assert told == [False, True, True, True]


def test_an_unusable_value_is_rejected_with_its_name() -> None:
    kept = Kept("colocation-config", colocation_layers)
    kept.take('{"enable":true}')
    kept.take('{"enable":false,"resourceDiffThreshold":0}')
    assert kept.value.cluster.enable, "the document as a whole has no effect"
    assert kept.standing.reason == "InvalidValue"
    assert "colocation-config: resourceDiffThreshold is 0.0, must be greater than 0" in kept.error


@given(
    st.lists(
        st.sampled_from([None, "", "{", "{}", '{"enable":true}', '{"enable":1}', '{"degradeTimeMinutes":0}']),
        max_size=8,
    )
)
def test_the_value_is_always_that_of_the_last_good_text(texts: list[str | None]) -> None:
    kept = Kept("colocation-config", colocation_layers)
    good = kept.value
    changes = 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    kept.on_change(changed)
    for text in texts:
        before = (kept.value, kept.available, bool(kept.error), changes)
        unread = kept.take(text)
        if unread is None:
            fresh = Kept("colocation-config", colocation_layers)
            fresh.take(text)
            good = fresh.value
        assert kept.value == good
        assert bool(kept.error) == (unread is not None)
        after = (kept.value, kept.available, bool(kept.error))
        assert changes - before[3] == int(after != before[:3]), "told exactly when something changed"


def test_a_missing_configmap_is_the_defaults_and_an_error_until_it_comes() -> None:
    async def story(world: World, configuration: Configuration) -> None:
        await settle(world)
        assert not configuration.colocation.available, "nobody looked yet"
        await configuration.start()
        await settle(world)
        kept = configuration.colocation
        assert kept.available
        assert kept.error == f"ConfigMap {NAMESPACE}/{NAME} does not exist; the defaults are in use"
        assert {s.reason for s in configuration.follower.standings()} == {"ConfigMapNotFound"}
        await write_config(world, colocation_config={"enable": True})
        await settle(world)
        assert kept.value.cluster.enable
        assert kept.error == ""
        assert configuration.threshold.standing.state == "Default"

    in_world(with_configuration(story))


def test_a_deleted_configmap_changes_nothing() -> None:
    async def story(world: World, configuration: Configuration) -> None:
        await write_config(world, colocation_config={"enable": True})
        await configuration.start()
        await settle(world)
        ok(await world.client.delete(CONFIG_MAPS, NAME, NAMESPACE))
        await settle(world)
        assert configuration.colocation.value.cluster.enable
        assert configuration.colocation.error == ""

    in_world(with_configuration(story))


def test_only_other_data_is_news() -> None:
    async def story(world: World, configuration: Configuration) -> None:
        told: list[str] = []
        configuration.colocation.on_change(lambda: told.append("colocation"))
        configuration.system.on_change(lambda: told.append("system"))
        await write_config(world, colocation_config={"enable": True})
        await configuration.start()
        await settle(world)
        assert sorted(told) == ["colocation", "system"]
        told.clear()
        patch = {"metadata": {"labels": {"a": "b"}}}
        ok(await world.client.patch(CONFIG_MAPS, NAME, patch, NAMESPACE, kind="merge"))
        await settle(world)
        assert (told, configuration.follower.counts.changes) == ([], 1)
        await write_config(world, colocation_config='{ "enable" : true }')
        await settle(world)
        assert told == [], "other text, same meaning"
        await write_config(world, colocation_config={"enable": False})
        await settle(world)
        assert told == ["colocation"]

    in_world(with_configuration(story))


def test_other_configmaps_are_not_looked_at() -> None:
    async def story(world: World, configuration: Configuration) -> None:
        await write_config(world)
        body = {"metadata": {"name": "another", "namespace": NAMESPACE}, "data": {"colocation-config": "{"}}
        ok(await world.client.create(CONFIG_MAPS, body))
        await configuration.start()
        await settle(world)
        assert configuration.colocation.error == ""

    in_world(with_configuration(story))


def test_broken_documents_are_told_on_the_configmap_and_others_still_apply() -> None:
    async def story(world: World, configuration: Configuration) -> None:
        await configuration.start()
        await write_config(
            world,
            colocation_config="{x",
            resource_threshold_config='{"clusterStrategy": {"enable": true,}}',
            resource_qos_config="[]",
            cpu_burst_config={"clusterStrategy": {"policy": "auto"}},
            host_application_config={"applications": {}},
            cpu_normalization_config={"enable": "yes"},
        )
        await settle(world)
        assert configuration.cpu_burst.value.cluster.policy == "auto"
        assert configuration.follower.counts.rejected == 5
        rejected, remarks = configuration.readings()
        assert dict(rejected.values)[("colocation-config",)] == 1.0
        assert dict(rejected.values)[("cpu-burst-config",)] == 0.0
        assert dict(remarks.values)[("cpu-burst-config",)] == 0.0
        events = dict(await config_events(world))
        assert events["ColocationCfgUnmarshalFailed"].startswith("failed to unmarshal colocation config, err: ")
        assert events["CPUNormalizationCfgUnmarshalFailed"].endswith(
            'cpu-normalization-config: enable is "yes", must be true or false'
        )
        assert [note for reason, note in await config_events(world) if reason == "SLOCfgUnmarshalFailed"] == [
            "failed to unmarshal ThresholdCfg, err: "
            "resource-threshold-config is not JSON: trailing comma in object at line 1, column 37",
            "failed to unmarshal ResourceQOSCfg, err: resource-qos-config is [], must be an object",
            "failed to unmarshal HostApplicationCfg, err: host-application-config: applications is {}, must be a list",
        ]

    in_world(with_configuration(story))


@pytest.mark.parametrize(
    ("document", "reason", "note"),
    [
        pytest.param(
            {"degradeTimeMinutes": 0},
            "SLOCfgInvalid",
            "colocation-config: degradeTimeMinutes is 0, must be 1 or greater; the last good settings stay in use",
            id="unusable-value",
        ),
        pytest.param(
            {"enabled": True},
            "SLOCfgRemark",
            "colocation-config: enabled is not a known setting and has no effect: did you mean enable?",
            id="no-effect",
        ),
    ],
)
def test_what_upstream_passes_over_in_silence_is_told_too(document: dict[str, object], reason: str, note: str) -> None:
    async def story(world: World, configuration: Configuration) -> None:
        await configuration.start()
        await write_config(world)
        await settle(world)
        await write_config(world, colocation_config=document)
        await settle(world)
        assert await config_events(world) == [(reason, note)]

    in_world(with_configuration(story))


def test_each_attempt_to_correct_a_document_is_answered_once() -> None:
    async def story(world: World, configuration: Configuration) -> None:
        await configuration.start()
        await write_config(world, colocation_config={"enable": "yes"})
        await settle(world)
        await write_config(world, colocation_config={"enable": "true"})
        await settle(world)
        await write_config(world, colocation_config={"enable": "true"}, system_config="{}")
        await settle(world)
        assert [note.partition(": ")[2] for _, note in await config_events(world)] == [
            'colocation-config: enable is "yes", must be true or false',
            'colocation-config: enable is "true", must be true or false',
        ]
        await write_config(world, colocation_config={"enable": True}, system_config="{}")
        await settle(world)
        told = await config_events(world)
        assert told[2:] == [("SLOCfgApplied", "colocation-config is corrected and in use")]

    in_world(with_configuration(story))
