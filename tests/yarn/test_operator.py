"""The operator between an API server and YARN: capacity follows what nodes lend, nodes say what YARN holds, and a
cluster that fails stops nobody else.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from koord.api.koordinator.yarn import DEFAULT_CLUSTER_ID, YarnNodeId
from koord.wire.hadoop_yarn import ResourceMessage
from koord.yarn.capacity import BatchAmounts
from tests.yarn.fake_resource_manager import FakeNodeManager, FakeResourceManager, FakeYarn, cluster_of, running
from tests.yarn.operator_site import CPU, MEMORY, QUICK, operating, operator_site, until, until_held

GI = 1 << 30


async def test_capacity_follows_batch_both_ways_and_yarns_share_comes_back() -> None:
    yarn = FakeYarn()
    node = yarn.add("nm-0")
    manager = FakeResourceManager(yarn)
    async with running(manager), operator_site() as site:
        await site.add_node("n1", 8000, "8Gi")
        await site.add_pod("nm", "n1", {CPU: "1k", MEMORY: "1Gi"}, node_id="nm-0:8041")
        async with operating(site, cluster_of(DEFAULT_CLUSTER_ID, manager)):
            await until(lambda: yarn.capability(node) == ResourceMessage(7 * 1024, 7))
            await site.lend("n1", 3000, "3Gi")
            await until(lambda: yarn.capability(node) == ResourceMessage(2 * 1024, 2))
            await site.add_pod("job", "n1", {CPU: "1k", MEMORY: "1Gi"})
            await until(lambda: yarn.capability(node) == ResourceMessage(1024, 1))
            await site.remove_pod("job")
            await site.lend("n1", 16000, "16Gi")
            await until(lambda: yarn.capability(node) == ResourceMessage(15 * 1024, 15))
            yarn.use(node, 2048, 3)
            await until_held(site, "n1", BatchAmounts(3000, 2 * GI))
            yarn.use(node, 0, 0)
            await until_held(site, "n1", BatchAmounts())
    assert all(one.option.over_commit_timeout_ms == 600_000 for one in yarn.updates)
    assert set(yarn.users) == {"yarn"}


async def test_origin_counts_and_a_broken_one_changes_nothing() -> None:
    yarn = FakeYarn()
    node = yarn.add("nm-0")
    manager = FakeResourceManager(yarn)
    async with running(manager), operator_site() as site:
        await site.add_node("n1", 1000, "1Gi")
        await site.annotate("n1", originExtendedAllocatable=f'{{"resources":{{"{CPU}":"5k","{MEMORY}":"5Gi"}}}}')
        await site.add_pod("nm", "n1", node_id="nm-0:8041")
        async with operating(site, cluster_of(DEFAULT_CLUSTER_ID, manager)) as operator:
            await until(lambda: yarn.capability(node) == ResourceMessage(5 * 1024, 5))
            await site.annotate("n1", originExtendedAllocatable="{")
            problems = operator.clusters[DEFAULT_CLUSTER_ID]
            await until(lambda: [one.reason for one in problems.problems] == ["unknown-batch"])
            await site.annotate("n1", originExtendedAllocatable='{"resources":{}}')
            await until(lambda: "has no kubernetes.io/batch-cpu" in str(problems.problems))
            assert yarn.capability(node) == ResourceMessage(5 * 1024, 5)
    assert all(one.option.resource != ResourceMessage() for one in yarn.updates)


async def test_a_node_manager_that_registers_again_gets_its_capacity_again() -> None:
    yarn = FakeYarn()
    node = yarn.add("nm-0")
    manager = FakeResourceManager(yarn)
    async with running(manager), operator_site() as site:
        await site.add_node("n1", 4000, "4Gi")
        await site.add_pod("nm", "n1", node_id="nm-0:8041")
        async with operating(site, cluster_of(DEFAULT_CLUSTER_ID, manager)):
            await until(lambda: yarn.capability(node) == ResourceMessage(4096, 4))
            yarn.nodes[node] = FakeNodeManager(capability=ResourceMessage(1024, 1))
            await until(lambda: yarn.capability(node) == ResourceMessage(4096, 4))


async def test_a_resource_manager_that_starts_again_does_not_free_what_yarn_holds() -> None:
    yarn = FakeYarn()
    node = yarn.add("nm-0")
    manager = FakeResourceManager(yarn)
    async with running(manager), operator_site() as site:
        await site.add_node("n1", 4000, "4Gi")
        await site.add_pod("nm", "n1", node_id="nm-0:8041")
        patient = msgspec.structs.replace(QUICK, absence_grace_s=600.0)
        async with operating(site, cluster_of(DEFAULT_CLUSTER_ID, manager), settings=patient) as operator:
            state = operator.clusters[DEFAULT_CLUSTER_ID]
            yarn.use(node, 1024, 1)
            await until_held(site, "n1", BatchAmounts(1000, GI))
            await manager.stop()
            await until(lambda: state.error != "")
            failed = state.rounds["failed"]
            await until(lambda: state.rounds["failed"] > failed + 2)
            assert await site.held("n1") == BatchAmounts(1000, GI)
            registered = yarn.nodes.pop(node)
            await manager.start()
            await until(lambda: state.error == "")
            assert await site.held("n1") == BatchAmounts(1000, GI)
            yarn.nodes[node] = registered
            registered.capability = ResourceMessage(1024, 1)
            await until(lambda: yarn.capability(node) == ResourceMessage(4096, 4))
            assert await site.held("n1") == BatchAmounts(1000, GI)


async def test_what_a_lost_node_manager_held_is_free_after_the_grace() -> None:
    yarn = FakeYarn()
    node = yarn.add("nm-0")
    manager = FakeResourceManager(yarn)
    async with running(manager), operator_site() as site:
        await site.add_node("n1")
        await site.add_pod("nm", "n1", node_id="nm-0:8041")
        async with operating(site, cluster_of(DEFAULT_CLUSTER_ID, manager)) as operator:
            yarn.use(node, 1024, 1)
            await until_held(site, "n1", BatchAmounts(1000, GI))
            del yarn.nodes[node]
            await until_held(site, "n1", BatchAmounts())
            assert [one.reason for one in operator.clusters[DEFAULT_CLUSTER_ID].problems] == ["not-registered"]


async def test_a_node_without_node_manager_says_that_yarn_holds_nothing_and_keeps_the_entries_of_others() -> None:
    yarn = FakeYarn()
    manager = FakeResourceManager(yarn)
    other = {"name": "spark", "priority": "koord-batch", "resources": {CPU: "1"}, "note": "kept"}
    stale = {"name": "hadoop-yarn", "priority": "koord-batch", "resources": {CPU: "2k", MEMORY: "2Gi"}}
    async with running(manager), operator_site() as site:
        await site.add_node("n1")
        await site.annotate("n1", thirdPartyAllocations=json.dumps({"allocations": [stale, other]}))
        async with operating(site, cluster_of(DEFAULT_CLUSTER_ID, manager)):
            await until_held(site, "n1", BatchAmounts())
            listed = json.loads(await site.third_parties("n1") or "")["allocations"]
    assert listed == [other, {**stale, "resources": {CPU: "0", MEMORY: "0"}}]


async def test_containers_hold_on_after_the_pod_of_their_node_manager_has_gone() -> None:
    yarn = FakeYarn()
    node = yarn.add("nm-0")
    manager = FakeResourceManager(yarn)
    async with running(manager), operator_site() as site:
        await site.add_node("n1")
        await site.add_pod("nm", "n1", node_id="nm-0:8041")
        async with operating(site, cluster_of(DEFAULT_CLUSTER_ID, manager)) as operator:
            yarn.use(node, 1024, 1)
            await until_held(site, "n1", BatchAmounts(1000, GI))
            await site.remove_pod("nm")
            await until(lambda: not operator.pods.list())
            rounds = operator.clusters[DEFAULT_CLUSTER_ID].rounds
            seen = rounds["succeeded"]
            await until(lambda: rounds["succeeded"] > seen + 3)
            assert await site.held("n1") == BatchAmounts(1000, GI)
            yarn.use(node, 0, 0)
            await until_held(site, "n1", BatchAmounts())


async def test_a_failing_cluster_stops_nobody_else_and_its_nodes_stay_as_they_are() -> None:
    good, bad = FakeYarn(), FakeYarn(admins=("hdfs",))
    node, denied = good.add("nm-0"), bad.add("nm-1")
    first, second, third = FakeResourceManager(good), FakeResourceManager(bad), FakeResourceManager(FakeYarn())
    async with running(first, second), operator_site() as site:
        for name, node_id, cluster in (("n1", "nm-0:8041", ""), ("n2", "nm-1:8041", "bad"), ("n3", "nm-2:8041", "off")):
            await site.add_node(name)
            await site.add_pod(f"nm-{name}", name, node_id=node_id, cluster=cluster)
        held = {"name": "hadoop-yarn", "priority": "koord-batch", "resources": {CPU: "2k", MEMORY: "2Gi"}}
        await site.annotate("n3", thirdPartyAllocations=json.dumps({"allocations": [held]}))
        clusters = (
            cluster_of(DEFAULT_CLUSTER_ID, first),
            cluster_of("bad", second),
            cluster_of("off", third),
        )
        async with operating(site, *clusters) as operator:
            await until(lambda: good.capability(node) == ResourceMessage(4096, 4))
            await until(lambda: min(operator.clusters[name].rounds["failed"] for name in ("bad", "off")) > 3)
            assert "User yarn doesn't have permission" in operator.clusters["bad"].error
            assert operator.clusters["bad"].updates["failed"] > 0
            assert bad.capability(denied) == ResourceMessage(1024, 1)
            assert await site.held("n3") == BatchAmounts(2000, 2 * GI)
            up = next(one for one in operator.readings() if one.name == "koord_yarn_operator_cluster_up")
            assert dict(up.values) == {(DEFAULT_CLUSTER_ID,): 1.0, ("bad",): 0.0, ("off",): 0.0}


async def test_a_failover_is_followed() -> None:
    yarn = FakeYarn()
    node = yarn.add("nm-0")
    first, second = FakeResourceManager(yarn, "rm1"), FakeResourceManager(yarn, "rm2")
    async with running(first, second), operator_site() as site:
        pair = cluster_of(DEFAULT_CLUSTER_ID, first, second)
        await second.become_standby()
        await site.add_node("n1")
        await site.add_pod("nm", "n1", node_id="nm-0:8041")
        async with operating(site, pair):
            await until(lambda: yarn.capability(node) == ResourceMessage(4096, 4))
            await first.become_standby()
            await second.become_active()
            yarn.nodes[node] = FakeNodeManager(capability=ResourceMessage(1024, 1))
            await until(lambda: yarn.capability(node) == ResourceMessage(4096, 4))
            assert second.calls > 0


async def test_one_node_that_is_refused_does_not_keep_others_from_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    yarn = FakeYarn()
    nodes = [yarn.add(f"nm-{number}") for number in range(3)]
    manager = FakeResourceManager(yarn)
    vanishing = YarnNodeId("nm-1", 8041)
    answer = manager._answer

    def race(method: str, body: bytes, user: str, *, is_admin: bool) -> object:
        """A NodeManager that is listed and is gone when its capacity arrives."""
        if is_admin:
            kept = yarn.nodes.pop(vanishing)
            try:
                return answer(method, body, user, is_admin=is_admin)
            finally:
                yarn.nodes[vanishing] = kept
        return answer(method, body, user, is_admin=is_admin)

    monkeypatch.setattr(manager, "_answer", race)
    async with running(manager), operator_site() as site:
        for number in range(3):
            await site.add_node(f"n{number}")
            await site.add_pod(f"nm-{number}", f"n{number}", node_id=f"nm-{number}:8041")
        async with operating(site, cluster_of(DEFAULT_CLUSTER_ID, manager)) as operator:
            others = [node for node in nodes if node != vanishing]
            await until(lambda: all(yarn.capability(node) == ResourceMessage(4096, 4) for node in others))
            await until(lambda: "unrecognized node: nm-1:8041" in operator.clusters[DEFAULT_CLUSTER_ID].error)


async def test_metrics_have_upstreams_names_and_labels() -> None:
    yarn = FakeYarn()
    node = yarn.add("nm-0")
    yarn.use(node, 512, 1)
    manager = FakeResourceManager(yarn)
    async with running(manager), operator_site() as site:
        await site.add_node("n1")
        await site.add_pod("nm", "n1", node_id="nm-0:8041")
        await site.add_pod("stray", "n1", node_id="nonsense")
        async with operating(site, cluster_of(DEFAULT_CLUSTER_ID, manager)) as operator:
            await until_held(site, "n1", BatchAmounts(1000, GI // 2))
            await until(lambda: operator.clusters[DEFAULT_CLUSTER_ID].rounds["succeeded"] > 3)
            read = {one.name: dict(one.values) for one in operator.readings()}
    labels = ("nm-0", DEFAULT_CLUSTER_ID)
    assert read["yarn_node_cpu_resource"] == {labels: 4.0}
    assert read["yarn_node_memory_resource"] == {labels: 4.0 * GI}
    assert read["yarn_node_cpu_allocated_resource"] == {labels: 1.0}
    assert read["yarn_node_memory_allocated_resource"] == {labels: GI / 2}
    assert read["koord_yarn_operator_problems"] == {("node-id",): 1.0}
    assert read["koord_yarn_operator_updates_total"] == {(DEFAULT_CLUSTER_ID, "succeeded"): 1.0}
