"""Models of use: what they learn, what they predict, and how they outlive a restart."""

from __future__ import annotations

import msgspec
import pytest

from koord.api.koordinator.protocol import BE, LS
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.koordlet.reporters.builders.reclaimable import Reclaimable, ResourceAmount, decide_reclaimable
from koord.koordlet.reporters.builders.usage_models import (
    NODE_UID,
    SYSTEM_UID,
    PredictionLimits,
    UsageModels,
    model_uids,
    priority_class_uid,
    read_checkpoint,
    reclaimable_view,
    training_samples,
)
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from tests.koordlet.strategies.builders import pod

GI = 2**30
NOW = 1_700_000_000.0
PODS = (pod("prod", LS, priority=9500, requests={CPU: 2_000, MEMORY: 2 * GI}), pod("batch", BE, priority=5500))


def measured(*, node: bool = True) -> SeriesStore:
    store = SeriesStore(metric_kind.retention_s())
    for second in range(60):
        at = NOW - 59 + second
        for uid, cores in (("prod", 0.5), ("batch", 1.0)):
            store.add((metric_kind.POD_CPU, uid), at, cores)
            store.add((metric_kind.POD_MEMORY, uid), at, GI)
        if node:
            store.add((metric_kind.NODE_CPU,), at, 2.0)
            store.add((metric_kind.NODE_MEMORY,), at, 4.0 * GI)
    return store


def test_what_each_model_learns() -> None:
    assert training_samples(measured(), NOW, (*PODS, pod("unmeasured"))) == {
        "prod": (0.5, GI),
        "batch": (1.0, GI),
        "__node-koord-prod__": (0.5, GI),
        "__node-koord-mid__": (0.0, 0.0),
        "__node-koord-batch__": (1.0, GI),
        "__node-koord-free__": (0.0, 0.0),
        "__node-__": (0.0, 0.0),
        "__node__": (2.0, 4 * GI),
        "__node-sys__": (0.5, 2 * GI),
    }


def test_a_model_learns_the_90th_percentile_of_a_minute() -> None:
    store = SeriesStore(metric_kind.retention_s())
    for second in range(100):
        store.add((metric_kind.POD_CPU, "prod"), NOW - 99 + second, float(second))
        store.add((metric_kind.POD_MEMORY, "prod"), NOW - 99 + second, GI)
    assert training_samples(store, NOW, PODS)["prod"] == (92.0, GI)


def test_an_unmeasured_node_teaches_nothing_about_the_system() -> None:
    found = training_samples(measured(node=False), NOW, PODS)
    assert NODE_UID not in found
    assert SYSTEM_UID not in found


@pytest.mark.parametrize(
    ("cores", "milli"),
    [
        pytest.param(0.01, 25, id="below-the-first-bucket"),
        pytest.param(0.05, 51, id="0.05"),
        pytest.param(1.0, 1_035, id="1"),
        pytest.param(4.0, 4_217, id="4"),
    ],
)
def test_a_peak_is_the_end_of_its_bucket(cores: float, milli: int) -> None:
    models = UsageModels()
    models.train(NOW, {"uid": (cores, GI)})
    found = models.peak("uid")
    assert found is not None
    assert found.cpu_milli == milli


def test_an_idle_prod_pod_lends_what_it_does_not_use() -> None:
    models = UsageModels()
    for minute in range(60):
        models.train(NOW + minute * 60, training_samples(measured(), NOW, PODS))
    view = reclaimable_view(models, NOW, PODS, ResourceAmount(4_000, 8 * GI), PredictionLimits())
    assert [one.uid for one in view.pods] == ["prod"]
    found = decide_reclaimable(view)
    assert isinstance(found, Reclaimable)
    pod_peak = models.peak("prod")
    assert pod_peak is not None
    assert found.by_pod.reclaimable.cpu_milli == 2_000 - pod_peak.with_margin(10).cpu_milli


def test_models_of_the_gone_are_forgotten() -> None:
    models = UsageModels()
    models.train(NOW, {"old": (1.0, GI), "new": (1.0, GI)})
    models.train(NOW + 1000, {"new": (1.0, GI)})
    assert models.expire(NOW + 1801) == ["old"]
    assert models.peak("old") is None
    assert models.peak("new") is not None


def test_a_few_checkpoints_at_a_time_and_none_too_often() -> None:
    models = UsageModels()
    models.train(NOW, {f"pod-{n:02}": (1.0, GI) for n in range(20)})
    first, second = models.checkpoints(NOW), models.checkpoints(NOW + 60)
    assert [len(first), len(second), len(models.checkpoints(NOW + 120))] == [12, 8, 0]
    assert {one.UID for one in (*first, *second)} == {f"pod-{n:02}" for n in range(20)}
    assert len(models.checkpoints(NOW + 600)) == 12


def test_a_restart_changes_no_prediction() -> None:
    models = UsageModels()
    for minute in range(200):
        models.train(NOW + minute * 60, {"prod": (minute % 17 / 10, minute % 5 * GI), "gone": (1.0, GI)})
    files = {one.UID: msgspec.json.encode(one) for one in models.checkpoints(NOW + 20_000)}
    assert set(msgspec.json.decode(files["prod"])) == {"UID", "CPU", "Memory", "LastUpdated"}
    assert set(msgspec.json.decode(files["prod"])["CPU"]) == {"referenceTimestamp", "bucketWeights", "totalWeight"}
    again = UsageModels()
    saved = [one for uid, text in files.items() if (one := read_checkpoint(uid, text)) is not None]
    assert again.restore(saved, model_uids(PODS), NOW + 20_000) == ["gone"]
    assert again.peak("prod") == models.peak("prod")
    assert again.checkpoints(NOW + 20_001) == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{bad", id="no-json"),
        pytest.param(b'{"UID":"a"}', id="half"),
        pytest.param(b'{"UID":"a","CPU":{},"Memory":{},"LastUpdated":"yesterday"}', id="no-time"),
    ],
)
def test_a_file_that_cannot_be_read_is_none(text: bytes) -> None:
    assert read_checkpoint("a", text) is None


def test_a_file_is_who_its_name_says() -> None:
    found = read_checkpoint("b", b'{"UID":"a","CPU":{},"Memory":{},"LastUpdated":"2026-01-01T00:00:00Z"}')
    assert found is not None
    assert found.UID == "b"


def test_names_of_models() -> None:
    assert priority_class_uid("koord-prod") == "__node-koord-prod__"
    assert priority_class_uid("") == "__node-__"
