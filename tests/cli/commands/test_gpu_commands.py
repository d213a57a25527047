"""`koord gpu` and `koord top gpus`: the condition of a pod, the report of all pods, and what agents tell of cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli.cluster_access import KoordletAddress
from koord.cli.commands import gpu
from koord.cli.commands.top import NodeGpus, node_gpus, print_gpus
from koord.cli.main import cli
from koord.gpu import probe
from koord.gpu.isolation import NO_LIMITS, GpuLimits
from koord.koordlet.gpu_shares import GpuCardStatus, GpuShareStatus, GpusStatus, MpsDaemonStatus
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock
from koord.telemetry.component_server import ComponentServer
from tests.cli.cluster_with_agents import with_agents
from tests.cli.koordlet_proxy import create_namespace, create_node, proxy_client, run_koordlet_pod
from tests.koordlet.agent_fixture import NODE, AgentFixture, in_virtual_time

GIB = 1 << 30
SHARE = GpuLimits(provider="MPS", memory_bytes=8 * GIB, core_percent=50)
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi", "koordinator.sh/gpu-memory-ratio": "50"}
ALLOCATED = json.dumps({"gpu": [{"minor": 1, "resources": HALF}]})


def gpu_pod(name: str, provider: str = "MPS", allocated: str = ALLOCATED) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"koordinator.sh/gpu-isolation-provider": provider} if provider else {},
            "annotations": {"scheduling.koordinator.sh/device-allocated": allocated} if allocated else {},
        },
        "spec": {"nodeName": "node-0", "containers": [{"name": "c", "image": "app:1"}]},
    }


def printed(draw: Any) -> list[str]:
    out = Console(width=160, highlight=False, markup=False)
    with out.capture() as captured:
        draw(out)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_condition_is_set_and_others_stay() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.create(PODS, gpu_pod("p")))
        await clock.sleep(5)
        before = unwrap(await client.get(PODS, "p", "default")).status.conditions
        for said, status in (("no driver", "Unknown"), ("still none", "Unknown")):
            report = probe.judge(SHARE, SHARE, said)
            await gpu.write_condition(client, "default", "p", report, "2026-01-01T00:00:00Z")
            found = {one.type: one for one in unwrap(await client.get(PODS, "p", "default")).status.conditions}
            assert found[probe.CONDITION].status == status
            assert said in found[probe.CONDITION].message
            assert set(found) == {one.type for one in before} | {probe.CONDITION}
        (told,) = await gpu.pod_reports(client)
        assert (told.verified, told.memory_bytes, told.core_percent) == ("Unknown", 8 * GIB, 50)

    with_agents(story)


def test_every_pod_with_a_card_is_reported() -> None:
    whole = json.dumps({"gpu": [{"minor": 0, "resources": HALF | {"koordinator.sh/gpu-memory-ratio": "100"}}]})

    async def story(client: Client, clock: LoopClock) -> None:
        pods = (gpu_pod("a"), gpu_pod("b", ""), gpu_pod("c", "", whole), gpu_pod("d", "", "{"), gpu_pod("e", "", ""))
        for pod in pods:
            unwrap(await client.create(PODS, pod))
        found = await gpu.pod_reports(client, "default", "node-0")
        assert [one.pod for one in found] == ["a", "b", "c", "d"]
        lines = printed(lambda out: gpu.print_reports(out, found))
        assert "not measured" in lines[1]
        assert "nobody enforces this share" in lines[2]
        assert "whole card" in lines[3]
        assert "device-allocated" in lines[4]
        assert await gpu.pod_reports(client, "other") == []

    with_agents(story)
    assert printed(lambda out: gpu.print_reports(out, [])) == ["No pods with GPUs."]


@pytest.mark.parametrize(
    ("memory", "cores", "environ", "wanted"),
    [
        pytest.param("10Gi", 30, {}, GpuLimits(memory_bytes=10 * GIB, core_percent=30), id="options"),
        pytest.param("", 30, {"KOORD_DEVICE_ALLOCATED": ALLOCATED}, GpuLimits(core_percent=30), id="options-win"),
        pytest.param("", None, {}, NO_LIMITS, id="nothing"),
    ],
)
def test_what_was_asked(memory: str, cores: int | None, environ: dict[str, str], wanted: GpuLimits) -> None:
    assert gpu.asked_limits(memory, cores, environ) == wanted


def test_what_was_asked_by_the_annotation() -> None:
    found = gpu.asked_limits("", None, {"KOORD_DEVICE_ALLOCATED": ALLOCATED})
    assert isinstance(found, GpuLimits)
    assert (found.memory_bytes, found.core_percent) == (8 * GIB, 50)
    assert "--memory much" in str(gpu.asked_limits("much", None, {}))


def test_verify_without_a_card_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_DEVICE_SM_LIMIT", "KOORD_DEVICE_ALLOCATED"):
        monkeypatch.delenv(name, raising=False)
    log = tmp_path / "log"
    ran = CliRunner().invoke(cli, ["gpu", "verify", "--termination-log", str(log)])
    assert ran.exit_code == 3
    assert "limited by nobody: cannot tell" in ran.output
    assert log.read_text().startswith("cannot tell: ")
    wrong = CliRunner().invoke(cli, ["gpu", "verify", "--memory", "much"])
    assert wrong.exit_code == 2
    nameless = CliRunner().invoke(cli, ["gpu", "verify", "--condition"], env={"POD_NAME": ""})
    assert nameless.exit_code == 2
    assert "POD_NAME" in nameless.output


def test_cards_and_shares_are_printed_by_node() -> None:
    share = GpuShareStatus(
        namespace="default",
        pod="p",
        uid="u",
        container="c",
        minor=0,
        provider="MPS",
        memory_limit_bytes=8 * GIB,
        core_limit_percent=50,
        memory_used_bytes=2 * GIB,
        core_used_percent=25,
    )
    card = GpuCardStatus(minor=0, uuid="GPU-0", model="H200", total_bytes=16 * GIB, memory_used_bytes=2 * GIB)
    daemon = MpsDaemonStatus(minor=0, uuid="GPU-0", problem="it died", starts=1, servers=(), since_s=0.0)
    found = [
        NodeGpus(node="a", gpus=GpusStatus(cards=(card,), shares=(share,), daemons=(daemon,))),
        NodeGpus(node="b", problem="no koordlet runs on b"),
    ]
    lines = printed(lambda out: print_gpus(out, found))
    assert lines[1].split() == ["a", "0", "H200", "-", "2.0Gi", "16.0Gi", "MPS", "daemon:", "it", "died"]
    assert lines[2].split() == ["a", "0", "default/p/c", "MPS", "25", "%", "50", "%", "2.0Gi", "8.0Gi"]
    assert lines[3] == "b  no koordlet runs on b"
    assert "Accelerators" in printed(lambda out: print_gpus(out, []))[0]


POOL = "pools: [{name: node, count: 1, cpu: 8, memory: 32Gi, gpus: {count: 2, model: H100, memory: 16Gi}}]"


def test_simulated_nodes_tell_cards_and_what_is_granted_of_them(tmp_path: Path) -> None:
    profile = tmp_path / "nodes.yaml"
    profile.write_text(POOL)

    async def story(client: Client, clock: LoopClock) -> None:
        unwrap(await client.create(PODS, gpu_pod("p")))
        await clock.sleep(10)
        (found,) = await node_gpus(client, KoordletAddress())
        lines = [line.split() for line in printed(lambda out: print_gpus(out, [found]))[1:]]
        assert lines[0] == ["node-0", "0", "H100", "-", "-", "16.0Gi"]
        assert lines[2] == ["node-0", "1", "default/p/c", "MPS", "-", "50", "%", "-", "8.0Gi"]

    with_agents(story, profile)


def test_agents_are_asked_through_the_proxy_of_their_pods(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        agent = world.agent()
        await agent.start()
        endpoints = {"koordlet-a": agent.endpoint, "koordlet-old": ComponentServer(world.clock)}
        client = proxy_client(world.cluster, world.clock, endpoints)
        await create_namespace(client)
        await create_node(client, "old")
        await run_koordlet_pod(client, "koordlet-a", NODE)
        await run_koordlet_pod(client, "koordlet-old", "old")
        await world.clock.sleep(5)
        (old,) = await node_gpus(client, KoordletAddress())
        assert old.problem == "koordlet-old is too old: it does not serve /apis/v1/gpus"
        await agent.stop()

    in_virtual_time(tmp_path, story)
