"""What the program sees of workloads and pods, and jobs on a wire that fails at random."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.builtin import DEPLOYMENTS, NODES, REPLICA_SETS
from koord.descheduler.framework.effect import Cordon, Evict
from koord.descheduler.shell.view import workloads
from koord.descheduler.snapshot import Snapshot
from koord.kube.refused import ok
from koord.kube.transport import Request
from tests.descheduler.shell.desk import Desk, at_desk
from tests.scheduler.shell.trouble import Fate


def test_replica_sets_of_a_deployment_stand_for_it() -> None:
    async def story(desk: Desk) -> None:
        one = desk.start()
        labels = {"app": "d"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        meta = {"name": "d", "namespace": "default"}
        made = ok(await desk.client.create(DEPLOYMENTS, {"metadata": meta, "spec": {"replicas": 7, **spec}}))
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
            set_ = ok(await desk.client.create(REPLICA_SETS, {"metadata": own, "spec": {"replicas": 3, **spec}}))
            members.append(set_.metadata.uid)
        await desk.settle()
        view = one.descheduler.view
        found = view.workloads.get(members[0])
        assert found is not None
        assert (found.kind, found.replicas, found.controllers) == ("Deployment", 7, frozenset(members))
        assert view.workloads.get(members[1]) == found
        assert view.workloads.get("nobody") is None
        # The same as from lists, which dry runs on files use.
        informers = one.informers
        listed = workloads(informers.of(DEPLOYMENTS).list(), informers.of(REPLICA_SETS).list(), ())
        assert dict(view.workloads.mapping()) == listed
        assert listed.keys() >= {*members}

    at_desk(story)


def test_pods_are_found_where_the_watch_keeps_them() -> None:
    async def story(desk: Desk) -> None:
        one = desk.start()
        for name, node in (("a", "n1"), ("b", "n1"), ("c", "n2")):
            await desk.add_pod(name, node)
        await desk.settle()
        seen = one.descheduler.view.snapshot()
        gathered = Snapshot(now_s=seen.now_s, pods=seen.pods)
        owner = seen.pods[0].metadata.owner_references[0].uid
        assert [p.metadata.name for p in seen.on("n1")] == ["a", "b"] == [p.metadata.name for p in gathered.on("n1")]
        assert {p.metadata.uid for p in seen.by_owner[owner]} == {p.metadata.uid for p in gathered.by_owner[owner]}
        assert seen.by_name["default", "c"] == gathered.by_name["default", "c"]
        assert seen.by_name.get(("default", "z")) is None
        assert set(seen.by_node) == set(gathered.by_node) == {"n1", "n2"}

    at_desk(story)


@pytest.mark.parametrize("fate", ["well", "lost", "503"])
def test_nobody_is_sent_away_from_a_node_that_could_not_be_cordoned(fate: Fate) -> None:
    """They would come right back."""

    async def story(desk: Desk) -> None:
        one = desk.start()
        await desk.settle(1)
        pods = [await desk.add_pod("a", "n1"), await desk.add_pod("b", "n2")]
        one.wire.fate = lambda request: fate if "/nodes/" in request.path else "well"
        by = {"profile": "p", "plugin": "CustomPriority", "reason": "drain"}
        cordon = Cordon(node="n1", unschedulable=True, **by)  # type: ignore[arg-type]
        evictions = [Evict(pod=p, node=p.spec.node_name, evictor="MigrationController", **by) for p in pods]  # type: ignore[arg-type]
        await one.descheduler._executor.carry_out([cordon, *evictions])
        made = {job.spec.pod_ref.name for job in await desk.jobs() if job.spec.pod_ref is not None}
        assert made == ({"a", "b"} if fate == "well" else {"b"})
        node = ok(await desk.client.get(NODES, "n1"))
        assert node.spec.unschedulable is (fate == "well")

    at_desk(story)


FATES: list[Fate] = ["well", "well", "well", "lost", "lost-after", "409", "429", "500", "500-after", "503"]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(FATES), min_size=5, max_size=40), st.lists(st.integers(0, 12), max_size=3))
def test_whatever_fails_each_pod_leaves_once_and_each_job_ends(fates: list[Fate], breaks: list[int]) -> None:
    async def story(desk: Desk) -> None:
        one = desk.start(
            objectLimiters={"workload": {"duration": "0s"}}, maxMigratingPerNode=2, maxMigratingPerWorkload=5
        )
        left = list(fates)

        def fate(request: Request) -> Fate:
            return left.pop() if left and "/events" not in request.path else "well"

        uids = {}
        for name in ("a", "b", "c"):
            uids[name] = (await desk.add_pod(name)).metadata.uid
        await desk.settle(1)
        one.wire.fate = fate
        for name in ("a", "b", "c"):
            await desk.add_job(f"job-{name}", name, ttl="5m")
        successors = 0
        for turn in range(13):
            if turn in breaks:
                await one.wire.break_watches()
            await desk.settle(30)
            for place in await desk.reservations():
                if not place.status.node_name:
                    await desk.place(place.metadata.name, "n2")
                elif place.status.phase == "Available" and len(desk.gone) > successors:
                    successors += 1
                    await desk.arrive(place.metadata.name, await desk.add_pod(f"new-{successors}", "n2"))
        for job in await desk.jobs():
            assert job.status.phase in ("Succeeded", "Failed"), (job.metadata.name, job.status)
            assert job.status.reason or job.status.message
        assert all(count == 1 for count in desk.gone.values())
        assert set(desk.gone) <= set(uids.values()), "only those who were meant"

    at_desk(story)
