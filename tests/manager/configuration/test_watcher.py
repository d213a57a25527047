"""The configuration as it changes: what is kept, when programs are told, what is said on the ConfigMap."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS
from koord.kube.transport.api_error import unwrap
from koord.manager.configuration.documents import LastGoodDocument, parse_colocation, parse_threshold
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.reconcile_loop import ManagerContext
from tests.manager.manager_harness import run_with_context
from tests.manager.slo_config import NAME, NAMESPACE, config_events, settle, with_configuration, write_config


def enabled(kept: LastGoodDocument[Any]) -> bool:
    return bool(kept.value.cluster.enable)


def test_before_anything_is_known_nothing_is_available() -> None:
    kept = LastGoodDocument("colocation-config", parse_colocation)
    assert (kept.available, kept.is_known, kept.error) == (False, False, "")
    assert kept.status.state == "Unknown"


def test_text_that_cannot_be_read_keeps_what_was_good() -> None:
    kept = LastGoodDocument("resource-threshold-config", parse_threshold)
    told: list[bool] = []
    kept.on_change(lambda: told.append(kept.available))
    kept.update("{")
    assert (kept.available, kept.is_known) == (False, True)
    assert kept.status.reason == "Unreadable"
    assert "nothing is changed until it is corrected" in kept.error
    kept.update('{"clusterStrategy":{"enable":true}}')
    assert enabled(kept)
    kept.update('{"clusterStrategy":{"enable":0}}')
    assert enabled(kept)
    assert kept.error == (
        "resource-threshold-config: clusterStrategy.enable is 0, must be true or false; "
        "the last good settings stay in use"
    )
    assert kept.status.state == "Rejected"
    kept.update(None)
    assert not enabled(kept)
    assert (kept.error, kept.status.state) == ("", "Default")
    assert told == [False, True, True, True]


def test_an_unusable_value_is_rejected_with_its_name() -> None:
    kept = LastGoodDocument("colocation-config", parse_colocation)
    kept.update('{"enable":true}')
    kept.update('{"enable":false,"resourceDiffThreshold":0}')
    assert kept.value.cluster.enable, "the document as a whole has no effect"
    assert kept.status.reason == "InvalidValue"
    assert "colocation-config: resourceDiffThreshold is 0.0, must be greater than 0" in kept.error


@given(
    st.lists(
        st.sampled_from([None, "", "{", "{}", '{"enable":true}', '{"enable":1}', '{"degradeTimeMinutes":0}']),
        max_size=8,
    )
)
def test_the_value_is_always_that_of_the_last_good_text(texts: list[str | None]) -> None:
    kept = LastGoodDocument("colocation-config", parse_colocation)
    good = kept.value
    changes = 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    kept.on_change(changed)
    for text in texts:
        before = (kept.value, kept.available, bool(kept.error), changes)
        unread = kept.update(text)
        if unread is None:
            fresh = LastGoodDocument("colocation-config", parse_colocation)
            fresh.update(text)
            good = fresh.value
        assert kept.value == good
        assert bool(kept.error) == (unread is not None)
        after = (kept.value, kept.available, bool(kept.error))
        assert changes - before[3] == int(after != before[:3]), "told exactly when something changed"


def test_a_missing_configmap_is_the_defaults_and_an_error_until_it_comes() -> None:
    async def story(context: ManagerContext, configuration: SloControllerConfig) -> None:
        await settle(context)
        assert not configuration.colocation.available, "nobody looked yet"
        await configuration.start()
        await settle(context)
        kept = configuration.colocation
        assert kept.available
        assert kept.error == f"ConfigMap {NAMESPACE}/{NAME} does not exist; the defaults are in use"
        assert {s.reason for s in configuration.watcher.statuses()} == {"ConfigMapNotFound"}
        await write_config(context, colocation_config={"enable": True})
        await settle(context)
        assert kept.value.cluster.enable
        assert kept.error == ""
        assert configuration.threshold.status.state == "Default"

    run_with_context(with_configuration(story))


def test_a_deleted_configmap_changes_nothing() -> None:
    async def story(context: ManagerContext, configuration: SloControllerConfig) -> None:
        await write_config(context, colocation_config={"enable": True})
        await configuration.start()
        await settle(context)
        unwrap(await context.client.delete(CONFIG_MAPS, NAME, NAMESPACE))
        await settle(context)
        assert configuration.colocation.value.cluster.enable
        assert configuration.colocation.error == ""

    run_with_context(with_configuration(story))


def test_only_other_data_is_news() -> None:
    async def story(context: ManagerContext, configuration: SloControllerConfig) -> None:
        told: list[str] = []
        configuration.colocation.on_change(lambda: told.append("colocation"))
        configuration.system.on_change(lambda: told.append("system"))
        await write_config(context, colocation_config={"enable": True})
        await configuration.start()
        await settle(context)
        assert sorted(told) == ["colocation", "system"]
        told.clear()
        patch = {"metadata": {"labels": {"a": "b"}}}
        unwrap(await context.client.patch(CONFIG_MAPS, NAME, patch, NAMESPACE, kind="merge"))
        await settle(context)
        assert (told, configuration.watcher.counts.changes) == ([], 1)
        await write_config(context, colocation_config='{ "enable" : true }')
        await settle(context)
        assert told == [], "other text, same meaning"
        await write_config(context, colocation_config={"enable": False})
        await settle(context)
        assert told == ["colocation"]

    run_with_context(with_configuration(story))


def test_other_configmaps_are_not_looked_at() -> None:
    async def story(context: ManagerContext, configuration: SloControllerConfig) -> None:
        await write_config(context)
        body = {"metadata": {"name": "another", "namespace": NAMESPACE}, "data": {"colocation-config": "{"}}
        unwrap(await context.client.create(CONFIG_MAPS, body))
        await configuration.start()
        await settle(context)
        assert configuration.colocation.error == ""

    run_with_context(with_configuration(story))


def test_broken_documents_are_told_on_the_configmap_and_others_still_apply() -> None:
    async def story(context: ManagerContext, configuration: SloControllerConfig) -> None:
        await configuration.start()
        await write_config(
            context,
            colocation_config="{x",
            resource_threshold_config='{"clusterStrategy": {"enable": true,}}',
            resource_qos_config="[]",
            cpu_burst_config={"clusterStrategy": {"policy": "auto"}},
            host_application_config={"applications": {}},
            cpu_normalization_config={"enable": "yes"},
        )
        await settle(context)
        assert configuration.cpu_burst.value.cluster.policy == "auto"
        assert configuration.watcher.counts.rejected == 5
        rejected, remarks = configuration.readings()
        assert dict(rejected.values)[("colocation-config",)] == 1.0
        assert dict(rejected.values)[("cpu-burst-config",)] == 0.0
        assert dict(remarks.values)[("cpu-burst-config",)] == 0.0
        events = dict(await config_events(context))
        assert events["ColocationCfgUnmarshalFailed"].startswith("failed to unmarshal colocation config, err: ")
        assert events["CPUNormalizationCfgUnmarshalFailed"].endswith(
            'cpu-normalization-config: enable is "yes", must be true or false'
        )
        assert [note for reason, note in await config_events(context) if reason == "SLOCfgUnmarshalFailed"] == [
            "failed to unmarshal ThresholdCfg, err: "
            "resource-threshold-config is not JSON: trailing comma in object at line 1, column 37",
            "failed to unmarshal ResourceQOSCfg, err: resource-qos-config is [], must be an object",
            "failed to unmarshal HostApplicationCfg, err: host-application-config: applications is {}, must be a list",
        ]

    run_with_context(with_configuration(story))


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
    async def story(context: ManagerContext, configuration: SloControllerConfig) -> None:
        await configuration.start()
        await write_config(context)
        await settle(context)
        await write_config(context, colocation_config=document)
        await settle(context)
        assert await config_events(context) == [(reason, note)]

    run_with_context(with_configuration(story))


def test_each_attempt_to_correct_a_document_is_answered_once() -> None:
    async def story(context: ManagerContext, configuration: SloControllerConfig) -> None:
        await configuration.start()
        await write_config(context, colocation_config={"enable": "yes"})
        await settle(context)
        await write_config(context, colocation_config={"enable": "true"})
        await settle(context)
        await write_config(context, colocation_config={"enable": "true"}, system_config="{}")
        await settle(context)
        assert [note.partition(": ")[2] for _, note in await config_events(context)] == [
            'colocation-config: enable is "yes", must be true or false',
            'colocation-config: enable is "true", must be true or false',
        ]
        await write_config(context, colocation_config={"enable": True}, system_config="{}")
        await settle(context)
        told = await config_events(context)
        assert told[2:] == [("SLOCfgApplied", "colocation-config is corrected and in use")]

    run_with_context(with_configuration(story))
