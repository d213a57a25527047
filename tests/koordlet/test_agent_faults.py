"""The whole agent under failures: kernels that refuse, counters and clocks that jump, dependencies that vanish.

It goes on, reports each change once, retries seldom, and never reports garbage.
"""

from __future__ import annotations

import errno
import json
import logging
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_SLOS
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.embedded.cluster import ADMIN, InProcessTransport
from koord.host.cgroup import knob
from koord.koordlet.agent import Koordlet
from koord.koordlet.collect.collector import CollectSettings
from koord.koordlet.strategies.strategy import StrategySettings
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError
from koord.values.quantity import Quantity
from tests.koordlet.agent_fixture import (
    CPUS,
    GI,
    NODE,
    TOP,
    AgentFixture,
    CuttableTransport,
    ShiftedClock,
    ask,
    expect_ok,
    in_virtual_time,
)

QUOTA_ORDER = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}
HELD = 160_000  # 65% of 4 cores, less the 1 core that the machine uses
MOST_BYTES = 16 * GI


def quota(world: AgentFixture) -> str | None:
    value = world.machine.tree.value(knob.CPU_QUOTA, TOP)
    return value if isinstance(value, str) else None


def is_held(world: AgentFixture) -> bool:
    return abs(int(quota(world) or 0) - HELD) <= 4_000


def slow(world: AgentFixture, **changes: Any) -> Koordlet:
    """Looks and decides every five seconds: long stories without long waits."""
    world.beat_s = 5.0
    collect = CollectSettings(interval_s=5.0)
    return world.agent(collect=collect, strategies=StrategySettings(collect_interval_s=5.0), **changes)


def check_sane(metric: NodeMetric) -> None:
    """Every amount is one that the machine can have."""
    status = metric.status
    assert status.node_metric is not None
    maps = [status.node_metric.node_usage, status.node_metric.system_usage]
    maps += [pod.pod_usage for pod in status.pods_metric]
    for one in (*status.node_metric.aggregated_node_usages, *status.node_metric.aggregated_system_usages):
        maps += one.usage.values()
    for found in maps:
        amounts = {name: Quantity.parse(text) for name, text in found.resources.items()}
        assert 0 <= amounts.get("cpu", Quantity.parse("0")).milli_value() <= 1000 * CPUS, found
        assert 0 <= amounts.get("memory", Quantity.parse("0")).value() <= MOST_BYTES, found


async def report(world: AgentFixture) -> NodeMetric:
    metric: NodeMetric = await expect_ok(world.client.get(NODE_METRICS, NODE))
    return metric


async def check_works(agent: Koordlet) -> None:
    doings = json.loads(await ask(agent, "/apis/v1/strategies"))["strategies"]
    assert [one["error"] for one in doings if one["error"]] == []


