"""`koord explain eviction`: from the agent's ledger, and from events where the agent cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from koord.cli.commands.explain.eviction import EvictionExplanation, explain_eviction, print_eviction_explanation
from koord.cli.printing import make_console
from koord.koordlet.eviction.ledger import EvictionEntry
from tests.koordlet.agent_fixture import GI, NODE, AgentFixture, ask, in_virtual_time

ORDER = {
    "resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 60}
}


def printed(found: EvictionExplanation) -> str:
    out = make_console()
    with out.capture() as captured:
        print_eviction_explanation(out, found)
    return captured.get()


def test_a_death_is_explained_from_the_ledger_and_from_its_event(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order(ORDER)
        await world.run_pod("victim", "BE", memory_bytes=3 * GI)
        agent = world.agent(frozenset({"BEMemoryEvict"}))
        await agent.start()
        await world.clock.sleep(30)
        world.used_kb = 12 * 1024 * 1024
        await world.clock.sleep(20)
        # No koordlet pod runs in this cluster, so only the event is left.
        found = await explain_eviction(world.client, "default", "victim", "koordinator-system", 9316)
        assert found.entries == ()
        text = printed(found)
        assert f"koordlet on {NODE}, from an event: evictPodSuccess" in text
        assert "trigger by koordlet feature BEMemoryEvict" in text
        # The same from the agent's own words.
        entries = msgspec.convert(json.loads(await ask(agent, "/apis/v1/evictions"))["evictions"], list[EvictionEntry])
        assert entries == agent.ledger.entries()
        text = printed(EvictionExplanation(namespace="default", name="victim", entries=tuple(entries)))
        lines = dict(line.strip().split(":", 1) for line in text.splitlines() if line.startswith("  "))
        assert lines["rule"].strip() == "BEMemoryEvict"
        assert lines["threshold"].strip() == "70%, down to 60%"
        assert lines["measured"].strip() == "node uses 12884901888 of 17179869184 bytes"
        assert lines["to free"].strip() == "memory 2576980377"
        assert lines["this pod frees"].strip() == "memory 3221225472"
        await agent.stop()

    in_virtual_time(tmp_path, story)


def test_a_pod_that_nobody_evicted_has_no_story(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.run_pod("alive", "BE")
        found = await explain_eviction(world.client, "default", "alive", "koordinator-system", 9316)
        assert (found.entries, found.events) == ((), ())

    in_virtual_time(tmp_path, story)
