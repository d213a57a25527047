"""The whole agent runs for hours while pods come and go: its memory is bounded by what exists, not by what existed."""

from __future__ import annotations

import gc
import itertools
import sys
from pathlib import Path

from koord.api.kubernetes.builtin_kinds import PODS
from koord.koordlet.agent import Koordlet
from koord.koordlet.collect.collector import CollectSettings
from koord.koordlet.strategies.strategy import StrategySettings
from tests.koordlet.agent_fixture import GI, AgentFixture, expect_ok, in_virtual_time

PLACES = 24
STEP_S = 60.0
ORDER = {
    "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cpuset"},
    "cpuBurstStrategy": {"policy": "auto"},
    "resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}},
}


def kept(agent: Koordlet) -> dict[str, int]:
    """Everything that grows with pods."""
    control_loop, reports = agent.control_loop, agent.reporters
    assert control_loop is not None
    assert reports is not None
    memory = control_loop.executor._state
    registries = (agent.metrics.internal, agent.metrics.external)
    return {
        "series": len(agent.store),
        "files": len(memory.entries) + len(memory.owners) + len(memory.refusals),
        "journal": len(control_loop.executor._journal),
        "models": len(reports.predictor._models),
        "metrics": sum(len(family) for registry in registries for family in registry.families()),
        "evictions": len(agent.ledger),
    }


def test_hours_of_pods_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        world.beat_s = STEP_S
        await world.furnish()
        await world.order(ORDER)
        groups: dict[str, str] = {}
        agent = world.agent(
            frozenset({"CgroupReconcile", "InterferenceDetection"}),
            collect=CollectSettings(interval_s=STEP_S, psi_s=STEP_S, psi=True),
            strategies=StrategySettings(collect_interval_s=STEP_S),
        )
        await agent.start()
        sizes: list[dict[str, int]] = []
        blocks: list[int] = []
        for step in range(150):  # two and a half hours, two pods replaced a minute
            for number in (2 * step, 2 * step + 1):
                name, old = f"p{number}", f"p{number - PLACES}"
                if old in groups:
                    world.machine.remove(groups.pop(old))
                    await expect_ok(world.client.delete(PODS, old, "default", grace_seconds=0))
                groups[name] = await world.run_pod(name, "BE" if number % 2 else "LS", memory_bytes=GI // 8)
            await world.clock.sleep(STEP_S)
            if step % 30 == 29:
                gc.collect()
                sizes.append(kept(agent))
                blocks.append(sys.getallocatedblocks())
        assert sizes[0]["series"] > PLACES * 4
        for earlier, later in itertools.pairwise(sizes[2:]):
            assert {name: later[name] - earlier[name] for name in later if later[name] > 1.1 * earlier[name]} == {}
        assert max(blocks[3:]) < 1.03 * blocks[2], blocks
        await agent.stop()

    in_virtual_time(tmp_path, story)
