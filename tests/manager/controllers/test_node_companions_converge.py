"""Whatever happens in whatever order, and whichever calls fail: in the end each node has the objects it should have."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from koord.api.builtin import NODES
from koord.api.custom import NODE_METRICS, NODE_SLOS
from koord.api.model import to_dict
from koord.embedded.apiserver.inprocess import InProcessTransport
from koord.embedded.cluster import ADMIN, Cluster
from koord.embedded.cluster import Settings as ClusterSettings
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.recorder import Recorder
from koord.kube.refused import ok
from koord.manager.configuration.configuration import Configuration
from koord.manager.controllers.nodemetric import NodeMetricController
from koord.manager.controllers.nodeslo import NodeSLOController
from koord.manager.world import Settings, World
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.town import Shaky
from tests.manager.slo_config import add_node, settle, write_config

NAMES = ("n1", "n2", "n3")
BROKEN = ("{", '{"clusterStrategy":{"enable":0}}')
STEPS = st.one_of(
    st.tuples(st.just("node"), st.sampled_from(NAMES), st.sampled_from(["a", "b"])),
    st.tuples(st.just("gone"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("label"), st.sampled_from(NAMES), st.sampled_from(["a", "b"])),
    st.tuples(st.just("edit"), st.sampled_from(NAMES), st.integers(0, 100)),
    st.tuples(st.just("lose"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("config"), st.sampled_from(["a", "b"]), st.integers(0, 100)),
    st.tuples(st.just("broken"), st.sampled_from(BROKEN), st.none()),
    st.tuples(st.just("wait"), st.none(), st.none()),
)


FAREWELL = [
    ("node", "n2", "a"),
    ("node", "n3", "a"),
    ("wait", None, None),
    *(("gone", name, None) for name in NAMES),
    ("wait", None, None),
]


async def take(world: World, step: tuple[str, Any, Any], good: dict[str, int]) -> None:
    """One step; refusals (no such node, there already) are part of the story."""
    what, which, value = step
    client = world.client
    if what == "node":
        await client.create(NODES, {"metadata": {"name": which, "labels": {"g": value}}})
    elif what == "gone":
        await client.delete(NODES, which)
    elif what == "label":
        await client.patch(NODES, which, {"metadata": {"labels": {"g": value}}}, kind="merge")
    elif what == "edit":
        spec = {"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": value, "memoryEvictLowerPercent": 1}}
        await client.patch(NODE_SLOS, which, {"spec": spec}, kind="merge")
    elif what == "lose":
        await client.delete(NODE_SLOS, which)
        await client.delete(NODE_METRICS, which)
    elif what == "config":
        entry = {"name": which, "nodeSelector": {"matchLabels": {"g": which}}, "cpuSuppressThresholdPercent": value}
        await write_config(world, resource_threshold_config={"nodeStrategies": [entry]})
        good.clear()
        good[which] = value
    elif what == "broken":
        await write_config(world, resource_threshold_config=which)
    else:
        await settle(world)


def live(steps: list[tuple[str, Any, Any]], faults: float, seed: int) -> None:
    async def story(clock: LoopClock) -> None:
        cluster = Cluster(ClusterSettings(http=False, seed=1), clock=clock)
        await cluster.start()
        assert cluster.server is not None
        assert cluster.client is not None
        shaky = Shaky(InProcessTransport(cluster.server, ADMIN), faults, random.Random(seed))
        client = Client(shaky, clock=clock, qps=0, burst=0, chance=random.Random(seed))
        informers = Informers(client, clock, seed=seed)
        recorder = Recorder(client, clock, controller="koord-manager", instance="koord-manager-test")
        world = World(client=client, informers=informers, clock=clock, recorder=recorder, settings=Settings())
        calm = World(
            client=cluster.client, informers=informers, clock=clock, recorder=recorder, settings=world.settings
        )
        configuration = Configuration(world)
        slo, metric = NodeSLOController(world, configuration), NodeMetricController(world, configuration)
        informers.start()
        await configuration.start()
        await slo.start()
        await metric.start()
        good: dict[str, int] = {}
        try:
            await add_node(calm, "n1", {"g": "a"})
            await settle(calm)
            for step in steps:
                await take(calm, step, good)
            shaky.share = 0.0
            await settle(calm, 2000)  # longer than the longest pause after failures
            await agrees(cluster.client, good)
        finally:
            await slo.stop()
            await metric.stop()
            await configuration.stop()
            await informers.stop()
            await cluster.stop()

    run_virtual(story)


async def agrees(client: Client, good: dict[str, int]) -> None:
    nodes = {node.metadata.name: node.metadata.labels for node in ok(await client.list(NODES)).items}
    slos = {slo.metadata.name: to_dict(slo.spec) for slo in ok(await client.list(NODE_SLOS)).items}
    assert set(slos) == set(nodes)
    assert {metric.metadata.name for metric in ok(await client.list(NODE_METRICS)).items} == set(nodes)
    for name, labels in nodes.items():
        threshold = slos[name]["resourceUsedThresholdWithBE"]
        assert threshold["cpuSuppressThresholdPercent"] == good.get(labels["g"], 65)
        assert "memoryEvictLowerPercent" not in threshold, "an edit by hand is undone whole"


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(STEPS, max_size=10))
def test_any_sequence_of_events(steps: list[tuple[str, Any, Any]]) -> None:
    live(steps, faults=0.0, seed=0)


@settings(max_examples=10, deadline=None)
@given(steps=st.lists(STEPS, max_size=8), seed=st.integers(0, 99))
@example(steps=FAREWELL, seed=100)  # a deletion is answered with a conflict
def test_any_sequence_of_events_over_a_bad_network(steps: list[tuple[str, Any, Any]], seed: int) -> None:
    live(steps, faults=0.4, seed=seed)
