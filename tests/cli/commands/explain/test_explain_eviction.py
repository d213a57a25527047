"""`koord explain eviction`: from the Event about the pod, from koordlet's ledger, and from events of other programs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, EVENTS_EVENTS
from koord.cli.commands.evictions import EvictionExplanation, explain_eviction, print_eviction_explanation
from koord.cli.printing import make_console
from koord.kube.transport.api_error import unwrap
from koord.policy.eviction import EvictionRecord
from tests.koordlet.agent_fixture import GI, NODE, AgentFixture, ask, in_virtual_time

ORDER = {
    "resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 60}
}


def printed(found: EvictionExplanation) -> str:
    out = make_console()
    with out.capture() as captured:
        print_eviction_explanation(out, found)
    return captured.get()


def fields(text: str) -> dict[str, str]:
    lines = (line.strip().split(":", 1) for line in text.splitlines() if line.startswith("  "))
    return {title: value.strip() for title, value in lines}


def test_a_death_is_explained_from_its_event_as_from_the_ledger(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order(ORDER)
        await world.run_pod("victim", "BE", memory_bytes=3 * GI)
        agent = world.agent(frozenset({"BEMemoryEvict"}))
        await agent.start()
        await world.clock.sleep(30)
        world.used_kb = 12 * 1024 * 1024
        await world.clock.sleep(20)
        # No koordlet pod runs in this cluster, so only the event is left: it carries the whole record.
        found = await explain_eviction(world.client, "default", "victim", "koordinator-system", 9316)
        assert list(found.records) == agent.ledger.records()
        assert "no pod of koord-scheduler runs in namespace koordinator-system" in found.silent
        # The same from the agent's own words.
        told = json.loads(await ask(agent, "/apis/v1/evictions"))["evictions"]
        assert msgspec.convert(told, list[EvictionRecord]) == agent.ledger.records()
        text = printed(found)
        assert f"koordlet on {NODE}: evicted default/victim" in text
        lines = fields(text)
        assert lines["rule"] == "BEMemoryEvict"
        assert lines["reason"] == "trigger by koordlet feature BEMemoryEvict, kill pod: victim"
        assert lines["threshold"] == "70%, down to 60%"
        assert lines["measured"] == "node uses 12884901888 of 17179869184 bytes"
        assert lines["to free"] == "memory 2576980377"
        assert lines["this pod frees"] == "memory 3221225472"
        assert lines["rank"] == "1 of 1 that the rule may evict"
        await agent.stop()

    in_virtual_time(tmp_path, story)


def test_an_event_without_a_record_tells_what_it_can(tmp_path: Path) -> None:
    """Koordinator's own agent and kube-scheduler annotate nothing."""

    async def story(world: AgentFixture) -> None:
        await world.furnish()
        about = {"kind": "Pod", "namespace": "default", "name": "victim", "uid": "u"}
        theirs = {
            "metadata": {"name": "victim.1", "namespace": "default"},
            "involvedObject": about,
            "source": {"component": "koordlet-qosManager", "host": "n7"},
            "reason": "evictPodSuccess",
            "message": "evict Pod:default/victim, reason: evicted, message: too full",
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-01T00:00:01Z",
            "count": 1,
            "type": "Warning",
        }
        unwrap(await world.client.create(CORE_EVENTS, theirs))
        other = {
            "metadata": {
                "name": "victim.2",
                "namespace": "default",
                "annotations": {"koordinator.sh/eviction-record": "{"},
            },
            "regarding": about,
            "eventTime": "2026-01-01T00:00:02.000000Z",
            "reportingController": "default-scheduler",
            "reportingInstance": "one",
            "action": "Preempting",
            "reason": "Preempted",
            "note": "Preempted by pod x on node n7",
            "type": "Normal",
        }
        unwrap(await world.client.create(EVENTS_EVENTS, other))
        unrelated = {**other, "metadata": {"name": "victim.3", "namespace": "default"}, "reason": "Killing"}
        unwrap(await world.client.create(EVENTS_EVENTS, unrelated))
        found = await explain_eviction(world.client, "default", "victim", "koordinator-system", 9316)
        assert [(one.actor, one.rule, one.outcome, one.node, one.time) for one in found.records] == [
            ("default-scheduler", "Preempted", "evicted", "", "2026-01-01T00:00:02Z"),
            ("koordlet-qosManager", "evictPodSuccess", "evicted", "n7", "2026-01-01T00:00:01Z"),
        ]
        assert "message: too full" in printed(found)

    in_virtual_time(tmp_path, story)


def test_a_pod_that_nobody_evicted_has_no_story(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.run_pod("alive", "BE")
        found = await explain_eviction(world.client, "default", "alive", "koordinator-system", 9316)
        assert found.records == ()

    in_virtual_time(tmp_path, story)
