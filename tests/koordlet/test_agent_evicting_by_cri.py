"""The whole agent evicts by CRI: a runtime stops the victim, and the eviction is recorded as one by the API is.

gRPC has a clock of its own, so this runs in real time.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, POD_DISRUPTION_BUDGETS, PODS
from koord.koordlet.agent import Koordlet
from koord.koordlet.collect.collector import CollectSettings
from koord.koordlet.settings import CriEvictionSettings
from koord.koordlet.strategies.strategy import StrategySettings
from koord.policy.eviction import parse_record
from koord.telemetry.clock import LoopClock
from koord.wire.cri import CriContainerState
from tests.koordlet.agent_fixture import GI, AgentFixture, ask, expect_ok
from tests.koordlet.cri_pod import add_container
from tests.runtimeproxy.fake_runtime import FakeRuntime

INTERVAL_S = 0.2
MEMORY_ORDER = {
    "resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 60}
}


@pytest.fixture
def socket() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="cri-"))
    yield str(folder / "cri.sock")
    shutil.rmtree(folder)


async def furnish(world: AgentFixture, runtime: FakeRuntime) -> None:
    """Make two pods, of which a budget protects the larger, on a node that is short of memory."""
    await world.furnish()
    await world.order(MEMORY_ORDER)
    for name, used in (("small", GI), ("large", 3 * GI)):
        await world.run_pod(name, "BE", memory_bytes=used, labels={"app": name})
        pod = await expect_ok(world.client.get(PODS, name, "default"))
        add_container(runtime, name, pod.metadata.uid, "main")
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "large"}}}
    body = {"metadata": {"name": "large", "namespace": "default"}, "spec": budget}
    await expect_ok(world.client.create(POD_DISRUPTION_BUDGETS, body))
    world.used_kb = 12 * 1024 * 1024


def build_agent(world: AgentFixture, socket: str) -> Koordlet:
    return world.agent(
        frozenset({"BEMemoryEvict"}),
        cri_eviction=CriEvictionSettings(endpoints=(socket,), timeout_s=30.0),
        collect=CollectSettings(interval_s=INTERVAL_S),
        strategies=StrategySettings(collect_interval_s=INTERVAL_S, memory_evict_cooldown_s=1.0),
    )


async def entries(agent: Koordlet) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await ask(agent, "/apis/v1/evictions"))["evictions"]
    return found


async def until(holds: Callable[[], Any], world: AgentFixture) -> Any:
    async with asyncio.timeout(60):
        while not (found := await holds()):
            await world.clock.sleep(INTERVAL_S)
    return found


async def event_of(world: AgentFixture, name: str) -> Any:
    events = await expect_ok(world.client.list(EVENTS_EVENTS, "default"))
    return next((event for event in events.items if event.regarding.name == name), None)


async def counted(agent: Koordlet) -> list[str]:
    text = (await ask(agent, "/metrics")).decode()
    return re.findall(r'^koordlet_pod_eviction\{.*reason="evicted".*\} (\S+)$', text, re.MULTILINE)


async def test_the_runtime_stops_the_victim_whatever_its_budget_says(tmp_path: Path, socket: str) -> None:
    runtime = FakeRuntime()
    await runtime.start(socket)
    async with AgentFixture(tmp_path, LoopClock(asyncio.get_running_loop())) as world:
        await furnish(world, runtime)
        agent = build_agent(world, socket)
        await agent.start()
        (record,) = await until(lambda: entries(agent), world)
        assert (record["name"], record["outcome"], record["detail"]) == ("large", "evicted", "the runtime stopped main")
        assert runtime.states == {"small": CriContainerState.RUNNING, "large": CriContainerState.EXITED}
        pod = await expect_ok(world.client.get(PODS, "large", "default"))
        assert pod.metadata.deletion_timestamp is None
        event = await until(lambda: event_of(world, "large"), world)
        assert event.reason == "evictPodSuccess"
        told = parse_record(event.metadata.annotations)
        assert (told.rule, told.outcome) == ("BEMemoryEvict", "evicted")  # type: ignore[union-attr]
        assert [float(value) for value in await counted(agent)] == [1.0]
        await agent.stop()
    await runtime.stop()


async def test_a_pod_that_the_runtime_does_not_stop_is_left_alone_and_the_next_one_goes(
    tmp_path: Path, socket: str
) -> None:
    runtime = FakeRuntime()
    await runtime.start(socket)
    runtime.stop_failures["large"] = (grpc.StatusCode.UNKNOWN, "the task hangs")
    async with AgentFixture(tmp_path, LoopClock(asyncio.get_running_loop())) as world:
        await furnish(world, runtime)
        agent = build_agent(world, socket)
        await agent.start()

        async def both() -> dict[str, tuple[str, int]] | None:
            found = {one["name"]: (one["outcome"], one.get("count", 1)) for one in await entries(agent)}
            return found if len(found) == 2 else None

        assert await until(both, world) == {"large": ("failed", 1), "small": ("evicted", 1)}
        event = await until(lambda: event_of(world, "large"), world)
        assert event.reason == "evictPodFail"
        assert "error container main: StopContainer: UNKNOWN: the task hangs" in event.note
        assert [float(value) for value in await counted(agent)] == [1.0]
        await agent.stop()
    await runtime.stop()
