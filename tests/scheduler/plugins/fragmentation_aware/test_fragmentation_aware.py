"""FragmentationAware keeps cards whole: shares go where little else would fit."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.config.scheduler.koordinator_args import DeviceShareArgs, defaulted_device_share
from koord.api.model import convert
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from koord.scheduler.plugins.fragmentation_aware.fragmentation import TypicalPodMix
from koord.scheduler.plugins.fragmentation_aware.plugin import FragmentationAware
from koord.scheduler.plugins.registry import REGISTRY
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.plugin_equivalence import check_columns_match_definition, profile_of
from tests.scheduler.plugins.device_share.device_builders import device, gpu
from tests.scheduler.plugins.device_share.device_cluster import DeviceCluster, asking, named

GPU = "koordinator.sh/gpu"


class Fleet(DeviceCluster):
    """Machines of four GPUs, with or without the plugin."""

    def __init__(self, nodes: int, *, aware: bool) -> None:
        super().__init__()
        for number in range(nodes):
            self.state.set_node(make_node(f"n{number}", cpu="64"))
            self.devices.put(named(device(*[gpu(m) for m in range(4)]), f"n{number}"))
        self.plugin = DeviceShare(defaulted_device_share(DeviceShareArgs()), self)
        self.aware = FragmentationAware(self)
        plugins = [self.plugin, self.aware] if aware else [self.plugin]
        self.engine = SchedulingEngine(profile_of(plugins, {"FragmentationAware": 10}), self.state, seed=1)

    def schedule(self, pod: Pod) -> str:
        """The node that takes it, "" when none does."""
        self.lister_of("Pod").put(pod)
        attempt = self.engine.decide(self.state.pod_info(pod))
        decision = attempt.decision
        if not isinstance(decision, ChosenNode):
            return ""
        self.cycle = attempt.cycle
        assert self.reserve(pod, decision.node) == ""
        self.bound(pod, decision.node)
        return decision.node


def share(name: str, percent: int) -> Pod:
    return asking(name, {GPU: percent}, cpu="1")


def test_it_is_enabled_by_one_line() -> None:
    def made(plugins: Any) -> list[str]:
        config = convert({"profiles": [{"plugins": plugins}]}, KubeSchedulerConfiguration)
        completed_config = CompletedConfig.complete(config, REGISTRY)
        assert isinstance(completed_config, CompletedConfig), completed_config
        return [name for name in completed_config.selections[0].points["score"] if name == "FragmentationAware"]

    assert made({"score": {"enabled": [{"name": "FragmentationAware", "weight": 10}]}}) == ["FragmentationAware"]
    assert made({}) == []


def test_a_share_goes_to_a_card_in_use_and_leaves_whole_ones_whole() -> None:
    world = Fleet(2, aware=True)
    for number in range(10):  # what pods this cluster knows: whole cards, and halves
        world.lister_of("Pod").put(asking(f"old{number}", {GPU: 100 if number % 2 else 50}, cpu="1"))
    first = world.schedule(share("a", 50))
    assert first
    assert world.schedule(share("b", 50)) == first
    (cards,) = (site.used["gpu"] for site in world.book.nodes.values() if site.used)
    assert [amounts["koordinator.sh/gpu-memory-ratio"] for amounts in cards.values()] == [100]


def test_more_whole_cards_are_left_than_by_spreading() -> None:
    left: dict[bool, int] = {}
    for aware in (False, True):
        world, chance = Fleet(6, aware=aware), random.Random(7)
        for number in range(24):
            world.lister_of("Pod").put(asking(f"old{number}", {GPU: chance.choice([25, 50, 100])}, cpu="1"))
        for number in range(30):
            assert world.schedule(share(f"p{number}", chance.choice([25, 50])))
        count = 0
        while world.schedule(share(f"whole{count}", 100)):
            count += 1
        left[aware] = count
        world.check()
    assert left[True] > left[False]


@pytest.mark.parametrize("asked", [{GPU: 25}, {GPU: 200}, {"koordinator.sh/gpu-memory": "4Gi"}, {}], ids=str)
def test_both_forms_agree(asked: dict[str, int | str]) -> None:
    world = Fleet(3, aware=True)
    world.state.set_node(make_node("bare"))
    for number in range(20):
        world.schedule(share(f"p{number}", 25 + 25 * (number % 4)))
        pod = asking("p", asked) if asked else make_pod("p")
        check_columns_match_definition(world.aware, world.state, world.state.pod_info(pod), [0, 2])


def test_without_gpu_pods_it_has_nothing_to_say() -> None:
    world = Fleet(2, aware=True)
    info = world.state.pod_info(share("a", 50))
    assert [world.aware.score(world.cycle, info, node) for node in world.state.nodes()] == [0, 0]


def test_waiting_pods_are_expected_again_and_those_that_ended_are_not() -> None:
    world = Fleet(1, aware=True)
    pods = world.lister_of("Pod")
    mix = world.state.derived(TypicalPodMix)
    pods.put(share("a", 50))
    assert [one.shape.gpu_milli for one in mix.expected()] == [500]
    for number in range(10):
        pods.put(share(f"whole{number}", 100))
    assert {one.shape.gpu_milli for one in mix.expected()} == {500, 1000}
    for number in range(10):
        ended = share(f"whole{number}", 100)
        pods.put(msgspec.structs.replace(ended, status=msgspec.structs.replace(ended.status, phase="Succeeded")))
    for number in range(8):
        pods.put(share(f"more{number}", 50))
    assert [one.shape.gpu_milli for one in mix.expected()] == [500]


def test_both_forms_agree_where_pods_may_not_run_everywhere() -> None:
    world = Fleet(3, aware=True)
    for number, model in enumerate(("T4", "T4", "A10")):
        world.state.set_node(make_node(f"n{number}", cpu="64", labels={"model": model}))
    for number in range(20):
        picky = asking(f"p{number}", {GPU: 50}, cpu="1", node_selector={"model": "T4" if number % 3 else "A10"})
        world.lister_of("Pod").put(picky)
    for asked in ({GPU: 25}, {GPU: 100}):
        check_columns_match_definition(world.aware, world.state, world.state.pod_info(asking("q", asked)), [0, 2])
