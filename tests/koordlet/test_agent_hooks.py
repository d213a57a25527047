"""A whole agent with runtime hooks, in virtual time: what containers get, what is told, what is given back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.api.koordinator.custom_kinds import NODE_SLOS
from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, PODS
from koord.koordlet.agent import Koordlet
from koord.koordlet.agent_status import ContainersStatus, ContainerValue, HooksStatus
from koord.koordlet.nri.settings import HookServiceSettings, NriSettings
from koord.koordlet.strategies import runtime_hooks
from tests.koordlet.agent_fixture import NODE, AgentFixture, ask, expect_ok, in_virtual_time
from tests.koordlet.hook_calls.calls_fixture import EXTENDED, MI, extended

LIMIT = "memory.limit_in_bytes"


def values(world: AgentFixture, group: str) -> tuple[str, str, str]:
    tree = world.machine.tree
    found = tuple(str(tree.value(knob, group)) for knob in ("cpu.shares", "cpu.cfs_quota_us", LIMIT))
    return found[0], found[1], found[2]


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


async def annotate(world: AgentFixture, name: str, annotations: dict[str, str | None]) -> None:
    body = {"metadata": {"annotations": annotations}}
    await expect_ok(world.client.patch(PODS, name, body, "default", kind="merge"))


async def containers(agent: Koordlet, name: str) -> list[Any]:
    body = await ask(agent, f"/apis/v1/containers?namespace=default&name={name}")
    return list(msgspec.json.decode(body, type=ContainersStatus).containers)


BATCH = ("500", "50000", str(64 * MI))  # a weight of 20 reads as 500 shares
NOTHING = ("2", "-1", "-1")


def test_a_pod_gets_keeps_and_loses_its_values(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order({})
        agent = world.agent()
        await agent.start()
        group = await world.run_pod("job", "BE")
        for one in (group, f"{group}/job"):
            world.kernel.write(f"{world.machine.tree.group_path('', one)}/cpu.weight", "1")
        await annotate(world, "job", dict(extended()))
        await world.clock.sleep(5)
        assert [values(world, one) for one in (group, f"{group}/job")] == [BATCH, BATCH]
        rows = await containers(agent, "job")
        box = next(row for row in rows if row.level == "container")
        by_knob: dict[str, ContainerValue] = {one.knob: one for one in box.values}
        quota = by_knob["cpu.cfs_quota_us"]
        assert (quota.wanted, quota.kernel, quota.decided_by) == ("50000", "50000", "BatchResource")
        assert "batch-cpu limit 500" in quota.why
        assert quota.written_at
        assert by_knob["cpuset.cpus"].decided_by == "CPUSuppresss"
        told = msgspec.json.decode(await ask(agent, "/apis/v1/hooks"), type=HooksStatus)
        hooks = {one.name: one for one in told.hooks}
        assert (hooks["BatchResource"].pods, hooks["BatchResource"].containers) == (1, 1)
        assert hooks["BatchResource"].last_applied
        metrics = (await ask(agent, "/metrics")).decode()
        assert "koordlet_runtime_hook_reconciler_invoked_duration_milliseconds_count" in metrics
        assert hooks["gpu env inject"].why_off == "feature gate GPUEnvInject is off"
        assert {one.name: one.connected for one in told.connections} == {"nri": False, "proxy": False}
        await annotate(world, "job", {EXTENDED: None})
        await world.clock.sleep(5)
        assert [values(world, one) for one in (group, f"{group}/job")] == [NOTHING, NOTHING]
        await agent.stop()

    in_virtual_time(tmp_path, story)


def test_a_problem_is_an_event_of_the_pod(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order({})
        agent = world.agent()
        await agent.start()
        await world.run_pod("job", "BE")
        await annotate(world, "job", {EXTENDED: "{"})
        await world.clock.sleep(30)
        events = await expect_ok(world.client.list(EVENTS_EVENTS, "default"))
        found = [one for one in events.items if one.reason == "RuntimeHookFailed"]
        assert len(found) == 1
        rows = await containers(agent, "job")
        assert any("BatchResource" in problem for row in rows for problem in row.problems)
        told = msgspec.json.decode(await ask(agent, "/apis/v1/hooks"), type=HooksStatus)
        batch = next(one for one in told.hooks if one.name == "BatchResource")
        assert batch.failures == 1
        assert "default/job" in batch.last_failure
        await agent.stop()

    in_virtual_time(tmp_path, story)


def test_safe_mode_tells_what_it_would_write(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order({})
        agent = world.agent(safe_mode=True)
        await agent.start()
        group = await world.run_pod("job", "BE")
        await annotate(world, "job", dict(extended()))
        before = values(world, f"{group}/job")
        await world.clock.sleep(15)
        assert values(world, f"{group}/job") == before
        rows = await containers(agent, "job")
        box = next(row for row in rows if row.level == "container")
        assert {one.problem for one in box.values} == {"safe mode: nothing is written"}
        assert json.loads(await ask(agent, "/apis/v1/hooks"))["safeMode"] is True
        await agent.stop()

    in_virtual_time(tmp_path, story)


@pytest.mark.parametrize(
    ("server", "folder", "state"),
    [
        ("off", True, "--runtime-hooks-server is off"),
        ("auto", False, "so no runtime proxy is expected"),
    ],
)
def test_the_ways_in_say_why_they_are_not_there(tmp_path: Path, server: str, folder: bool, state: str) -> None:
    registrations = tmp_path / "hookserver.d"
    if folder:
        registrations.mkdir()
    nri = NriSettings(socket_path=str(tmp_path / "nri.sock"), lock_path=str(tmp_path / "nri.lock"))

    async def story(world: AgentFixture) -> None:
        await world.furnish()
        settings = HookServiceSettings(
            nri=nri, server="off" if server == "off" else "auto", registrations=str(registrations)
        )
        agent = world.agent(hooks=settings)
        await agent.start()
        await world.clock.sleep(15)
        told = msgspec.json.decode(await ask(agent, "/apis/v1/hooks"), type=HooksStatus)
        ways = {one.name: one for one in told.connections}
        assert state in ways["proxy"].state
        assert "nri.sock" in ways["nri"].state
        assert int(ways["nri"].details["attempts"]) >= 1
        await agent.stop()

    in_virtual_time(tmp_path, story)


async def lines(agent: Koordlet) -> list[str]:
    return (await ask(agent, "/metrics")).decode().splitlines()


def test_oom_scores_follow_their_annotation(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order({})
        agent = world.agent(frozenset({"OOMScoreAdj"}))
        await agent.start()
        group = await world.run_pod("job", "BE")
        folder = Path(world.machine.tree.group_path("", f"{group}/job"))
        (folder / "cgroup.procs").write_text("4242\n")
        score = world.machine.put("proc/4242/oom_score_adj", "1000\n")
        await annotate(world, "job", {"koordinator.sh/oom-score-adj": "500"})
        await world.clock.sleep(15)
        assert score.read_text().strip() == "500"
        (shown,) = [line for line in await lines(agent) if line.startswith("koordlet_container_oom_score_adj{")]
        assert shown.endswith(" 500")
        assert 'container_name="main"' in shown
        assert 'pod_name="job"' in shown
        await annotate(world, "job", {"koordinator.sh/oom-score-adj": None})
        await world.clock.sleep(15)
        assert score.read_text().strip() == "1000"
        assert not [line for line in await lines(agent) if line.startswith("koordlet_container_oom_score_adj{")]
        await agent.stop()

    in_virtual_time(tmp_path, story)


def test_terways_files_are_there_while_its_policy_is(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        policy = {"policies": {"netQOSPolicy": "terway-qos"}}
        await world.order({"resourceQOSStrategy": policy, "systemStrategy": {"totalNetworkBandwidth": "10G"}})
        agent = world.agent(frozenset({"TerwayQoS"}))
        await agent.start()
        await world.run_pod("job", "BE")
        await world.clock.sleep(15)
        files = Path(world.kernel.paths.terway)
        assert names_in(files) == ["global_bps_config", "pod.json"]
        assert "job" in (files / "pod.json").read_text()
        await world.order({})
        await world.clock.sleep(15)
        assert names_in(files) == []
        await agent.stop()

    in_virtual_time(tmp_path, story)


TERWAY = {
    "resourceQOSStrategy": {"policies": {"netQOSPolicy": "terway-qos"}},
    "systemStrategy": {"totalNetworkBandwidth": "10G"},
}


@pytest.mark.parametrize("hooks_off", [False, True])
def test_terways_files_go_with_its_gate(tmp_path: Path, hooks_off: bool) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order(TERWAY)
        first = world.agent(frozenset({"TerwayQoS"}))
        await first.start()
        await world.clock.sleep(15)
        files = Path(world.kernel.paths.terway)
        assert names_in(files) == ["global_bps_config", "pod.json"]
        await first.stop()
        assert names_in(files) == ["global_bps_config", "pod.json"], "an agent that ends leaves what it holds"
        second = world.agent(without=frozenset(runtime_hooks.GATES) if hooks_off else frozenset())
        await second.start()
        await world.clock.sleep(15)
        assert names_in(files) == []
        await second.stop()

    in_virtual_time(tmp_path, story)


def test_terways_files_go_with_a_nodeslo_that_was_deleted_while_no_agent_ran(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order(TERWAY)
        gates = frozenset({"TerwayQoS"})
        first = world.agent(gates)
        await first.start()
        await world.clock.sleep(15)
        await first.stop()
        await expect_ok(world.client.delete(NODE_SLOS, NODE))
        second = world.agent(gates)
        await second.start()
        await world.clock.sleep(30)
        assert names_in(Path(world.kernel.paths.terway)) == []
        await second.stop()

    in_virtual_time(tmp_path, story)
