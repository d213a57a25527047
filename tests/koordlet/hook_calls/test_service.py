"""The service of hooks in an agent: calls of the runtime that fail as a whole are counted and told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS
from koord.koordlet.agent import Koordlet
from koord.koordlet.agent_status import HookConnection, HooksStatus
from koord.koordlet.nri.settings import FailurePolicy, HookServiceSettings, NriSettings
from koord.wire.nri_messages import (
    CreateContainerRequest,
    LinuxPodSandbox,
    NriContainer,
    NriPodSandbox,
    StateChangeEvent,
)
from tests.koordlet.agent_fixture import AgentFixture, ask, expect_ok, in_virtual_time
from tests.koordlet.hook_calls.calls_fixture import BE_LABELS, EXTENDED, extended
from tests.koordlet.nri.fake_runtime import FakeRuntime, RuntimePeer, TtrpcError

RUN_POD_SANDBOX = 1


def sandbox(annotations: dict[str, str]) -> NriPodSandbox:
    return NriPodSandbox(
        id="s",
        name="job",
        namespace="default",
        uid="u1",
        labels=BE_LABELS,
        annotations=annotations,
        linux=LinuxPodSandbox(cgroup_parent="/kubepods/besteffort/podu1"),
    )


def creation(annotations: dict[str, str]) -> CreateContainerRequest:
    return CreateContainerRequest(pod=sandbox(annotations), container=NriContainer(id="c1", name="main"))


async def nri_of(agent: Koordlet) -> HookConnection:
    told = msgspec.json.decode(await ask(agent, "/apis/v1/hooks"), type=HooksStatus)
    return next(one for one in told.connections if one.name == "nri")


def with_runtime(tmp_path: Path, policy: FailurePolicy, story: Any) -> None:
    """Run a story with an agent and the runtime that it is connected to."""
    socket = tmp_path / "nri.sock"
    nri = NriSettings(socket_path=str(socket), lock_path=str(tmp_path / "nri.lock"), failure_policy=policy)

    async def main(world: AgentFixture) -> None:
        await world.furnish()
        await world.order({})
        runtime = FakeRuntime(socket)
        await runtime.start()
        agent = world.agent(hooks=HookServiceSettings(nri=nri, plugin_failure_policy=policy))
        await agent.start()
        peer = await runtime.peer()
        while not (await nri_of(agent)).connected:
            await world.clock.sleep(0.1)
        await story(world, agent, peer)
        await agent.stop()
        await runtime.stop()

    in_virtual_time(tmp_path, main)


def test_a_call_that_fails_as_a_whole_is_counted_and_told(tmp_path: Path) -> None:
    async def story(world: AgentFixture, agent: Koordlet, peer: RuntimePeer) -> None:
        assert "failedCalls" not in (await nri_of(agent)).details
        with pytest.raises(TtrpcError, match="PreCreateContainer of pod default/job, container main: HookFailure"):
            await peer.call("CreateContainer", creation({EXTENDED: "{"}))
        with pytest.raises(TtrpcError, match="PreRunPodSandbox of pod default/job"):
            await peer.call("StateChange", StateChangeEvent(event=RUN_POD_SANDBOX, pod=sandbox({EXTENDED: "{"})))
        assert await peer.call("CreateContainer", creation(extended())), "one that works changes nothing of that"
        told = await nri_of(agent)
        assert told.connected
        assert told.details["failedCalls"] == "2"
        last = told.details["lastFailure"]
        assert last.startswith("PreRunPodSandbox: failed: pod default/job: HookFailure: BatchResource: ")
        metrics = (await ask(agent, "/metrics")).decode()
        failed = [
            line
            for line in metrics.splitlines()
            if line.startswith("koordlet_runtime_hook_invoked_duration_milliseconds_count") and 'hook="nri"' in line
        ]
        assert [line.rpartition(" ")[2] for line in failed] == ["1", "1"]
        assert all('status="failed"' in line for line in failed), failed
        assert {stage for stage in ("PreCreateContainer", "PreRunPodSandbox") for line in failed if stage in line} == {
            "PreCreateContainer",
            "PreRunPodSandbox",
        }

    with_runtime(tmp_path, "Fail", story)


def test_with_the_policy_ignore_the_container_starts_and_the_pod_has_an_event(tmp_path: Path) -> None:
    async def story(world: AgentFixture, agent: Koordlet, peer: RuntimePeer) -> None:
        assert await peer.call("CreateContainer", creation({EXTENDED: "{"})) == b""
        assert "failedCalls" not in (await nri_of(agent)).details, "a hook failed, and the call did not"
        await world.clock.sleep(5)
        events = await expect_ok(world.client.list(EVENTS_EVENTS, "default"))
        assert [one.regarding.name for one in events.items if one.reason == "RuntimeHookFailed"] == ["job"]

    with_runtime(tmp_path, "Ignore", story)


def test_an_agent_that_stops_while_a_call_is_answered_closes_the_session(tmp_path: Path) -> None:
    async def story(world: AgentFixture, agent: Koordlet, peer: RuntimePeer) -> None:
        asked = peer.send("CreateContainer", creation(extended()), stream=1001)
        await agent.stop()
        async with asyncio.timeout(20):
            await peer.gone.wait()
        assert asked.done()

    with_runtime(tmp_path, "Ignore", story)
