"""Quotas in a running scheduler leak nothing when bindings fail, pods vanish or another scheduler takes over."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord.api.config.component import PluginConfig, PluginSet
from koord.api.config.component import PluginEntry as Named
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration, KubeSchedulerProfile, SchedulerPlugins
from koord.api.koordinator.custom_kinds import ELASTIC_QUOTAS
from koord.api.koordinator.protocol import DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA
from koord.api.koordinator.sigs_scheduling import ElasticQuota as QuotaObject
from koord.api.kubernetes.builtin_kinds import (
    EVENTS_EVENTS,
    NAMESPACES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
)
from koord.embedded.cluster import InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import ApiRequest
from koord.policy.eviction import parse_record
from koord.scheduler.cache.pod_model import PODS as SLIM
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuotaPlugin
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.scheduler import Scheduler, StandaloneScheduler
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, RequestFate, faulty_cluster
from tests.scheduler.plugins.elastic_quota.test_quota_manager_event_order import numbers_of
from tests.scheduler.test_bind_faults import is_binding
from tests.scheduler.test_random_faults import FATES, act

LABEL = "quota.scheduling.koordinator.sh/"
Story = Callable[[FaultyCluster], Awaitable[None]]


def assembled(gates: dict[str, bool] | None = None, **args: Any) -> CompletedConfig:
    plugins = SchedulerPlugins(multi_point=PluginSet(enabled=(Named(name=ElasticQuotaPlugin.name),)))
    given = (PluginConfig(name=ElasticQuotaPlugin.name, args=args),) if args else ()
    profile = KubeSchedulerProfile(scheduler_name="default-scheduler", plugins=plugins, plugin_config=given)
    config = KubeSchedulerConfiguration(profiles=(profile,))
    made = CompletedConfig.complete(config, REGISTRY, gates)
    assert isinstance(made, CompletedConfig), made
    return made


def run(story: Story, **args: Any) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, assembled(**args)) as world:
            unwrap(await world.client.create(NAMESPACES, {"metadata": {"name": "koordinator-system"}}))
            await world.add_node("n0", cpu="8")
            await story(world)
            await check(world)

    run_virtual(main)


async def add_quota(world: FaultyCluster, name: str, least: str, most: str, **more: Any) -> QuotaObject:
    meta = {"name": name, "namespace": "default", **more}
    return unwrap(await world.client.create(ELASTIC_QUOTAS, {"metadata": meta, "spec": _spec(least, most)}))


def _spec(least: str, most: str) -> dict[str, Any]:
    return {"min": {"cpu": least}, "max": {"cpu": most}}


async def add_pod(world: FaultyCluster, name: str, quota: str, cpu: str = "1", **spec: Any) -> None:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    meta = {"name": name, "namespace": "default", "labels": {f"{LABEL}name": quota} if quota else {}}
    body = {"metadata": meta, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}}
    unwrap(await world.client.create(PODS, body))


def plugin_of(scheduler: Scheduler) -> ElasticQuotaPlugin:
    found = [
        plugin for p in scheduler.profiles.values() for plugin in p.plugins() if plugin.name == ElasticQuotaPlugin.name
    ]
    assert isinstance(found[0], ElasticQuotaPlugin)
    return found[0]


async def quota(world: FaultyCluster, name: str) -> QuotaObject:
    return unwrap(await world.client.get(ELASTIC_QUOTAS, name, "default"))


async def check(world: FaultyCluster) -> None:
    """Check that the quota cache has exactly what the server's pods hold, and that every quota's object shows it."""
    book = plugin_of(world.scheduler).quota_cache.manager
    pods = unwrap(await world.client.list(PODS)).items
    live = {p.metadata.uid: p for p in pods if p.status.phase not in ("Succeeded", "Failed")}
    assert set(book.pods) == set(live), "the book knows exactly the live pods"
    assert set(book.assumed) == {uid for uid, p in live.items() if p.spec.node_name}, "no promise is left over"
    used: dict[str, int] = {}
    for uid, pod in live.items():
        home = book.trees.node(book.quota_of_pod(book.pods[uid]) or "")
        for step in home.path if pod.spec.node_name and home is not None else ():
            used[step.name] = used.get(step.name, 0) + book.pods[uid].requests.get("cpu", 0)
    for live_quota in unwrap(await world.client.list(ELASTIC_QUOTAS, "default")).items:
        name = live_quota.metadata.name
        account = book.trees.node(name)
        assert account is not None
        assert account.used.get("cpu", 0) == used.get(name, 0)
        assert account.used.get("cpu", 0) <= account.definition.max["cpu"], "no quota is above its max"
        shown = live_quota.status.used.get("cpu", "0")
        assert str(shown) == str(used.get(name, 0) // 1000), "the object shows it"


# Bindings that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", FATES)
def test_a_binding_that_fails_gives_its_quota_back(fate: RequestFate) -> None:
    async def story(world: FaultyCluster) -> None:
        await add_quota(world, "q", "2", "2")
        left = 3

        def fail(request: ApiRequest) -> RequestFate:
            nonlocal left
            if is_binding(request) and left:
                left -= 1
                return fate
            return "well"

        world.wire.fate = fail
        for n in range(4):
            await add_pod(world, f"p{n}", "q")
        await world.settle()
        bound = [n for n in range(4) if await world.node_of(f"p{n}")]
        assert len(bound) == 2

    run(story)


def test_pods_deleted_at_any_moment_hold_nothing() -> None:
    async def story(world: FaultyCluster) -> None:
        await add_quota(world, "q", "4", "4")
        for turn in range(6):
            for n in range(6):
                await add_pod(world, f"p{turn}-{n}", "q")
            await world.clock.sleep(0.001 * turn)
            for n in range(6):
                await world.remove_pod(f"p{turn}-{n}")
        await add_pod(world, "last", "q", cpu="4")
        await world.settle()
        assert await world.node_of("last") == "n0"

    run(story)


def test_a_quota_that_vanishes_and_returns_has_its_pods_again() -> None:
    async def story(world: FaultyCluster) -> None:
        await add_quota(world, "q", "2", "2")
        await add_pod(world, "runs", "q", cpu="2")
        await world.settle(5)
        await world.client.delete(ELASTIC_QUOTAS, "q", "default")
        await add_pod(world, "waits", "q")
        await world.settle(5)
        assert "Could not find the specified ElasticQuota, quotaName: q" in await words(world, "waits")
        await add_quota(world, "q", "2", "2")
        await world.settle(5)
        assert "Insufficient quotas, quotaName: q" in await words(world, "waits")

    run(story)


async def words(world: FaultyCluster, name: str) -> str:
    conditions = (await world.pod(name)).status.conditions
    return next(c.message for c in conditions if c.type == "PodScheduled")


# Waking ------------------------------------------------------------------------------------------------------------


def test_a_waiting_pod_is_bound_soon_after_its_quota_has_room() -> None:
    """R25, in a running scheduler: by a deletion, by a larger max, and by a sibling that no longer asks."""

    async def story(world: FaultyCluster) -> None:
        parent = {"labels": {f"{LABEL}parent": "top"}}
        await add_quota(world, "top", "4", "4", labels={f"{LABEL}is-parent": "true"})
        await add_quota(world, "a", "0", "2", **parent)
        await add_quota(world, "b", "0", "4", **parent)
        await add_pod(world, "a0", "a", cpu="2")
        await world.settle(2)
        await add_pod(world, "a1", "a", cpu="2")
        await world.settle(15)
        assert not await world.node_of("a1")
        await world.remove_pod("a0")
        await world.settle(12)
        assert await world.node_of("a1")
        await add_pod(world, "a2", "a", cpu="1")
        await world.settle(15)
        assert not await world.node_of("a2")
        unwrap(await world.client.patch(ELASTIC_QUOTAS, "a", {"spec": _spec("0", "4")}, "default", kind="merge"))
        await world.settle(12)
        assert await world.node_of("a2")
        await add_pod(world, "b-asks", "b", cpu="4")
        await world.settle(2)
        await add_pod(world, "a3", "a", cpu="1")
        await world.settle(15)
        assert not await world.node_of("a3")
        await world.remove_pod("b-asks")
        await world.settle(12)
        assert await world.node_of("a3")

    run(story)


# Another scheduler takes over --------------------------------------------------------------------------------------


def test_who_takes_over_counts_the_same() -> None:
    async def story(world: FaultyCluster) -> None:
        await add_quota(world, "q", "3", "3")
        for n in range(5):
            await add_pod(world, f"p{n}", "q")
        world.wire.fate = lambda request: "lost-after" if is_binding(request) else "well"  # it dies not knowing
        await world.clock.sleep(0.02)
        await world.leading.stop()
        assert world.cluster.server is not None
        client = Client(
            InProcessTransport(world.cluster.server, "system:kube-scheduler"), clock=world.clock, qps=0, burst=0
        )
        informers = InformerFactory(client, world.clock, seed=2)
        world.leading = StandaloneScheduler(Scheduler(client, informers, world.clock, assembled(), seed=2))
        await world.leading.start()
        informers.start()
        await world.settle()
        bound = [n for n in range(5) if await world.node_of(f"p{n}")]
        assert len(bound) == 3
        await check(world)
        third = Scheduler(client, InformerFactory(client, world.clock, seed=3), world.clock, assembled(), seed=3)
        await third.start()
        third_informers = third.handle._informers
        third_informers.start()
        await third.wait_synced()
        assert numbers_of(plugin_of(third).quota_cache.manager) == numbers_of(
            plugin_of(world.scheduler).quota_cache.manager
        )
        await third.stop()
        await third_informers.stop()
        await informers.stop()

    run(story)


# What is shown -----------------------------------------------------------------------------------------------------


def writes_of_quotas(world: FaultyCluster) -> int:
    return sum(1 for r in world.wire.requests if r.method == "PATCH" and "/elasticquotas/" in r.path)


def test_numbers_are_shown_soon_and_written_only_when_they_change() -> None:
    async def story(world: FaultyCluster) -> None:
        await add_quota(world, "q", "2", "4")
        await add_quota(world, "idle", "2", "4")
        await add_pod(world, "p0", "q", cpu="3")
        await world.settle(4)
        shown = await quota(world, "q")
        assert shown.status.used == {"cpu": "3"}
        assert shown.metadata.annotations[f"{LABEL}runtime"] == '{"cpu":"3"}'
        assert shown.metadata.annotations[f"{LABEL}request"] == '{"cpu":"3"}'
        idle = await quota(world, "idle")
        assert not idle.status.used, "an idle quota is never written"
        before = writes_of_quotas(world)
        await world.settle(600)
        assert writes_of_quotas(world) == before, "nothing is written while nothing changes"
        await world.remove_pod("p0")
        await world.settle(4)
        assert (await quota(world, "q")).status.used == {"cpu": "0"}

    run(story)


def test_the_quotas_that_are_always_there_are_made() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.settle(60)
        made = {q.metadata.name: q for q in unwrap(await world.client.list(ELASTIC_QUOTAS, "koordinator-system")).items}
        assert set(made) == {ROOT_QUOTA, SYSTEM_QUOTA, DEFAULT_QUOTA}
        assert made[ROOT_QUOTA].metadata.labels[f"{LABEL}is-parent"] == "true"
        assert made[DEFAULT_QUOTA].spec.max == {"cpu": "1844674407370955161", "memory": "1844674407370955161"}
        await world.add_pod("plain")
        await world.settle(5)
        shown = unwrap(await world.client.get(ELASTIC_QUOTAS, DEFAULT_QUOTA, "koordinator-system"))
        assert shown.status.used == {"cpu": "1"}

    run(story)


# Giving back -------------------------------------------------------------------------------------------------------


async def lent(world: FaultyCluster) -> None:
    """Let b run on what a does not request; then let a request it."""
    for rank, value in (("low", 1), ("high", 100)):
        unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": rank}, "value": value}))
    await add_quota(world, "a", "4", "8")
    await add_quota(world, "b", "4", "8")
    await add_pod(world, "b-high", "b", cpu="4", priorityClassName="high")
    await add_pod(world, "b-low", "b", cpu="4", priorityClassName="low")
    await world.settle(5)
    await add_pod(world, "a0", "a", cpu="4")


def test_what_is_used_beyond_its_share_for_too_long_is_taken_back() -> None:
    """Lending works, and so does giving back: the least important pod of the borrower leaves, and is accounted for."""

    async def story(world: FaultyCluster) -> None:
        await lent(world)
        await world.settle(30)
        assert not await world.node_of("a0")
        await world.settle(60)
        assert await world.node_of("a0")
        assert await world.node_of("b-high")
        assert isinstance(await world.client.get(PODS, "b-low", "default"), ApiError)
        (record,) = world.scheduler.evictor.ledger
        assert (record.actor, record.plugin, record.rule) == ("koord-scheduler", "ElasticQuota", "QuotaOverused")
        assert (record.key, record.request, record.rank) == (
            "default/b-low",
            "ElasticQuota b",
            "1 of 1 that leave, of 2 pods of the quota",
        )
        assert record.measured == "quota b uses cpu:8"
        assert record.threshold == "it has been entitled to no more than cpu:4 for 40s or longer"
        assert (record.outcome, record.frees) == ("evicted", {"cpu": 4000})
        events = unwrap(await world.client.list(EVENTS_EVENTS, "default")).items
        (event,) = [one for one in events if one.reason == "QuotaOverused"]
        assert (event.regarding.name, event.type, event.action) == ("b-low", "Warning", "Evicting")
        assert event.note == f"QuotaOverused: {record.measured}; {record.threshold}; {record.why_this_pod}"
        assert parse_record(event.metadata.annotations) == record

    run(story, delayEvictTime="40s", monitorAllQuotas=True)


def test_a_more_important_pod_of_the_quota_takes_the_place_of_another_and_that_is_recorded() -> None:
    async def story(world: FaultyCluster) -> None:
        for rank, value in (("low", 1), ("high", 100)):
            unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": rank}, "value": value}))
        await add_quota(world, "a", "4", "4")
        await add_pod(world, "low", "a", cpu="4", priorityClassName="low")
        await world.settle(5)
        await add_pod(world, "great", "a", cpu="4", priorityClassName="high")
        await world.settle(30)
        assert await world.node_of("great")
        (record,) = world.scheduler.evictor.ledger
        assert (record.plugin, record.rule, record.outcome) == ("ElasticQuota", "Preemption", "evicted")
        assert (record.key, record.request) == ("default/low", "Pod default/great")
        assert (record.measured, record.threshold) == ("priority 1", "default/great has priority 100")

    run(story)


def test_a_pod_that_can_preempt_once_another_pod_is_gone_is_woken_at_once() -> None:
    async def story(world: FaultyCluster) -> None:
        for rank, value in (("low", 1), ("high", 100), ("highest", 1000)):
            unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": rank}, "value": value}))
        await add_quota(world, "a", "4", "4")
        await add_pod(world, "highest", "a", cpu="3", priorityClassName="highest")
        await add_pod(world, "low", "a", cpu="1", priorityClassName="low")
        await world.settle(5)
        await add_pod(world, "waiting", "a", cpu="4", priorityClassName="high")
        await world.settle(20)
        await world.remove_pod("highest")
        await world.settle(10)
        assert await world.node_of("waiting") == "n0"
        assert isinstance(await world.client.get(PODS, "low", "default"), ApiError)

    run(story)


@pytest.mark.parametrize(
    ("gate", "waits"),
    [
        pytest.param("", (False, False), id="counts-until-it-is-gone"),
        pytest.param("ElasticQuotaIgnoreTerminatingPod", (False, True), id="until-its-grace-period-is-over"),
        pytest.param("ElasticQuotaImmediateIgnoreTerminatingPod", (True, True), id="not-at-all"),
    ],
)
def test_terminating_pods_count_as_the_gates_say(gate: str, waits: tuple[bool, bool]) -> None:
    async def story(world: FaultyCluster) -> None:
        await add_quota(world, "a", "4", "4")
        await add_pod(world, "old", "a", cpu="4", terminationGracePeriodSeconds=60)
        await world.settle(5)
        await add_pod(world, "new", "a", cpu="4")
        await world.settle(5)
        unwrap(await world.client.delete(PODS, "old", "default"))  # nobody ends it: there is no kubelet
        started = []
        for seconds in (20, 140):
            await world.settle(seconds)
            started.append(bool(await world.node_of("new")))
        assert tuple(started) == waits
        await world.remove_pod("old")
        await world.settle(15)
        assert await world.node_of("new") == "n0"
        assert plugin_of(world.scheduler).quota_cache.manager.trees.tree_of("a").nodes["a"].used == {"cpu": 4000}

    async def main(clock: LoopClock) -> None:
        made = assembled(gates={gate: True} if gate else {})
        async with faulty_cluster(clock, made) as world:
            unwrap(await world.client.create(NAMESPACES, {"metadata": {"name": "koordinator-system"}}))
            await world.add_node("n0", cpu="8")
            await story(world)
            await check(world)

    run_virtual(main)


def test_a_disruption_budget_refuses_and_that_is_recorded_once() -> None:
    async def story(world: FaultyCluster) -> None:
        await lent(world)
        everyone = {"matchExpressions": [{"key": f"{LABEL}name", "operator": "Exists"}]}
        body = {"metadata": {"name": "all", "namespace": "default"}, "spec": {"minAvailable": 2, "selector": everyone}}
        budget = unwrap(await world.client.create(POD_DISRUPTION_BUDGETS, body))
        seen = {"observedGeneration": budget.metadata.generation, "expectedPods": 3, "desiredHealthy": 2}
        status = {"status": {"disruptionsAllowed": 0, "currentHealthy": 2, **seen}}
        unwrap(
            await world.client.patch(
                POD_DISRUPTION_BUDGETS, "all", status, "default", kind="merge", subresource="status"
            )
        )
        ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        for name in ("b-low", "b-high"):
            unwrap(await world.client.patch(PODS, name, ready, "default", kind="merge", subresource="status"))
        await world.settle(90)
        assert await world.node_of("b-low")
        (record,) = world.scheduler.evictor.ledger
        assert (record.outcome, record.key) == ("refused", "default/b-low")
        assert "disruption budget" in record.detail
        assert record.count > 1

    run(story, delayEvictTime="40s", monitorAllQuotas=True)


def test_nothing_is_taken_back_unless_asked_to() -> None:
    async def story(world: FaultyCluster) -> None:
        await lent(world)
        await world.settle(600)
        assert await world.node_of("b-low")
        assert not len(world.scheduler.evictor.ledger)

    run(story, delayEvictTime="40s")


# Anything at all ---------------------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("quota-pod"), st.integers(0, 11), st.sampled_from(("a", "b", "", "no-such"))),
        st.tuples(st.just("quota"), st.sampled_from(("a", "b")), st.integers(1, 8)),
        st.tuples(st.just("unquota"), st.sampled_from(("a", "b"))),
        st.tuples(st.just("unpod"), st.integers(0, 11)),
        st.tuples(st.just("finish"), st.integers(0, 11)),
        st.tuples(st.just("fate"), st.sampled_from(FATES), st.integers(1, 6)),
        st.tuples(st.just("cut"), st.booleans()),
        st.tuples(st.just("sleep"), st.sampled_from((0.0, 0.01, 1.0, 20.0))),
    ),
    max_size=30,
)


async def step(world: FaultyCluster, what: tuple[Any, ...]) -> None:
    match what:
        case ("quota-pod", n, name):
            container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "1"}}}
            meta = {"name": f"p{n}", "namespace": "default", "labels": {f"{LABEL}name": name} if name else {}}
            spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
            await world.client.create(PODS, {"metadata": meta, "spec": spec})
        case ("quota", name, most):
            made = await world.client.create(
                ELASTIC_QUOTAS, {"metadata": {"name": name, "namespace": "default"}, "spec": _spec("0", str(most))}
            )
            if isinstance(made, ApiError):
                patch = {"spec": _spec("0", str(most))}
                await world.client.patch(ELASTIC_QUOTAS, name, patch, "default", kind="merge")
        case ("unquota", name):
            await world.client.delete(ELASTIC_QUOTAS, name, "default")
        case _:
            await act(world, what)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_every_story_ends_with_the_books_in_order(story: list[tuple[Any, ...]]) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, assembled(), seed=random.Random(0).randrange(9)) as world:
            unwrap(await world.client.create(NAMESPACES, {"metadata": {"name": "koordinator-system"}}))
            await world.add_node("n0", cpu="8")
            for what in story:
                await step(world, what)
            world.wire.cut = False
            world.wire.fate = lambda _: "well"
            await world.settle(700)
            book = plugin_of(world.scheduler).quota_cache.manager
            pods = unwrap(await world.client.list(PODS)).items
            live = {p.metadata.uid: p for p in pods if p.status.phase not in ("Succeeded", "Failed")}
            assert set(book.pods) == set(live)
            assert set(book.assumed) == {uid for uid, p in live.items() if p.spec.node_name}
            for shown in unwrap(await world.client.list(ELASTIC_QUOTAS, "default")).items:
                account = book.trees.node(shown.metadata.name)
                assert account is not None
                assert int(str(shown.status.used.get("cpu", "0"))) * 1000 == account.used.get("cpu", 0)
            waiting = [p for p in live.values() if not p.spec.node_name]
            for pod in waiting:
                info = world.scheduler.state.pod_info(
                    unwrap(await world.client.get(SLIM, pod.metadata.name, "default"))
                )
                fits = plugin_of(world.scheduler).quota_cache.check_admission(info) is None
                full = "Insufficient cpu" in next(c.message for c in pod.status.conditions if c.type == "PodScheduled")
                assert not fits or full, "nobody sleeps whom the quota lets in and a node could take"

    run_virtual(main)
