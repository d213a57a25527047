"""What holds for every migration: writes name the very object that is meant, nothing is written without a reason, and
no object is needed so much that its disappearance stops the others.
"""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.kubernetes.builtin_kinds import NODES, PODS, REPLICA_SETS
from koord.api.kubernetes.resource import Resource
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from tests.descheduler.descheduler_harness import DeschedulerHarness, run_in_harness
from tests.descheduler.migration.test_kill_and_restart import Cluster, is_ours
from tests.descheduler.migration.test_migration_controller import place_of
from tests.descheduler.migration.test_reservation_fit import MINE, reserve


def stated_uid(request: ApiRequest) -> str:
    """Return the uid that the request is limited to."""
    assert isinstance(request.body, dict), request
    options = request.body.get("deleteOptions") or request.body
    found: str = (options.get("preconditions") or request.body.get("metadata") or {}).get("uid", "")
    return found


@pytest.mark.parametrize("policy", ["Eviction", "Delete", "SoftEviction"])
@pytest.mark.parametrize("named", [False, True], ids=["made-by-us", "named-by-a-person"])
def test_every_write_names_the_object_that_it_was_decided_on(policy: str, named: bool) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start(evictionPolicy=policy)
        cluster = Cluster(harness, replacement="b")
        await harness.add_pod("a")
        if named:
            await reserve(harness, labels={"team": "x"}, ttl="1h")
        spec: dict[str, Any] = {"reservationOptions": MINE} if named else {}
        await harness.add_job(ttl="3m", **spec)
        for _ in range(4):
            await harness.settle()
            await cluster.act()
            if policy == "SoftEviction":
                await harness.remove_pod("a")
        await harness.settle(700)
        writes = [request for request in one.wire.requests if is_ours(request)]
        changes = [r for r in writes if r.method != "POST" or r.path.endswith("/eviction")]
        assert len(changes) > 5
        assert [f"{r.method} {r.path}" for r in changes if not stated_uid(r)] == []

    run_in_harness(story)


def test_cordons_and_annotations_name_their_object_as_well() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        for node, level in (("n1", "dear"), ("n2", "cheap"), ("n3", "cheap")):
            unwrap(await harness.client.patch(NODES, node, {"metadata": {"labels": {"level": level}}}, kind="merge"))
        levels = [{"name": name, "nodeSelector": {"matchLabels": {"level": name}}} for name in ("dear", "cheap")]
        drain = {"mode": "DrainNode", "autoCordon": True, "evictionOrder": levels}
        for plugin, args in (("CustomPriority", drain), ("ScaleDownBinPack", {})):
            await harness.add_pod(f"p-{plugin.lower()}")
            one = harness.start(plugin, balance={plugin: args})
            await harness.settle()
            changes = [r for r in one.wire.requests if is_ours(r) and r.method == "PATCH"]
            aims = [r for r in changes if "/nodes/" in r.path or "/pods/" in r.path]
            assert aims
            assert [r.path for r in aims if not stated_uid(r)] == []
            await one.stop()

    run_in_harness(story)


def test_a_job_that_waits_writes_nothing() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        await harness.add_pod("c")
        await harness.add_job("waits-for-a-place", "a", ttl="1h")
        await harness.add_job("is-paused", "c", ttl="1h", paused=True)
        await harness.settle(30)
        before = len([r for r in one.wire.requests if is_ours(r)])
        await harness.settle(600)
        assert [f"{r.method} {r.path}" for r in one.wire.requests if is_ours(r)][before:] == []

    run_in_harness(story)


def test_a_job_that_is_deleted_while_the_watch_is_broken_gives_its_place_back() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        await harness.add_job(ttl="1h")
        await harness.settle()
        assert len(await harness.reservations()) == 1
        one.wire.cut = True
        await one.wire.break_watches()
        unwrap(await harness.client.delete(POD_MIGRATION_JOBS, "j"))
        await harness.settle(10)
        one.wire.cut = False
        await harness.settle(60)
        assert await harness.reservations() == []

    run_in_harness(story)


