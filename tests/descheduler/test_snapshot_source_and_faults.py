"""What the program sees of workloads and pods, and jobs on a wire that fails at random."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, NAMESPACES, NODES, REPLICA_SETS, STATEFUL_SETS
from koord.api.kubernetes.resource import Resource
from koord.cli.up.local_descheduler import descheduler_assembly, make_descheduler
from koord.cli.up.local_program import LocalProgram
from koord.descheduler.configuration import DeschedulerSetup
from koord.descheduler.framework.plugin import CordonEffect, EvictionProposal
from koord.descheduler.framework.snapshot import ClusterSnapshot
from koord.descheduler.program import Descheduler
from koord.descheduler.snapshot_source import listed_workloads, required_resources, snapshot_from_lists
from koord.embedded.cluster import ClusterSettings, ComponentContext, EmbeddedCluster
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.clock import LoopClock, run_virtual
from tests.descheduler.descheduler_harness import DeschedulerHarness, run_in_harness
from tests.scheduler.faulty_cluster import RequestFate


def test_replica_sets_of_a_deployment_stand_for_it() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        labels = {"app": "d"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        meta = {"name": "d", "namespace": "default"}
        made = unwrap(await harness.client.create(DEPLOYMENTS, {"metadata": meta, "spec": {"replicas": 7, **spec}}))
        owner = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "d",
            "uid": made.metadata.uid,
            "controller": True,
        }
        members = []
        for name in ("d-old", "d-new"):
            own = {"name": name, "namespace": "default", "ownerReferences": [owner], "labels": labels}
            set_ = unwrap(await harness.client.create(REPLICA_SETS, {"metadata": own, "spec": {"replicas": 3, **spec}}))
            members.append(set_.metadata.uid)
        await harness.settle()
        view = one.descheduler.snapshot_source
        found = view.workloads.get(members[0])
        assert found is not None
        assert (found.kind, found.replicas, found.controller_uids) == ("Deployment", 7, frozenset(members))
        assert view.workloads.get(members[1]) == found
        assert view.workloads.get("nobody") is None
        # The same as from lists, which dry runs on files use.
        listed = listed_workloads(lambda resource: one.informers.for_resource(resource).list())
        assert dict(view.workloads.as_mapping()) == listed
        assert listed.keys() >= {*members}

    run_in_harness(story)


def test_pods_are_found_where_the_watch_keeps_them() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        for name, node in (("a", "n1"), ("b", "n1"), ("c", "n2")):
            await harness.add_pod(name, node)
        await harness.settle()
        seen = one.descheduler.snapshot_source.snapshot()
        gathered = ClusterSnapshot(now_s=seen.now_s, pods=seen.pods)
        owner = seen.pods[0].metadata.owner_references[0].uid
        assert (
            [p.metadata.name for p in seen.pods_on_node("n1")]
            == ["a", "b"]
            == [p.metadata.name for p in gathered.pods_on_node("n1")]
        )
        assert {p.metadata.uid for p in seen.by_owner[owner]} == {p.metadata.uid for p in gathered.by_owner[owner]}
        assert seen.by_name["default", "c"] == gathered.by_name["default", "c"]
        assert seen.by_name.get(("default", "z")) is None
        assert set(seen.by_node) == set(gathered.by_node) == {"n1", "n2"}

    run_in_harness(story)


@pytest.mark.parametrize("fate", ["well", "lost", "503"])
def test_nobody_is_sent_away_from_a_node_that_could_not_be_cordoned(fate: RequestFate) -> None:
    """They would come right back."""

    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.settle(1)
        pods = [await harness.add_pod("a", "n1"), await harness.add_pod("b", "n2")]
        one.wire.fate = lambda request: fate if "/nodes/" in request.path else "well"
        by = {"profile": "p", "plugin": "CustomPriority", "reason": "drain"}
        cordon = CordonEffect(node="n1", unschedulable=True, **by)  # type: ignore[arg-type]
        evictions = [EvictionProposal(pod=p, node=p.spec.node_name, evictor="MigrationController", **by) for p in pods]  # type: ignore[arg-type]
        await one.descheduler._executor.execute([cordon, *evictions])
        made = {job.spec.pod_ref.name for job in await harness.jobs() if job.spec.pod_ref is not None}
        assert made == ({"a", "b"} if fate == "well" else {"b"})
        node = unwrap(await harness.client.get(NODES, "n1"))
        assert node.spec.unschedulable is (fate == "well")

    run_in_harness(story)


FATES: list[RequestFate] = ["well", "well", "well", "lost", "lost-after", "409", "429", "500", "500-after", "503"]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(FATES), min_size=5, max_size=40), st.lists(st.integers(0, 12), max_size=3))
def test_whatever_fails_each_pod_leaves_once_and_each_job_ends(fates: list[RequestFate], breaks: list[int]) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start(
            objectLimiters={"workload": {"duration": "0s"}}, maxMigratingPerNode=2, maxMigratingPerWorkload=5
        )
        left = list(fates)

        def fate(request: ApiRequest) -> RequestFate:
            return left.pop() if left and "/events" not in request.path else "well"

        uids = {}
        for name in ("a", "b", "c"):
            uids[name] = (await harness.add_pod(name)).metadata.uid
        await harness.settle(1)
        one.wire.fate = fate
        for name in ("a", "b", "c"):
            await harness.add_job(f"job-{name}", name, ttl="5m")
        successors = 0
        for turn in range(13):
            if turn in breaks:
                await one.wire.break_watches()
            await harness.settle(30)
            for place in await harness.reservations():
                if not place.status.node_name:
                    await harness.place(place.metadata.name, "n2")
                elif place.status.phase == "Available" and len(harness.gone) > successors:
                    successors += 1
                    await harness.arrive(place.metadata.name, await harness.add_pod(f"new-{successors}", "n2"))
        for job in await harness.jobs():
            assert job.status.phase in ("Succeeded", "Failed"), (job.metadata.name, job.status)
            assert job.status.reason or job.status.message
        assert all(count == 1 for count in harness.gone.values())
        assert set(harness.gone) <= set(uids.values()), "only those who were meant"

    run_in_harness(story)


CONTAINERS = [{"name": "c", "image": "i"}]


def owner(name: str) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": CONTAINERS}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template, "serviceName": name}
    return {"metadata": {"name": name, "namespace": "work"}, "spec": spec}


def test_workloads_and_pods_are_the_same() -> None:
    async def main(clock: LoopClock) -> None:
        made = descheduler_assembly()
        assert isinstance(made, DeschedulerSetup)
        held: list[LocalProgram[Descheduler]] = []

        def local(context: ComponentContext) -> LocalProgram[Descheduler]:
            held.append(make_descheduler(context, made))
            return held[0]

        workloads = ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed))
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), [workloads, ("descheduler", local)], clock=clock)
        await cluster.start()
        client = cluster.client
        assert client is not None
        try:
            unwrap(await client.create(NAMESPACES, {"metadata": {"name": "work"}}))
            for resource, name in ((DEPLOYMENTS, "d"), (REPLICA_SETS, "r"), (STATEFUL_SETS, "s")):
                body = owner(name)
                if resource is not STATEFUL_SETS:
                    del body["spec"]["serviceName"]
                unwrap(await client.create(resource, body))
            await asyncio.sleep(5)
            patch = {"spec": {"template": {"metadata": {"labels": {"v": "2"}}}}}
            unwrap(await client.patch(DEPLOYMENTS, "d", patch, "work", kind="merge"))  # now it has two ReplicaSets
            await asyncio.sleep(5)
            lists: dict[str, Any] = {}
            for resource in required_resources(made.plugins()):
                lists[resource.plural] = unwrap(await client.list(resource)).items

            def of(resource: Resource[Any]) -> Any:
                return lists[resource.plural]

            read = snapshot_from_lists(of, made.plugins(), clock.time())
            watched = held[0].program.snapshot_source.snapshot()
            assert {uid: watched.workloads[uid] for uid in watched.workloads} == read.workloads
            kinds = [(one.kind, one.name, len(one.controller_uids)) for one in set(read.workloads.values())]
            assert sorted(kinds) == [("Deployment", "d", 2), ("ReplicaSet", "r", 1), ("StatefulSet", "s", 1)]
            assert {p.metadata.uid for p in watched.pods} == {p.metadata.uid for p in read.pods}
        finally:
            await cluster.stop()

    run_virtual(main)
