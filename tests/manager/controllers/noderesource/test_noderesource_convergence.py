"""Whatever happened, in whatever order: nodes end up showing what would be decided about them now, and stay so."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.builtin import NODES
from koord.api.custom import DEVICES, NODE_METRICS, NODE_RESOURCE_TOPOLOGIES
from koord.kube.refused import Refused
from koord.policy.colocation.difference import decide_write
from tests.manager.controllers.noderesource.town import ON, Town, in_town

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


async def take(town: Town, do: tuple[object, ...]) -> None:
    kind, *rest = do
    name = str(rest[0]) if rest else ""
    exists = not isinstance(await town.client.get(NODES, name), Refused) if name in NAMES else False
    match kind:
        case "node" if not exists:
            await town.node(name)
        case "no-node":
            await town.client.delete(NODES, name)
        case "report" if exists:
            await town.report(name, cpu=rest[1])
        case "no-report":
            await town.client.delete(NODE_METRICS, name)
        case "device":
            await town.device(RDMA, name=name)
        case "no-device":
            await town.client.delete(DEVICES, name)
        case "zones" if isinstance(await town.client.get(NODE_RESOURCE_TOPOLOGIES, name), Refused):
            await town.topology({"cpu": "100", "memory": "120G"}, name=name)
        case "no-zones":
            await town.client.delete(NODE_RESOURCE_TOPOLOGIES, name)
        case "wait":
            await town.settle(float(str(rest[0])))
        case "config":
            percent = int(str(rest[0]))
            await town.configure({**ON, "enable": percent > 0, "cpuReclaimThresholdPercent": percent})
        case "restart":
            await town.unmanage()
            await town.manage()


@settings(max_examples=25, deadline=None)
@given(story=st.lists(step, min_size=3, max_size=14))
def test_nodes_show_what_is_decided(story: list[tuple[object, ...]]) -> None:
    async def main(town: Town) -> None:
        await town.configure()
        await town.manage()
        for do in story:
            await take(town, do)
        await town.settle(30)
        living = town.controller.sight.nodes.list()
        for node in living:
            decision = town.controller.explain(node.metadata.name)
            assert decision is not None
            assert decide_write(node, decision, 0).empty
        assert town.controller.remembered() <= len(living)
        town.wire.requests.clear()
        await town.settle(30)
        assert town.wire.writes == []
        # Another manager sees nothing to correct but what was too small to be written at once.
        await town.unmanage()
        await town.manage()
        await town.settle(30)
        for node in town.controller.sight.nodes.list():
            decision = town.controller.explain(node.metadata.name)
            assert decision is not None
            assert decide_write(node, decision, None).empty

    in_town(main)
