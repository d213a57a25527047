"""`koord node hooks`: connections, each hook, one line for each node, and one line for each failure."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.cli.cluster_access import KoordletAddress
from koord.cli.commands.node_agent import NodeHooks, all_hooks, node_hooks, print_all_hooks, print_node_hooks
from koord.cli.main import cli
from koord.cli.up.local_agents import KOORDLET_PAGE
from koord.cli.up.local_program import proxy_page
from koord.koordlet.agent_status import HookConnection, HooksStatus, HookStatus
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock
from koord.telemetry.component_server import ComponentServer
from tests.cli.cluster_with_agents import with_agents
from tests.cli.koordlet_proxy import create_namespace, create_node, proxy_client, run_koordlet_pod
from tests.journeys.colocation_cluster import batch_pod
from tests.koord_up_process import koord_up
from tests.koordlet.agent_fixture import NODE, AgentFixture, in_virtual_time

ADDRESS = KoordletAddress()
AT = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)
NRI = HookConnection(
    name="nri",
    connected=True,
    state="connected",
    since="2026-01-01T00:30:00Z",
    details={"runtime": "containerd v2.1.4", "nriVersion": "0.9", "pods": "12"},
)
NO_PROXY = HookConnection(name="proxy", connected=False, state="--runtime-hooks-server is off")
CPUS = HookStatus(
    name="CPUSetAllocator",
    gate="CPUSetAllocator",
    enabled=True,
    pods=3,
    containers=5,
    last_applied="2026-01-01T00:59:30Z",
    calls=40,
    failures=2,
    last_failure="default/web: the annotation cannot be read",
    p50_ms=0.104,
    p99_ms=1.5,
)
OFF = HookStatus(name="Resctrl", gate="Resctrl", enabled=False, why_off="feature gate Resctrl is off")
STATUS = HooksStatus(connections=(NRI, NO_PROXY), hooks=(CPUS, OFF))


def printed(found: NodeHooks | list[NodeHooks], width: int = 100) -> list[str]:
    out = Console(width=width, highlight=False, markup=False)
    with out.capture() as captured:
        if isinstance(found, NodeHooks):
            print_node_hooks(out, found, AT)
        else:
            print_all_hooks(out, found, AT)
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_one_node_shows_connections_hooks_failures_and_why_hooks_are_off() -> None:
    assert printed(NodeHooks(node="n1", hooks=STATUS)) == [
        "Node n1",
        "NRI connected for 30m, containerd v2.1.4, nriVersion 0.9, pods 12",
        "Proxy --runtime-hooks-server is off",
        "",
        "HOOK STATE PODS CONTAINERS LAST APPLIED CALLS FAILURES P50 P99",
        "CPUSetAllocator on 3 5 30s ago 40 2 0.10ms 1.50ms",
        "Resctrl off 0 0 never 0 0 - -",
        "Failed CPUSetAllocator: default/web: the annotation cannot be read",
        "Off Resctrl: feature gate Resctrl is off",
    ]


def test_an_agent_that_has_not_started_its_hooks_says_so() -> None:
    shown = printed(NodeHooks(node="n1", hooks=HooksStatus(safe_mode=True)))
    assert shown[1:] == [
        "Mode safe mode: hooks only say what they would do",
        "The agent has not found the machine's cgroups yet: no hook has run.",
    ]


def test_all_nodes_are_one_line_each_whatever_is_wrong() -> None:
    unconnected = HooksStatus(connections=(NO_PROXY,), hooks=(CPUS,), safe_mode=True)
    problem = "koordlet-x: a long text " + "of what is wrong " * 10
    found = [
        NodeHooks(node="n1", problem=problem),
        NodeHooks(node="n2", hooks=STATUS),
        NodeHooks(node="ip-10-20-30-40", hooks=unconnected),
    ]
    assert printed(found) == [
        "NODE BY SINCE RUNTIME HOOKS APPLIED FAILURES P99",
        "n2 NRI 30m ago containerd v2.1.4 1 of 2 30s ago 2 1.50ms",
        "ip-10-20-30-40 none - - 1 of 1, safe mode 30s ago 2 1.50ms",
        f"n1 {problem.strip()}",
    ]


def test_simulated_agents_tell_which_pods_their_hooks_apply_to() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.create(PODS, batch_pod("work", 4000, namespace="default")))
        await clock.sleep(20)
        placed = unwrap(await client.get(PODS, "work", "default")).spec.node_name
        found = await node_hooks(client, placed, ADDRESS)
        assert found.hooks is not None
        (connection,) = found.hooks.connections
        assert (connection.name, connection.connected, connection.details) == (
            "simulated",
            True,
            {"runtime": "simulated"},
        )
        hooks = {hook.name: hook for hook in found.hooks.hooks}
        batch = hooks["BatchResource"]
        assert (batch.enabled, batch.pods, batch.containers, batch.failures) == (True, 1, 1, 0)
        assert batch.last_applied > connection.since
        assert hooks["Resctrl"].why_off == "feature gate Resctrl is off"
        everywhere = await all_hooks(client, ADDRESS)
        assert [one.node for one in everywhere] == ["node-0", "node-1"]
        applied = {
            one.node: [h.pods for h in one.hooks.hooks if h.name == "BatchResource"] for one in everywhere if one.hooks
        }
        assert applied == {"node-0": [0], "node-1": [0]} | {placed: [1]}

    with_agents(story)


def test_gates_of_simulated_agents_switch_hooks() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        found = await node_hooks(client, "node-0", ADDRESS)
        assert found.hooks is not None
        (batch,) = (hook for hook in found.hooks.hooks if hook.name == "BatchResource")
        assert (batch.enabled, batch.why_off) == (False, "feature gate BatchResource is off")

    with_agents(story, **{"koordlet_feature-gates": "BatchResource=false"})


def test_without_agents_one_line_says_how_to_switch_them_on(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        for ask in (
            node_hooks(client, "node-1", ADDRESS),
            all_hooks(client, ADDRESS),
            node_hooks(client, "x", ADDRESS),
        ):
            with pytest.raises(SystemExit):
                await ask

    with_agents(story, agents="false")
    assert capsys.readouterr().err.splitlines() == [
        "koord: node-1 is simulated and runs no agent: start koord up with --set nodes.agents=true",
        "koord: node-0 is simulated and runs no agent: start koord up with --set nodes.agents=true",
        "koord: there is no node x",
    ]


def test_koordlet_is_asked_through_the_proxy_of_its_pod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One node has a koordlet, one none, one a koordlet of a version that does not know hooks."""

    async def story(world: AgentFixture) -> None:
        await world.furnish()
        agent = world.agent()
        await agent.start()
        endpoints = {"koordlet-a": agent.endpoint, "koordlet-old": ComponentServer(world.clock)}
        client = proxy_client(world.cluster, world.clock, endpoints)
        with pytest.raises(SystemExit):
            await all_hooks(client, ADDRESS)  # nobody runs a koordlet yet
        await create_namespace(client)
        await create_node(client, "bare")
        await create_node(client, "old")
        await run_koordlet_pod(client, "koordlet-a", NODE)
        await run_koordlet_pod(client, "koordlet-old", "old")
        await world.run_pod("batch", "BE")
        await world.clock.sleep(15)
        found = {one.node: one for one in await all_hooks(client, ADDRESS)}
        status = found[NODE].hooks
        assert status is not None
        assert {way.name: way.connected for way in status.connections} == {"nri": False, "proxy": False}
        assert {hook.name for hook in status.hooks if hook.enabled} >= {"BatchResource", "CPUSetAllocator"}
        assert found["bare"].problem.startswith("no koordlet runs on bare in namespace koordinator-system: koord manif")
        assert found["old"].problem == "koordlet-old is too old: it does not serve /apis/v1/hooks"
        assert (await node_hooks(client, NODE, ADDRESS)).hooks == status
        for name in ("bare", "old"):
            with pytest.raises(SystemExit):
                await node_hooks(client, name, ADDRESS)
        await agent.stop()

    in_virtual_time(tmp_path, story)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" in ")[0] for line in said] == [
        f"koord: no koordlet runs on {NODE}",
        "koord: no koordlet runs on bare",
        "koord: koordlet-old is too old: it does not serve /apis/v1/hooks",
    ]