def said(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [one.getMessage() for one in caplog.records if word in one.getMessage()]


@pytest.mark.parametrize(
    ("code", "heals"),
    [
        pytest.param(errno.EROFS, False, id="read-only"),
        pytest.param(errno.EPERM, True, id="not-permitted"),
        pytest.param(errno.EINVAL, True, id="invalid"),
        pytest.param(errno.EBUSY, True, id="busy"),
        pytest.param(errno.ENOSPC, True, id="no-space"),
        pytest.param(errno.ENOENT, True, id="no-entry"),
        pytest.param(errno.EIO, True, id="a-broken-disk"),
    ],
)
def test_a_quota_that_the_kernel_refuses_is_asked_for_seldom_and_told_once(
    code: int, heals: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: AgentFixture) -> None:
        asked: list[float] = []

        def refuse(path: str, text: str) -> int | None:
            if not path.endswith("cpu.max"):
                return None
            asked.append(world.clock.monotonic())
            return code

        await world.furnish()
        await world.run_pod("batch", "BE")
        await world.order(QUOTA_ORDER)
        world.kernel.trouble = refuse
        agent = slow(world)
        await agent.start()
        for step in range(30):  # what is wanted changes all the time
            world.used_cores = 1.0 + 0.1 * (step % 5)
            await world.clock.sleep(20)
        assert quota(world) == "-1"
        assert 1 <= len(asked) <= 60, f"{len(asked)} times in ten minutes"
        assert 1 <= len(said(caplog, "cpu.cfs_quota_us")) <= 3, said(caplog, "cpu.cfs_quota_us")
        await check_works(agent)
        check_sane(await report(world))
        world.kernel.trouble = None
        world.used_cores = 1.0
        await world.clock.sleep(40)
        assert is_held(world) is heals
        await agent.stop()

    with caplog.at_level(logging.INFO, logger="koord"):
        in_virtual_time(tmp_path, story)


def test_counters_that_go_backwards_are_not_reported(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.run_pod("batch", "BE", memory_bytes=GI)
        await world.order(QUOTA_ORDER)
        agent = slow(world)
        await agent.start()
        chance = Random(1)
        for _ in range(12):
            await world.clock.sleep(35)
            world._ticks = max(world._ticks + chance.choice((-5000, -100, 10_000_000)), 0)  # /proc/stat starts anew
            metric = await report(world)
            if metric.status.node_metric is not None:
                check_sane(metric)
        await world.clock.sleep(65)
        metric = await report(world)
        check_sane(metric)
        assert metric.status.node_metric is not None
        assert is_held(world)
        await check_works(agent)
        await agent.stop()

    in_virtual_time(tmp_path, story)


@pytest.mark.parametrize(
    "ahead_s",
    [
        pytest.param(3600.0, id="an-hour-ahead"),
        pytest.param(-3600.0, id="an-hour-back"),
        pytest.param(-1.5, id="a-moment-back"),
        pytest.param(10 * 365 * 86_400.0, id="ten-years-ahead"),
    ],
)
def test_a_clock_that_is_set_changes_neither_what_is_held_nor_what_is_reported(ahead_s: float, tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        clock = world.clock = ShiftedClock(world.clock)
        await world.furnish()
        await world.run_pod("batch", "BE", memory_bytes=GI)
        await world.order(QUOTA_ORDER)
        agent = slow(world)
        await agent.start()
        await world.clock.sleep(130)
        assert is_held(world)
        before = (await report(world)).status.update_time
        clock.ahead_s = ahead_s
        for _ in range(10):
            await world.clock.sleep(3)
            assert is_held(world)
        await world.clock.sleep(130)
        metric = await report(world)
        check_sane(metric)
        assert metric.status.node_metric is not None
        assert metric.status.node_metric.node_usage.resources["cpu"] in ("1", "1000m", "999m", "1001m")
        assert metric.status.update_time != before, "reports go on"
        assert is_held(world)
        await check_works(agent)
        await agent.stop()

    in_virtual_time(tmp_path, story)


class Chaos:
    """Everything that an agent depends on, each of which can be taken away and given back."""

    def __init__(self, world: AgentFixture, line: CuttableTransport) -> None:
        self.world = world
        self.line = line
        self.gone: set[str] = set()

    async def take(self, what: str) -> None:
        self.gone.add(what)
        world = self.world
        if what == "api server":
            self.line.cut = True
        elif what == "order":
            await world.client.delete(NODE_SLOS, NODE)
        elif what == "report":
            await world.client.delete(NODE_METRICS, NODE)
        elif what == "node":
            await world.client.delete(NODES, NODE)
        elif what == "cgroups":
            (world.root / "sys/fs/cgroup/kubepods").rename(world.root / "away")
        elif what == "stat":
            (world.root / "proc/stat").unlink(missing_ok=True)
        elif what == "files":
            world.kernel.trouble = lambda path, text: errno.EBUSY

    async def give(self, what: str) -> None:
        self.gone.discard(what)
        world = self.world
        if what == "api server":
            self.line.cut = False
        elif what == "order":
            await world.order(QUOTA_ORDER)
        elif what == "report":
            await expect_ok(world.client.create(NODE_METRICS, {"metadata": {"name": NODE}, "spec": {}}))
        elif what == "node":
            amounts = {"cpu": str(CPUS), "memory": "16Gi", "pods": "110"}
            await expect_ok(world.client.create(NODES, {"metadata": {"name": NODE}}))
            status = {"status": {"capacity": amounts, "allocatable": amounts}}
            await expect_ok(world.client.patch(NODES, NODE, status, kind="merge", subresource="status"))
        elif what == "cgroups":
            (world.root / "away").rename(world.root / "sys/fs/cgroup/kubepods")
        elif what == "files":
            world.kernel.trouble = None


THINGS = ("api server", "order", "report", "node", "cgroups", "stat", "files")


@pytest.mark.parametrize("seed", range(4), ids=["one", "two", "three", "four"])
def test_whatever_vanishes_and_comes_back_it_ends_where_it_was(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order(QUOTA_ORDER)
        group = await world.run_pod("batch", "BE", memory_bytes=GI)
        assert world.cluster.server is not None
        line = CuttableTransport(InProcessTransport(world.cluster.server, ADMIN))
        client = Client(line, clock=world.clock, qps=0, burst=0)
        informers = InformerFactory(client, world.clock, seed=seed)
        agent = slow(world, client=client, informers=informers)
        informers.start()
        await agent.start()
        await world.clock.sleep(30)
        assert is_held(world)
        chaos, chance = Chaos(world, line), Random(seed)
        for _ in range(25):
            what = chance.choice(THINGS)
            await (chaos.give(what) if what in chaos.gone else chaos.take(what))
            await world.clock.sleep(chance.uniform(0.1, 40))
            metric = await client_report(world)
            if metric is not None and metric.status.node_metric is not None:
                check_sane(metric)
        for what in sorted(chaos.gone):
            await chaos.give(what)
        world.machine.remove(group)
        await expect_ok(world.client.delete(PODS, "batch", "default", grace_seconds=0))
        await world.run_pod("after", "BE", memory_bytes=GI)
        await world.clock.sleep(200)
        assert is_held(world)
        check_sane(await report(world))
        assert [one.name for one in (await report(world)).status.pods_metric] == ["after"]
        await check_works(agent)
        await agent.stop()
        await informers.stop()

    with caplog.at_level(logging.INFO, logger="koord.koordlet"):
        in_virtual_time(tmp_path, story)
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
    most = Counter(one.getMessage() for one in caplog.records if one.name.startswith("koord.koordlet")).most_common(1)
    assert most[0][1] <= 25, most  # as often as something changed


async def client_report(world: AgentFixture) -> NodeMetric | None:
    found = await world.client.get(NODE_METRICS, NODE)
    return None if isinstance(found, ApiError) else found


def test_a_node_that_is_seldom_sampled_is_reported_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: AgentFixture) -> None:
        world.beat_s = 60.0
        await world.furnish()
        collect = CollectSettings(interval_s=60.0)
        agent = world.agent(collect=collect, strategies=StrategySettings(collect_interval_s=60.0))
        await agent.start()
        await world.clock.sleep(20 * 60)
        metric = await report(world)
        check_sane(metric)
        await agent.stop()

    with caplog.at_level(logging.INFO, logger="koord.koordlet"):
        in_virtual_time(tmp_path, story)
    assert len(said(caplog, "the NodeMetric is")) <= 2
