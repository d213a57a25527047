"""Whatever happens in whatever order, and whichever calls fail: in the end each node has the objects it should have."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_SLOS
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NODES
from koord.api.model import to_dict
from koord.embedded.cluster import ADMIN, ClusterSettings, EmbeddedCluster, InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.controllers.per_node_object import NodeMetricController, NodeSLOController
from koord.manager.reconcile_loop import ManagerContext, ManagerSettings
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.workload_cluster import FaultyTransport
from tests.manager.slo_config import NAME, NAMESPACE, add_node, settle, write_config

NAMES = ("n1", "n2", "n3")
BROKEN = ("{", '{"clusterStrategy":{"enable":0}}')
STEPS = st.one_of(
    st.tuples(st.just("node"), st.sampled_from(NAMES), st.sampled_from(["a", "b"])),
    st.tuples(st.just("gone"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("label"), st.sampled_from(NAMES), st.sampled_from(["a", "b"])),
    st.tuples(st.just("edit"), st.sampled_from(NAMES), st.integers(0, 100)),
    st.tuples(st.just("lose"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("config"), st.sampled_from(["a", "b"]), st.integers(-5, 110)),
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


async def take(context: ManagerContext, step: tuple[str, Any, Any], good: dict[str, int]) -> None:
    """One step; refusals (no such node, there already) are part of the story."""
    what, which, value = step
    client = context.client
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
        await write_config(context, resource_threshold_config={"nodeStrategies": [entry]})
        if 1 <= value <= 100:  # any other value leaves the last good settings in use
            good.clear()
            good[which] = value
            await arrival(context)
    elif what == "broken":
        await write_config(context, resource_threshold_config=which)
    else:
        await settle(context)


async def arrival(context: ManagerContext) -> None:
    """Wait until the manager has read good settings: over a bad network it may never see what is replaced at once."""
    maps = context.informers.for_resource(CONFIG_MAPS, NAMESPACE, fields=f"metadata.name={NAME}")
    written = unwrap(await context.client.get(CONFIG_MAPS, NAME, NAMESPACE))
    for _ in range(2000):
        known = maps.get(NAMESPACE, NAME)
        if known is not None and known.data == written.data:
            return
        await settle(context)
    raise AssertionError("the settings never arrived")


def live(steps: list[tuple[str, Any, Any]], faults: float, seed: int) -> None:
    async def story(clock: LoopClock) -> None:
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), clock=clock)
        await cluster.start()
        assert cluster.server is not None
        assert cluster.client is not None
        shaky = FaultyTransport(InProcessTransport(cluster.server, ADMIN), faults, random.Random(seed))
        client = Client(shaky, clock=clock, qps=0, burst=0, chance=random.Random(seed))
        informers = InformerFactory(client, clock, seed=seed)
        recorder = EventRecorder(client, clock, controller="koord-manager", instance="koord-manager-test")
        context = ManagerContext(
            client=client, informers=informers, clock=clock, recorder=recorder, settings=ManagerSettings()
        )
        calm = ManagerContext(
            client=cluster.client, informers=informers, clock=clock, recorder=recorder, settings=context.settings
        )
        configuration = SloControllerConfig(context)
        slo, metric = NodeSLOController(context, configuration), NodeMetricController(context, configuration)
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
    nodes = {node.metadata.name: node.metadata.labels for node in unwrap(await client.list(NODES)).items}
    slos = {slo.metadata.name: to_dict(slo.spec) for slo in unwrap(await client.list(NODE_SLOS)).items}
    assert set(slos) == set(nodes)
    assert {metric.metadata.name for metric in unwrap(await client.list(NODE_METRICS)).items} == set(nodes)
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
@example(steps=[("config", "a", 1), ("broken", "{", None)], seed=13)  # the watch breaks between the two
def test_any_sequence_of_events_over_a_bad_network(steps: list[tuple[str, Any, Any]], seed: int) -> None:
    live(steps, faults=0.4, seed=seed)