STEPS = ("begun", "reserved", "placed", "evicted", "bound")
VICTIMS: dict[str, Resource[Any]] = {
    "pod": PODS,
    "job": POD_MIGRATION_JOBS,
    "reservation": RESERVATIONS,
    "node": NODES,
    "workload": REPLICA_SETS,
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_any_object_may_vanish_at_any_step(victim: str, step: str) -> None:
    """The job of whatever lost its object ends, and the next job is carried out as if nothing had happened."""

    async def story(harness: DeschedulerHarness) -> None:
        free: dict[str, Any] = {"objectLimiters": {"workload": {"duration": "0s"}}}
        harness.start(maxMigratingPerWorkload=5, maxUnavailablePerWorkload=5, **free)
        await harness.add_workload("other")
        await harness.add_pod("a")
        await harness.add_pod("z", owner="other")
        await harness.add_job(ttl="2m")
        for now in STEPS:
            if now == "reserved":
                await harness.settle()
            elif now == "placed":
                await harness.place((await place_of(harness)).metadata.name)
            elif now == "evicted":
                await harness.settle()
            elif now == "bound":
                await harness.arrive((await place_of(harness)).metadata.name, await harness.add_pod("b", "n2"))
            if now == step:
                break
        await vanish(harness, victim)
        await harness.settle(200)
        assert all(job.status.phase in ("Succeeded", "Failed") for job in await harness.jobs())
        await harness.add_job("next", "z", mode="EvictDirectly", ttl="2m")
        await harness.settle(30)
        assert (await harness.job("next")).status.phase == "Succeeded"

    run_in_harness(story)


async def vanish(harness: DeschedulerHarness, victim: str) -> None:
    names = {"pod": "a", "job": "j", "node": "n2", "workload": "rs"}
    if victim == "reservation":
        for place in await harness.reservations():
            await harness.client.delete(RESERVATIONS, place.metadata.name)
        return
    space = "default" if victim in ("pod", "workload") else None
    grace = 0 if victim == "pod" else None
    await harness.client.delete(VICTIMS[victim], names[victim], space, grace_seconds=grace)


def of_template(template: Any) -> dict[str, Any]:
    return {"reservationOptions": {"template": template}}


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        pytest.param({"ttl": "soon"}, "InvalidSpec", "spec.ttl: ", id="ttl"),
        pytest.param({"mode": "Sideways"}, "InvalidSpec", "spec.mode: 'Sideways' is neither", id="mode"),
        pytest.param(of_template({"spec": "x"}), "InvalidSpec", "template.spec: must be a map", id="spec"),
        pytest.param(of_template({"metadata": "x"}), "InvalidSpec", "template.metadata: must be", id="metadata"),
        pytest.param(of_template({"spec": {"template": "x"}}), "InvalidSpec", "spec.template: must", id="pod"),
        pytest.param(
            of_template({"spec": {"template": {"spec": {"affinity": "x"}}}}), "InvalidSpec", "affinity: ", id="affinity"
        ),
        pytest.param(of_template({"spec": {"owners": "x"}}), "FailedCreateReservation", "spec.owners", id="owners"),
        pytest.param({"reservationOptions": {"reservationRef": {"name": "odd"}}}, "", "", id="ttl-of-a-reservation"),
    ],
)
def test_a_job_that_cannot_be_understood_fails_and_stops_nobody_else(
    spec: dict[str, Any], reason: str, words: str
) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        free: dict[str, Any] = {"objectLimiters": {"workload": {"duration": "0s"}}}
        one = harness.start(maxMigratingPerWorkload=5, maxUnavailablePerWorkload=5, **free)
        await reserve(harness, "odd", ttl="soon")
        await harness.add_pod("a")
        await harness.add_pod("z")
        await harness.add_job("bad", "a", **spec)
        await harness.settle(20)
        await harness.add_job("good", "z", mode="EvictDirectly")
        await harness.settle(20)
        assert (await harness.job("good")).status.phase == "Succeeded"
        status = (await harness.job("bad")).status
        assert (status.phase, status.reason) == ("Failed", reason) if reason else status.phase == "Running"
        assert words in status.message
        assert one.evictions() == (["z"] if reason else ["a", "z"])
        await harness.settle(40 * 60)
        assert await harness.jobs() == []

    run_in_harness(story)
