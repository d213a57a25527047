"""A day in the life of a full node: pods come and go, and memory stays what it was."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.protocol import BURSTABLE
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.cgroup.usage import FdBudget
from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.koordlet.collect.collector import CollectContext, CollectorStatuses
from koord.koordlet.collect.pod_resource import PodResourceCollector
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.reporters.builders.usage_models import UsageModels, training_samples
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.telemetry.clock import ManualClock
from tests.koordlet.collect.fake_node import FakeNode

FULL = 250
STEP_S = 60  # of virtual time: a day has 1440 of them


def named(number: int, start: int) -> PodMeta:
    """The pod in a place of the node; a place has another pod after every restart of it."""
    uid = f"{number}-{start}"
    box = ContainerMeta(name="c", id=f"containerd://{uid}", group=f"kubepods/burstable/pod{uid}/c", running=True)
    return PodMeta(uid=uid, name=uid, group=f"kubepods/burstable/pod{uid}", kube_qos=BURSTABLE, containers=(box,))


def day(hours: float, churn: int) -> Iterator[tuple[int, tuple[PodMeta, ...]]]:
    """Every step some pods are replaced by new ones."""
    starts = [0] * FULL
    for step in range(int(hours * 3600 / STEP_S)):
        for offset in range(churn):
            starts[(step * churn + offset) % FULL] = step
        yield step, tuple(named(number, start) for number, start in enumerate(starts))


def test_a_full_node_with_pods_that_come_and_go_is_flat() -> None:
    """A thousand pods in five hours, a sample a minute; what is kept is counted, and so is all that is allocated."""
    store, models = SeriesStore(metric_kind.retention_s(), interval_s=STEP_S), UsageModels()
    clock_s = 1_000_000.0
    sizes: list[tuple[int, int]] = []
    blocks: list[int] = []
    for step, pods in day(5, 4):
        clock_s += STEP_S
        store.add((metric_kind.NODE_CPU,), clock_s, 10.0)
        store.add((metric_kind.NODE_MEMORY,), clock_s, 1e10)
        for pod in pods:
            store.add((metric_kind.POD_CPU, pod.uid), clock_s, 0.5)
            store.add((metric_kind.POD_MEMORY, pod.uid), clock_s, 1e8)
            store.add((metric_kind.CONTAINER_CPU, pod.containers[0].id), clock_s, 0.5)
            store.add((metric_kind.POD_PSI, pod.uid, "cpu", "10", "some"), clock_s, 1.0)
        models.train(clock_s, training_samples(store, clock_s, pods))
        models.expire(clock_s)
        store.expire(clock_s)
        if step % 60 == 59:
            gc.collect()
            sizes.append((len(store), len(models)))
            blocks.append(sys.getallocatedblocks())
    assert sizes[2:] == [sizes[2]] * len(sizes[2:]), sizes
    assert max(blocks[3:]) < 1.02 * blocks[2], blocks


def test_counters_of_pods_that_are_gone_do_not_pile_up(tmp_path: Path) -> None:
    """The collector itself, over a machine whose pods have no groups: what it keeps is by pod, and must go with it."""
    node = FakeNode(tmp_path, 2)
    tree = CgroupTree(node.machine.host, 2, CgroupLayout("cgroupfs"))
    budget = FdBudget(10_000)
    collector = PodResourceCollector(
        CollectContext(tree, node.store, node.clock, CollectorStatuses(()), budget, 20), page_cache=False
    )
    kept: list[int] = []
    for step, pods in day(0.5, 100):
        node.clock.advance(STEP_S)
        collector.sample(node.clock.time(), pods, 4, (0,))
        collector.expire(node.clock.monotonic())
        kept.append(len(collector._known))
        assert step >= 0
    assert set(kept) == {FULL}
    collector.close()
    assert budget.open_count == 0


@pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
def test_a_store_of_a_full_node_has_a_bound(version: int) -> None:
    store = SeriesStore(metric_kind.retention_s())
    clock = ManualClock()
    for _ in range(400):
        clock.advance(1)
        for number in range(FULL // 10):
            for series in (metric_kind.POD_CPU, metric_kind.POD_MEMORY, metric_kind.POD_THROTTLED):
                store.add((series, f"{version}-{number}"), clock.time(), 1.0)
    full = store.size_bytes
    for _ in range(400):
        clock.advance(1)
        for number in range(FULL // 10):
            for series in (metric_kind.POD_CPU, metric_kind.POD_MEMORY, metric_kind.POD_THROTTLED):
                store.add((series, f"{version}-{number}"), clock.time(), 1.0)
    assert store.size_bytes == full
    assert full * 10 < 4 << 20, "what 250 pods cost"


class Meter:
    """A group whose counters say anything at all."""

    def __init__(self, readings: list[int | None]) -> None:
        self.readings = readings
        self.group = "g"

    def cpu_ns(self) -> int | IoError:
        found = self.readings.pop(0)
        return IoError("f", "read", 2) if found is None else found

    def throttling(self) -> tuple[int, int] | IoError:
        return (0, 0)

    def memory(self) -> tuple[int, int] | IoError:
        return (1, 1)

    def close(self) -> None:
        return


@given(
    readings=st.lists(st.none() | st.integers(0, 2**63), min_size=2, max_size=30),
    steps=st.lists(st.floats(0, 100), min_size=30, max_size=30),
    jumps=st.lists(st.floats(-1e6, 1e6), min_size=30, max_size=30),
)
def test_no_counter_and_no_clock_makes_an_impossible_sample(
    readings: list[int | None], steps: list[float], jumps: list[float]
) -> None:
    node = CgroupTree(Host(), 2, CgroupLayout("cgroupfs"))
    store, clock = SeriesStore(metric_kind.retention_s()), ManualClock()
    collector = PodResourceCollector(
        CollectContext(node, store, clock, CollectorStatuses(()), FdBudget(0), 20), page_cache=False
    )
    pods = (PodMeta(uid="a", group="g"),)
    collector._track_pods(pods)
    meter = Meter(list(readings))
    collector._known["a"].subject.usage_reader = meter  # type: ignore[assignment]
    for step, jump in zip(steps[: len(readings)], jumps, strict=False):
        clock.advance(step)
        now_s = max(clock.time() + jump, 0)
        collector.sample(now_s, pods, 4, (0,))
        last = store.latest((metric_kind.POD_CPU, "a"), now_s)
        assert last is None or 0 <= last <= 4
