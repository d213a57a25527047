"""`koord explain interference`: the victim, the culprit and the action, on `koord up` and of a koordlet."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, EVENTS_EVENTS, PODS
from koord.cli.cluster_access import KoordletAddress
from koord.cli.commands.evictions import explain_eviction
from koord.cli.commands.explain.interference import (
    NodeInterference,
    find_all_interference,
    find_interference,
    print_interference,
    print_nodes,
)
from koord.koordlet.agent_status import (
    ContainerBaseline,
    InterferenceRecord,
    InterferenceStatus,
    Suspect,
    ThrottledPod,
)
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.manager.reconcile_loop import NAMESPACE
from koord.telemetry.clock import LoopClock
from tests.cli.cluster_with_agents import with_agents
from tests.cli.koordlet_proxy import create_namespace, create_node, proxy_client, run_koordlet_pod
from tests.journeys.colocation_cluster import batch_pod, pod
from tests.koordlet.agent_fixture import NODE, AgentFixture, in_virtual_time

ADDRESS = KoordletAddress()
AT = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)
ON = {"koordlet_feature-gates": "InterferenceDetection=true"}
RECORD = InterferenceRecord(
    number=1,
    namespace="default",
    pod="web",
    uid="u",
    container="app",
    metric="cpi",
    value=2.2,
    mean=1.1,
    deviation=0.055,
    threshold=1.21,
    samples=60,
    since="2026-01-01T00:58:00Z",
    suspects=(
        Suspect(namespace="default", pod="stream", uid="s", score=0.451, cores=2.0),
        Suspect(namespace="default", pod="quiet", uid="q", score=-0.1, cores=1.0),
    ),
    culprit="default/stream",
    action="throttle",
    outcome="default/stream is throttled to 200m until 2026-01-01T01:03:00Z",
)
STATUS = InterferenceStatus(
    enabled=True,
    why="no samples of pressure: off",
    action="throttle",
    metrics=("cpi",),
    since="2026-01-01T00:00:00Z",
    watched=3,
    learning=1,
    throttled=(
        ThrottledPod(
            namespace="default",
            pod="stream",
            uid="s",
            milli=200,
            until="2026-01-01T01:03:00Z",
            victim="default/web",
        ),
    ),
    incidents=(RECORD,),
    baselines=(
        ContainerBaseline(
            namespace="default",
            pod="web",
            container="app",
            metric="cpi",
            mean=1.1,
            deviation=0.055,
            samples=60,
            latest=2.2,
            outliers=3,
        ),
    ),
)


def printed(found: NodeInterference | list[NodeInterference]) -> list[str]:
    out = Console(width=200, highlight=False, markup=False)
    with out.capture() as captured:
        if isinstance(found, NodeInterference):
            print_interference(out, found, AT)
        else:
            print_nodes(out, found)
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_an_incident_has_its_numbers_its_suspects_and_what_was_done() -> None:
    assert printed(NodeInterference(node="n1", pod="default/web", interference=STATUS)) == [
        "Node n1",
        "Pod default/web",
        "Watched 3 containers by cpi; 1 without a baseline yet",
        "Since 1h ago, when this agent began to learn",
        "Action throttle",
        "Limited no samples of pressure: off",
        "Throttled default/stream to 200m until 2026-01-01T01:03:00Z, for default/web",
        "",
        "CONTAINER METRIC NORMAL LATEST OUTLIERS SAMPLES",
        "app cpi 1.1 ± 0.055 2.2 3 of 5 60",
        "",
        "default/web/app is disturbed: began 2m ago",
        "Measured cpi of container app is 2.2, 20.0 deviations above its normal 1.1 ± 0.055 (60 samples);"
        " the CPU use of default/stream follows it (correlation 0.45)",
        "Culprit default/stream",
        "Suspects default/stream 0.45 (2.00 cores), default/quiet -0.10 (1.00 cores)",
        "Action throttle: default/stream is throttled to 200m until 2026-01-01T01:03:00Z",
    ]


def test_all_nodes_are_one_line_each() -> None:
    off = InterferenceStatus(why="the gate InterferenceDetection is off")
    found = [
        NodeInterference(node="n1", interference=STATUS),
        NodeInterference(node="n2", interference=off),
        NodeInterference(node="n3", problem="no koordlet runs on n3"),
    ]
    assert printed(found) == [
        "NODE WATCHED LEARNING ACTION DISTURBED CULPRIT",
        "n1 3 1 throttle default/web default/stream",
        "n2 - - - the gate InterferenceDetection is off",
        "n3 - - - no koordlet runs on n3",
    ]


async def start_antagonist(client: Client, clock: LoopClock, strategy: dict[str, Any]) -> str:
    """Run a service until it has a baseline, then an antagonist beside it; return the node."""
    data = {"data": {"interference-config": json.dumps({"clusterStrategy": {"sampleSeconds": 5, **strategy}})}}
    unwrap(await client.patch(CONFIG_MAPS, "slo-controller-config", data, NAMESPACE, kind="merge"))
    service = pod("web", {"cpu": "2", "memory": "1Gi"}, uses={"cpu": "50%"}, labels={"koordinator.sh/qosClass": "LS"})
    service["spec"]["nodeName"] = "node-0"
    unwrap(await client.create(PODS, service))
    await clock.sleep(120)
    antagonist = batch_pod("stream", 8000, uses={"cpu": "100%"}, namespace="default", nodeName="node-0")
    antagonist["metadata"]["annotations"]["sim.koord.sh/cache-pressure"] = "10"
    unwrap(await client.create(PODS, antagonist))
    return "node-0"


def test_a_user_of_koord_up_sees_the_culprit_throttled() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        node = await start_antagonist(client, clock, {"action": "throttle", "throttleSeconds": 60})
        await clock.sleep(45)
        found = await find_interference(client, "default/web", ADDRESS)
        assert (found.node, found.interference is not None) == (node, True)
        assert found.interference is not None
        (incident, *_) = (*found.interference.incidents, *found.interference.ended)
        assert (incident.full_name, incident.metric, incident.culprit) == ("default/web", "cpi", "default/stream")
        assert "default/stream is throttled to" in incident.outcome
        assert [one.pod for one in found.interference.throttled] == ["stream"]
        culprit = await find_interference(client, "default/stream", ADDRESS)
        assert culprit.interference is not None
        assert [*culprit.interference.incidents, *culprit.interference.ended] == [
            *found.interference.incidents,
            *found.interference.ended,
        ]
        events = {(one.regarding.name, one.reason) for one in unwrap(await client.list(EVENTS_EVENTS)).items}
        assert {("web", "InterferenceDetected"), ("stream", "InterferenceThrottled")} <= events
        everywhere = await find_all_interference(client, ADDRESS)
        assert [one.node for one in everywhere] == ["node-0", "node-1"]

    with_agents(story, **ON)


def test_an_eviction_for_interference_is_explained_as_any_other() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        node = await start_antagonist(client, clock, {"action": "evict"})
        await clock.sleep(60)
        found = await explain_eviction(client, "default", "stream", NAMESPACE, 9316)
        (record,) = found.records
        assert (record.node, record.outcome, record.rule) == (node, "evicted", "InterferenceEvict")
        assert "cpi of default/web/app" in record.measured

    with_agents(story, **ON)


def test_what_cannot_be_found_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        for name in ("nowhere", "default/nobody", "a/b/c"):
            with pytest.raises(SystemExit):
                await find_interference(client, name, ADDRESS)
        off = await find_interference(client, "node-0", ADDRESS)
        assert printed(off) == ["Node node-0", "Off the gate InterferenceDetection is off"]

    with_agents(story)
    assert capsys.readouterr().err.splitlines() == [
        "koord: there is no node nowhere",
        "koord: there is no pod default/nobody",
        "koord: 'a/b/c' is neither NODE nor NAMESPACE/POD",
    ]


def test_a_koordlet_is_asked_over_http(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order({})
        agent = world.agent(frozenset({"InterferenceDetection"}))
        await agent.start()
        client = proxy_client(world.cluster, world.clock, {"koordlet-a": agent.endpoint})
        await create_namespace(client)
        await create_node(client, "bare")
        await run_koordlet_pod(client, "koordlet-a", NODE)
        await world.run_pod("web", "LS")
        await world.clock.sleep(15)
        found = await find_interference(client, NODE, ADDRESS)
        assert found.interference is not None
        assert (found.interference.enabled, found.interference.action) == (True, "report")
        everywhere = {one.node: one for one in await find_all_interference(client, ADDRESS)}
        assert everywhere["bare"].problem.startswith("no koordlet runs on bare")
        assert everywhere[NODE].interference == found.interference
        await agent.stop()

    in_virtual_time(tmp_path, story)
