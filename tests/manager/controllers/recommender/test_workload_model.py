"""Requests of a workload are recommended from what its pods used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.model import decode, encode
from koord.manager.controllers.recommender.workload_model import UsageSample, WorkloadCheckpoint, WorkloadModel

GIB = 2**30


def fed(cpu: float, memory: float, minutes: int, start_s: float = 1e9) -> WorkloadModel:
    model = WorkloadModel()
    for minute in range(minutes):
        at = start_s + 60.0 * minute
        model.add_samples("n", [UsageSample(node="n", cpu_cores=cpu, memory_bytes=memory, at=at)])
    return model


def test_nothing_seen_says_nothing() -> None:
    assert WorkloadModel().estimate() is None


def test_steady_use_gets_a_margin() -> None:
    estimate = fed(1.0, GIB, 10).estimate()
    assert estimate is not None
    assert estimate.cpu_percentile_cores == pytest.approx(1.03576, abs=1e-5)
    assert estimate.cpu_milli == 1192  # 1.03576 and 15 %
    assert 1.15 * GIB <= estimate.memory_bytes <= 1.25 * GIB
    assert estimate.memory_bytes % 2**20 == 0


def test_a_short_burst_counts_for_memory_and_not_for_cpu() -> None:
    model = fed(0.1, GIB, 100)
    calm = model.estimate()
    model.add_samples("n", [UsageSample(node="n", cpu_cores=8.0, memory_bytes=4.0 * GIB, at=1e9 + 6000)])
    burst = model.estimate()
    assert calm is not None
    assert burst is not None
    assert burst.cpu_milli == calm.cpu_milli
    assert burst.memory_bytes > 4 * GIB


@pytest.mark.parametrize(("minutes", "confidence"), [(1, 0.0), (721, 0.5), (2881, 2.0)])
def test_confidence_grows_with_history(minutes: int, confidence: float) -> None:
    estimate = fed(1.0, GIB, minutes).estimate()
    assert estimate is not None
    assert estimate.confidence == pytest.approx(confidence, abs=0.01)


def test_many_pods_for_an_hour_are_not_a_day() -> None:
    model = WorkloadModel()
    for minute in range(60):
        at = 1e9 + 60.0 * minute
        model.add_samples("n", [UsageSample(node="n", cpu_cores=1, memory_bytes=1, at=at)] * 100)
    estimate = model.estimate()
    assert estimate is not None
    assert estimate.confidence < 0.05


def test_a_report_is_known_by_node_and_time() -> None:
    model = fed(1.0, GIB, 2)
    assert model.has_seen_report("n", 1e9 + 60)
    assert not model.has_seen_report("n", 1e9 + 120)
    assert not model.has_seen_report("m", 1e9)


samples = st.builds(
    UsageSample,
    node=st.sampled_from("ab"),
    cpu_cores=st.floats(0, 100),
    memory_bytes=st.floats(0, 1e12),
    at=st.floats(1e9, 1e9 + 1e6),
)


@given(story=st.lists(samples, max_size=20), cut=st.integers(0, 20))
def test_a_restart_equals_no_restart(story: list[UsageSample], cut: int) -> None:
    whole, first = WorkloadModel(), WorkloadModel()
    for sample in story:
        whole.add_samples(sample.node, [sample])
    for sample in story[:cut]:
        first.add_samples(sample.node, [sample])
    second = WorkloadModel.from_checkpoint(decode(encode(first.save()), WorkloadCheckpoint))
    for sample in story[cut:]:
        second.add_samples(sample.node, [sample])
    assert second.save() == whole.save()
    assert second.estimate() == whole.estimate()


@given(story=st.lists(samples, min_size=1, max_size=20), more=st.floats(0, 50))
def test_more_use_never_gets_less(story: list[UsageSample], more: float) -> None:
    low, high = WorkloadModel(), WorkloadModel()
    for sample in story:
        low.add_samples(sample.node, [sample])
        hungrier = UsageSample(
            node=sample.node,
            cpu_cores=sample.cpu_cores + more,
            memory_bytes=sample.memory_bytes * (1 + more),
            at=sample.at,
        )
        high.add_samples(sample.node, [hungrier])
    less, most = low.estimate(), high.estimate()
    assert less is not None
    assert most is not None
    assert less.cpu_milli <= most.cpu_milli
    assert less.memory_bytes <= most.memory_bytes
