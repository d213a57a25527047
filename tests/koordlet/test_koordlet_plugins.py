"""Strategies, hooks and collectors of other packages run in a whole agent; those that cannot be used are named."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from koord.api.koordinator.protocol import BURSTABLE
from koord.host.cgroup import knob
from koord.koordlet.hooks import registry
from koord.koordlet.hooks.hook import ContainerContext, HookSettings, HookStage, NodeRules, PodContext
from koord.koordlet.plugin import COLLECTOR_GROUP, HOOK_GROUP, STRATEGY_GROUP, KoordletPlugins, load_koordlet_plugins
from koord.koordlet.settings import KoordletSettings
from koord.koordlet.strategies.registry import StrategyEntry
from koord.koordlet.strategies.strategy import StrategyPlan
from tests.koordlet.agent_fixture import AgentFixture, in_virtual_time
from tests.plugin_page import Offer, example


def offered(**groups: Iterable[Offer]) -> tuple[KoordletPlugins, tuple[str, ...]]:
    by_group = {
        STRATEGY_GROUP: groups.get("strategies", ()),
        HOOK_GROUP: groups.get("hooks", ()),
        COLLECTOR_GROUP: groups.get("collectors", ()),
    }
    return load_koordlet_plugins(lambda group: by_group[group])


def page_plugins() -> KoordletPlugins:
    plugins, warnings = offered(
        strategies=[Offer("Quiet", example("koordlet-strategy")["QUIET"])],
        hooks=[Offer("PoolEnv", example("koordlet-hook")["POOL_ENV"])],
        collectors=[Offer("pod-count", example("koordlet-collector")["PodCount"])],
    )
    assert not warnings
    return plugins


def test_the_strategy_and_the_collector_of_the_page_run_in_the_agent(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        group = await world.run_pod("quiet", BURSTABLE, labels={"example.com/quiet": "true"})
        agent = world.agent(plugins=page_plugins())
        await agent.start()
        await world.clock.sleep(10)
        assert agent.control_loop is not None
        assert world.machine.text(knob.CPU_SHARES, group) == "1", "cgroup v2 has weights"
        assert agent.store.latest(("example_pods",), world.clock.time()) == 1.0
        assert agent.control_loop.collectors.statuses["pod-count"].problem == ""
        await agent.stop()

    in_virtual_time(tmp_path, story)


def test_the_hook_of_the_page_decides_about_a_container() -> None:
    rules = NodeRules(settings=HookSettings(plugins=page_plugins().hooks))
    pod = PodContext(uid="u", labels={"example.com/pool": "gold"})
    container = ContainerContext(pod=pod, name="c")
    decision = registry.decide_container(container, rules, HookStage.PRE_CREATE_CONTAINER)
    assert (dict(decision.env), decision.applied) == ({"POOL": "gold"}, ("PoolEnv",))
    assert not registry.decide_container(container, rules, HookStage.RECONCILE).applied, "only at its stages"


def test_the_first_call_of_a_runtime_has_the_hooks_of_other_packages() -> None:
    settings = KoordletSettings(node="n", gates=frozenset(), plugins=page_plugins())
    assert [one.name for one in settings.hook_settings.plugins] == ["PoolEnv"]


def test_the_hook_of_the_page_is_in_the_status(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        agent = world.agent(plugins=page_plugins())
        await agent.start()
        await world.clock.sleep(10)
        assert agent.hooks is not None
        found = {one.name: one for one in agent.hooks.status().hooks}
        assert found["PoolEnv"].enabled, "it has no gate"
        await agent.stop()

    in_virtual_time(tmp_path, story)


class Fails:
    name = "fails"
    period_s = 1.0

    def sample(self, now_s: float, pods: Any, store: Any) -> None:
        raise RuntimeError("no sensor")


def test_a_collector_that_raises_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    async def story(world: AgentFixture) -> None:
        agent = world.agent(plugins=KoordletPlugins(collectors=(Fails(), *page_plugins().collectors)))
        await agent.start()
        await world.clock.sleep(10)
        assert agent.control_loop is not None
        assert agent.control_loop.collectors.statuses["fails"].problem == "RuntimeError: no sensor"
        assert agent.store.latest(("example_pods",), world.clock.time()) == 0.0
        await agent.stop()

    in_virtual_time(tmp_path, story)


def entry(name: str, *files: str) -> StrategyEntry:
    return StrategyEntry(
        name=name, gates=(), observe=lambda inputs: None, decide=lambda view: StrategyPlan(), files=files
    )


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        (Offer("X", broken="gone"), "plugin X of a_package:X cannot be used: ImportError: gone"),
        (Offer("X", entry("Y")), "plugin X is not used: it is offered under another name than its own, which is Y"),
        (Offer("X", entry("X", knob.CPU_BURST)), "plugin X is not used: cpu.cfs_burst_us is written by CPUBurst"),
        (Offer("X", 7), "plugin X of a_package:X cannot be used: it is a int, and must be a StrategyEntry"),
    ],
)
def test_a_strategy_that_cannot_be_used_is_named_and_left_out(offer: Offer, why: str) -> None:
    plugins, warnings = offered(strategies=[offer])
    assert (plugins, warnings) == (KoordletPlugins(), (why,))


def test_a_collector_must_have_what_is_called() -> None:
    plugins, warnings = offered(collectors=[Offer("X", dict)])
    assert not plugins.collectors
    assert warnings == ("plugin X is not used: it has no name, period_s and sample(now_s, pods, store)",)
