"""Containers of other orchestrators are measured one by one, and count in what best-effort work requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.api.koordinator.resource_name import BATCH_CPU
from koord.koordlet.collect.pod_resource import THIRD_PARTY
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.series import metric_kind
from tests.koordlet.collect.fake_node import FakeNode

GROUP = "kubepods/besteffort/hadoop-yarn"
GIB = 2**30


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, request.param)


def container(node: FakeNode, name: str, milli: int = 1000) -> PodMeta:
    group = node.machine.make(f"{GROUP}/{name}")
    node.use(group, 0.0)
    node.hold(group, 0)
    return PodMeta(uid=name, name=name, group=group, kube_qos=BEST_EFFORT, requests={BATCH_CPU: milli}, third_party="y")


def sample(node: FakeNode, containers: tuple[PodMeta, ...]) -> None:
    node.clock.advance(1.0)
    node.collection.sample(node.clock.time(), node.pods, third_party=containers)


def test_each_container_is_measured(node: FakeNode) -> None:
    both = (container(node, "a"), container(node, "b", 3000))
    sample(node, both)
    node.use(both[0].group, 0.5)
    node.hold(both[1].group, GIB)
    sample(node, both)
    assert node.latest(metric_kind.THIRD_PARTY_CPU, "a") == pytest.approx(0.5, abs=0.01)
    assert node.latest(metric_kind.THIRD_PARTY_CPU, "b") == 0.0
    assert node.latest(metric_kind.THIRD_PARTY_MEMORY, "b") == GIB
    assert node.latest(metric_kind.POD_CPU, "a") is None, "it is no pod"
    assert node.latest(metric_kind.NODE_BE, metric_kind.BE_REQUEST) == 4000
    assert node.collection.statuses[THIRD_PARTY].problem == ""


def test_one_that_ended_has_no_samples_and_disturbs_nobody(node: FakeNode) -> None:
    both = (container(node, "a"), container(node, "b"))
    sample(node, both)
    node.machine.remove(both[0].group)
    sample(node, both)
    assert node.latest(metric_kind.THIRD_PARTY_CPU, "a") is None
    assert node.latest(metric_kind.THIRD_PARTY_CPU, "b") == 0.0
    assert node.collection.statuses[THIRD_PARTY].problem == ""
    sample(node, ())
    assert node.latest(metric_kind.NODE_BE, metric_kind.BE_REQUEST) == 0


def test_without_a_memory_group_there_is_cpu_use_alone(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, 1)
    one = container(node, "a")
    node.file("memory", one.group, "memory.stat").unlink()
    sample(node, (one,))
    sample(node, (one,))
    assert node.latest(metric_kind.THIRD_PARTY_CPU, "a") == 0.0
    assert node.latest(metric_kind.THIRD_PARTY_MEMORY, "a") is None
