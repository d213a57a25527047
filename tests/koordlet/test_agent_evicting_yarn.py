"""The whole agent beside a whole copilot and a NodeManager: YARN's containers count as best-effort work, and the one
that must leave is killed, recorded and explained as a pod is.

Processes have a clock of their own, so this runs in real time.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, PODS
from koord.cli.commands.evictions import explain_eviction, print_eviction_explanation
from koord.cli.printing import make_console
from koord.koordlet.agent import Koordlet
from koord.koordlet.collect.collector import CollectSettings
from koord.koordlet.evictor import FILE_NAME, SUCCESS, EvictionJournal
from koord.koordlet.inputs.yarn_containers import YarnCopilotSettings
from koord.koordlet.series import metric_kind
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.strategy import StrategySettings
from koord.policy.eviction import parse_record
from koord.telemetry.clock import LoopClock, WallClock
from koord.yarn.copilot.program import CopilotSettings, YarnCopilot
from tests.koordlet.agent_fixture import GI, NODE, TOP, AgentFixture, ask, expect_ok
from tests.yarn.copilot.fake_node_manager import FakeNodeManager, container_id

INTERVAL_S = 0.2
MASTER, TASK, SMALL = container_id(1), container_id(2), container_id(3)
MEMORY_ORDER = {
    "resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 60}
}


class YarnWorld:
    def __init__(self, world: AgentFixture, manager: FakeNodeManager, copilot: YarnCopilot, socket: str) -> None:
        self.world = world
        self.manager = manager
        self.copilot = copilot
        self.socket = socket

    def agent(self) -> Koordlet:
        return self.world.agent(
            frozenset({"BEMemoryEvict"}),
            yarn=YarnCopilotSettings(endpoint=self.socket, interval_s=INTERVAL_S, timeout_s=30.0, kill_timeout_s=30.0),
            collect=CollectSettings(interval_s=INTERVAL_S),
            strategies=StrategySettings(collect_interval_s=INTERVAL_S, memory_evict_cooldown_s=1.0),
        )

    async def run(self, name: str, used_bytes: int, vcores: int = 1) -> None:
        self.world.use_memory(await self.manager.run_container(name, vcores=vcores), used_bytes)


@asynccontextmanager
async def yarn_world(root: Path) -> AsyncIterator[YarnWorld]:
    folder = Path(tempfile.mkdtemp(prefix="yc-"))
    async with AgentFixture(root, LoopClock(asyncio.get_running_loop())) as world:
        manager = FakeNodeManager(world.machine, f"{TOP}/hadoop-yarn")
        await manager.start()
        settings = CopilotSettings(
            endpoint=str(folder / "s"),
            cgroup_root=world.machine.paths.cgroup,
            node_manager=("127.0.0.1", manager.port),
            kubelet=None,
            address=None,
        )
        copilot = await YarnCopilot.start(settings, WallClock())
        assert isinstance(copilot, YarnCopilot)
        await world.furnish()
        await world.order(MEMORY_ORDER)
        yield YarnWorld(world, manager, copilot, settings.endpoint)
        await copilot.stop()
        await manager.stop()
    shutil.rmtree(folder)


async def until(holds: Callable[[], Any]) -> Any:
    async with asyncio.timeout(60):
        while not (found := holds()):  # noqa: ASYNC110 - what is waited for is in files and other processes
            await asyncio.sleep(INTERVAL_S)
    return found


async def test_the_largest_container_is_killed_recorded_and_explained(tmp_path: Path) -> None:
    async with yarn_world(tmp_path) as yarn:
        await yarn.run(MASTER, 4 * GI)
        await yarn.run(TASK, 3 * GI)
        await yarn.run(SMALL, GI)
        await yarn.world.run_pod("batch", "BE", memory_bytes=2 * GI)
        agent = yarn.agent()
        await agent.start()
        await until(lambda: len(agent.yarn.containers) == 3)
        yarn.world.used_kb = 12 * 1024 * 1024
        (record,) = await until(agent.ledger.records)
        assert (record.key, record.outcome, record.third_party) == (f"yarn/{TASK}", "evicted", "hadoop-yarn")
        assert (yarn.manager.exit_code(TASK), yarn.manager.rows[TASK]["exitCode"]) == (-9, "137")
        assert yarn.manager.is_running(MASTER)
        assert yarn.manager.is_running(SMALL)
        pod = await expect_ok(yarn.world.client.get(PODS, "batch", "default"))
        assert pod.metadata.deletion_timestamp is None

        async def events() -> list[Any]:
            listed = await expect_ok(yarn.world.client.list(CORE_EVENTS, "default"))
            return [event for event in listed.items if event.involved_object.name == TASK]

        async with asyncio.timeout(60):
            while not (found := await events()):  # noqa: ASYNC110 - the server tells who asks
                await asyncio.sleep(INTERVAL_S)
        (event,) = found
        assert (event.involved_object.kind, event.reason) == ("YarnContainer", SUCCESS)
        assert parse_record(event.metadata.annotations) == record
        told = await explain_eviction(yarn.world.client, "yarn", TASK, "koordinator-system", 9316)
        assert list(told.records) == [record]
        out = make_console()
        with out.capture() as captured:
            print_eviction_explanation(out, told)
        assert f"koordlet on {NODE}: evicted yarn/{TASK}" in captured.get()
        assert "container of:   hadoop-yarn" in captured.get()
        assert "this one frees: memory 3221225472" in captured.get()
        await agent.stop()


async def test_containers_count_as_best_effort_work_and_as_a_host_application(tmp_path: Path) -> None:
    async with yarn_world(tmp_path) as yarn:
        await yarn.run(TASK, GI, vcores=2)
        yarn.world.use_memory(f"{TOP}/hadoop-yarn", GI)
        agent = yarn.agent()
        await agent.start()
        store, clock = agent.store, yarn.world.clock
        key = (metric_kind.NODE_BE, metric_kind.BE_REQUEST)
        assert await until(lambda: store.latest(key, clock.time()) == 2000)
        application = (metric_kind.APPLICATION_MEMORY, "yarn-task")
        assert await until(lambda: store.latest(application, clock.time()) == GI)
        assert agent.reporters is not None
        assert await agent.reporters.node_metric.report()
        metric = await expect_ok(yarn.world.client.get(NODE_METRICS, NODE))
        (told,) = metric.status.host_application_metric
        assert (told.name, told.priority, told.qos) == ("yarn-task", "koord-batch", "BE")
        state = json.loads(await ask(agent, "/apis/v1/state"))
        assert (state["yarnCopilot"], state["yarnContainers"]) == ("works", 1)
        await agent.stop()


async def test_a_kill_that_fails_bars_the_container_and_another_one_goes(tmp_path: Path) -> None:
    async with yarn_world(tmp_path) as yarn:
        group = await yarn.manager.run_container(TASK, joins=False)  # its processes are not where they should be
        yarn.world.use_memory(group, 3 * GI)
        await yarn.run(SMALL, GI)
        agent = yarn.agent()
        await agent.start()
        await until(lambda: len(agent.yarn.containers) == 2)
        yarn.world.used_kb = 12 * 1024 * 1024
        found = await until(lambda: len(agent.ledger) == 2 and list(agent.ledger))
        assert {one.name: one.outcome for one in found} == {TASK: "failed", SMALL: "evicted"}
        assert "has no process in" in next(one.detail for one in found if one.name == TASK)
        assert yarn.manager.is_running(TASK)
        await agent.stop()


async def test_what_an_agent_could_not_record_the_next_one_does(tmp_path: Path) -> None:
    async with yarn_world(tmp_path) as yarn:
        await yarn.run(TASK, 3 * GI)
        first = yarn.agent()
        await first.start()
        await until(lambda: first.yarn.containers)
        yarn.world.used_kb = 12 * 1024 * 1024
        (record,) = await until(first.ledger.records)
        yarn.world.used_kb = 4 * 1024 * 1024
        await first.stop()
        # As it is left by a process that was killed between the container's end and the record.
        asked = msgspec.structs.replace(record, outcome="requested", time="", detail="")
        request = EvictionRequest(reason="evicted", message=record.reason, record=asked)
        assert EvictionJournal(yarn.world.root / "state" / FILE_NAME).begin(request) is None
        again = yarn.agent()
        await again.start()
        (told,) = await until(again.ledger.records)
        assert (told.key, told.outcome) == (f"yarn/{TASK}", "evicted")
        assert told.detail == "an earlier process asked, and the container is gone"
        await again.stop()
