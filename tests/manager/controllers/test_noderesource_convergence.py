"""Whatever happened, in whatever order: nodes end up showing what would be decided about them now, and stay so."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.custom_kinds import DEVICES, NODE_METRICS, NODE_RESOURCE_TOPOLOGIES
from koord.api.kubernetes.builtin_kinds import NODES
from koord.kube.transport.api_error import ApiError
from koord.manager.colocation.node_patch import decide_node_patch
from tests.manager.controllers.noderesource_harness import ON, NodeResourceHarness, run_in_harness

NAMES = ("n0", "n1")
RDMA = {"type": "rdma", "minor": 0, "health": True}

step = st.one_of(
    st.tuples(
        st.sampled_from(["node", "no-node", "device", "no-device", "zones", "no-zones", "no-report"]),
        st.sampled_from(NAMES),
    ),
    st.tuples(st.just("report"), st.sampled_from(NAMES), st.sampled_from(["-1", "1", "8", "30"])),
    st.tuples(st.just("wait"), st.sampled_from([1, 200, 2000])),
    st.tuples(st.just("config"), st.sampled_from([0, 40, 65])),
    st.tuples(st.sampled_from(["restart"])),
)


async def take(harness: NodeResourceHarness, do: tuple[object, ...]) -> None:
    kind, *rest = do
    name = str(rest[0]) if rest else ""
    exists = not isinstance(await harness.client.get(NODES, name), ApiError) if name in NAMES else False
    match kind:
        case "node" if not exists:
            await harness.node(name)
        case "no-node":
            await harness.client.delete(NODES, name)
        case "report" if exists:
            await harness.report(name, cpu=rest[1])
        case "no-report":
            await harness.client.delete(NODE_METRICS, name)
        case "device":
            await harness.device(RDMA, name=name)
        case "no-device":
            await harness.client.delete(DEVICES, name)
        case "zones" if isinstance(await harness.client.get(NODE_RESOURCE_TOPOLOGIES, name), ApiError):
            await harness.topology({"cpu": "100", "memory": "120G"}, name=name)
        case "no-zones":
            await harness.client.delete(NODE_RESOURCE_TOPOLOGIES, name)
        case "wait":
            await harness.settle(float(str(rest[0])))
        case "config":
            percent = int(str(rest[0]))
            await harness.configure({**ON, "enable": percent > 0, "cpuReclaimThresholdPercent": percent})
        case "restart":
            await harness.unmanage()
            await harness.manage()


@settings(max_examples=25, deadline=None)
@given(story=st.lists(step, min_size=3, max_size=14))
def test_nodes_show_what_is_decided(story: list[tuple[object, ...]]) -> None:
    async def main(harness: NodeResourceHarness) -> None:
        await harness.configure()
        await harness.manage()
        for do in story:
            await take(harness, do)
        await harness.settle(30)
        living = harness.controller.informers.nodes.list()
        for node in living:
            decision = harness.controller.explain(node.metadata.name)
            assert decision is not None
            assert decide_node_patch(node, decision, 0).is_empty
        assert harness.controller.remembered_nodes() <= len(living)
        harness.wire.requests.clear()
        await harness.settle(30)
        assert harness.wire.writes == []
        # Another manager sees nothing to correct but what was too small to be written at once.
        await harness.unmanage()
        await harness.manage()
        await harness.settle(30)
        for node in harness.controller.informers.nodes.list():
            decision = harness.controller.explain(node.metadata.name)
            assert decision is not None
            assert decide_node_patch(node, decision, None).is_empty

    run_in_harness(main)