def test_a_simulated_agent_without_hooks_is_too_old(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        info = {"status": {"nodeInfo": {"containerRuntimeVersion": "simulated://1.0.0"}}}
        unwrap(await world.client.patch(NODES, NODE, info, kind="merge", subresource="status"))
        endpoint = ComponentServer(world.clock)
        endpoint.routes.add("GET", "/nodes/:node/apis/v1/state", lambda _: {"simulated": True})
        assert world.cluster.server is not None
        world.cluster.server.component_routes.add(KOORDLET_PAGE, proxy_page(endpoint))
        with pytest.raises(SystemExit):
            await node_hooks(world.client, NODE, ADDRESS)

    in_virtual_time(tmp_path, story)
    assert capsys.readouterr().err == f"koord: the agent of {NODE} is too old: it does not serve /apis/v1/hooks\n"


def test_the_command_on_a_running_cluster() -> None:
    with koord_up("--nodes", "1", "--set", "nodes.agents=true") as running:
        config = ("--kubeconfig", str(running.kubeconfig))
        done = CliRunner().invoke(cli, ["node", "hooks", *config, "-o", "json"])
        assert done.exit_code == 0, done.stderr
        (one,) = json.loads(done.stdout)
        assert one["node"] == "node-0"
        assert one["hooks"]["hooks"][0]["name"] == "BatchResource"
        done = CliRunner().invoke(cli, ["node", "hooks", "node-0", *config])
        assert done.exit_code == 0, done.stderr
        assert done.stdout.startswith("Node     node-0\n")
