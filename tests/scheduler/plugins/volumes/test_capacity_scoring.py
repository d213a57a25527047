"""With the gate StorageCapacityScoring nodes are scored by the storage that is left for a pod's volumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from koord.api.config.component import PluginConfig
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration, KubeSchedulerProfile
from koord.api.config.scheduler.in_tree_args import UtilizationShapePoint, VolumeBindingArgs
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import SKIP
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.plugins.volumes.volume_binding import (
    CapacityScoringVolumeBinding,
    StorageUse,
    storage_score,
)
from tests.scheduler.builders import ZONE, make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.volumes.volume_objects import (
    ObjectHandle,
    make_capacity,
    make_claim,
    make_class,
    make_driver,
    make_volume,
    volumes,
)

FILL_UP = (UtilizationShapePoint(utilization=0, score=0), UtilizationShapePoint(utilization=100, score=10))
FALLING = tuple(range(100, -1, -1))  # as the default shape


@pytest.mark.parametrize(
    ("uses", "score"),
    [
        ({}, 0),
        ({"a": StorageUse(0, 100)}, 100),
        ({"a": StorageUse(30, 100)}, 70),
        ({"a": StorageUse(1, 3)}, 67),  # 33 %
        ({"a": StorageUse(100, 100)}, 0),
        ({"a": StorageUse(101, 100)}, 0),
        ({"a": StorageUse(0, 0)}, 0),
        ({"a": StorageUse(30, 100), "b": StorageUse(75, 100)}, 48),  # 47.5
    ],
)
def test_score_of_a_node_is_the_mean_over_its_classes(uses: Mapping[str, StorageUse], score: int) -> None:
    assert storage_score(uses, FALLING) == score


def scores(*objects: Any, claims: tuple[str, ...] = ("c0",), shape: tuple[UtilizationShapePoint, ...] = ()) -> Any:
    """Return the scores of two nodes, n0 in zone a and n1 in zone b."""
    state = make_state([make_node("n0", labels={ZONE: "a"}), make_node("n1", labels={ZONE: "b"})])
    plugin = CapacityScoringVolumeBinding(VolumeBindingArgs(shape=shape), ObjectHandle(state, *objects))
    attempt = SchedulingEngine(profile_of([plugin]), state).decide(
        state.pod_info(make_pod(volumes=volumes(*claims))), 9
    )
    chosen = attempt.decision
    assert isinstance(chosen, ChosenNode), chosen
    found = {
        chosen.node: chosen.scores.get("VolumeBinding"),
        **{n.node: n.scores.get("VolumeBinding") for n in chosen.runners_up},
    }
    return found.get("n0"), found.get("n1")


def local(name: str, node: str, size: str) -> Any:
    return make_volume(name, storage_class="static", on=[node], size=size)


def capacity(zone: str, size: str, name: str = "slow", largest: str | None = None) -> Any:
    return make_capacity(f"{name}-{zone}-{size}", storage_class=name, labels={ZONE: zone}, size=size, largest=largest)


STATIC = make_class("static", provisioner="kubernetes.io/no-provisioner")
DYNAMIC = (make_class("slow"), make_driver())


def asks(name: str = "c0", size: str = "10Gi", storage_class: str = "slow") -> Any:
    return make_claim(name, storage_class=storage_class, size=size)


@pytest.mark.parametrize(
    ("objects", "claims", "shape", "expected"),
    [
        pytest.param(
            (STATIC, asks(storage_class="static"), local("p0", "n0", "100Gi"), local("p1", "n1", "20Gi")),
            ("c0",),
            (),
            (90, 50),
            id="static: the larger volume is emptier",
        ),
        pytest.param(
            (STATIC, asks(storage_class="static"), local("p0", "n0", "100Gi"), local("p1", "n1", "20Gi")),
            ("c0",),
            FILL_UP,
            (10, 50),
            id="static: a shape that fills up",
        ),
        pytest.param(
            (*DYNAMIC, asks(), capacity("a", "100Gi"), capacity("b", "40Gi")),
            ("c0",),
            (),
            (90, 75),
            id="dynamic: by the capacity that is reported",
        ),
        pytest.param(
            (*DYNAMIC, asks(), asks("c1"), capacity("a", "100Gi"), capacity("b", "40Gi")),
            ("c0", "c1"),
            (),
            (80, 50),
            id="dynamic: the capacity of a class counts once",
        ),
        pytest.param(
            (*DYNAMIC, asks(), capacity("a", "20Gi"), capacity("a", "50Gi"), capacity("b", "40Gi")),
            ("c0",),
            (),
            (80, 75),
            id="dynamic: the largest of several",
        ),
        pytest.param(
            (*DYNAMIC, asks(), capacity("a", "100Gi", largest="5Gi"), capacity("a", "20Gi"), capacity("b", "40Gi")),
            ("c0",),
            (),
            (50, 75),
            id="dynamic: one whose volumes are too small does not count",
        ),
        pytest.param(
            (make_class("slow"), make_driver(capacity=False), asks()),
            ("c0",),
            (),
            (0, 0),
            id="dynamic: a driver that reports nothing",
        ),
        pytest.param(
            (
                *DYNAMIC,
                STATIC,
                asks(),
                asks("c1", storage_class="static"),
                local("p0", "n0", "20Gi"),
                local("p1", "n1", "100Gi"),
                capacity("a", "1000Gi"),
                capacity("b", "10Gi"),
            ),
            ("c0", "c1"),
            (),
            (50, 90),
            id="both: volumes to bind alone count",
        ),
    ],
)
def test_nodes_are_scored_by_what_is_left(
    objects: tuple[Any, ...],
    claims: tuple[str, ...],
    shape: tuple[UtilizationShapePoint, ...],
    expected: tuple[int, int],
) -> None:
    assert scores(*objects, claims=claims, shape=shape) == expected


def test_pods_without_unbound_claims_are_not_scored() -> None:
    state = make_state([make_node("n0")])
    plugin = CapacityScoringVolumeBinding(None, ObjectHandle(state))
    cycle = CycleState(state)
    assert plugin.pre_filter(cycle, state.pod_info(make_pod())) is SKIP
    assert plugin.pre_score(cycle, state.pod_info(make_pod()), ()) is SKIP


@pytest.mark.parametrize("switched_on", [False, True])
def test_the_gate_switches_the_score_and_its_argument(switched_on: bool) -> None:
    gates = {"StorageCapacityScoring": switched_on}
    shape = {"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}
    profile = KubeSchedulerProfile(plugin_config=(PluginConfig(name="VolumeBinding", args=shape),))
    made = CompletedConfig.complete(KubeSchedulerConfiguration(profiles=(profile,)), REGISTRY, gates)
    assert isinstance(made, list) is not switched_on
    plain = CompletedConfig.complete(KubeSchedulerConfiguration(), REGISTRY, gates)
    assert isinstance(plain, CompletedConfig)
    state = make_state([make_node("n0")])
    (profiled,) = plain.make_profiles(ObjectHandle(state))
    scoring = [plugin.name for plugin in profiled.plugins_at(Plugin.score)]
    assert ("VolumeBinding" in scoring) is switched_on
