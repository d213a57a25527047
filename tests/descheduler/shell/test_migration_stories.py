"""Migrations in a running descheduler: killed, cut off, replaced, paused, and every way in which a place is lost."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.builtin import PODS
from koord.api.custom import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koord_scheduling import Reservation
from koord.api.protocol import A_SOFT_EVICTION
from koord.descheduler.migration.moves import has_passed
from koord.kube.refused import ok
from koord.kube.transport import Request
from tests.descheduler.shell.desk import Desk, at_desk
from tests.scheduler.shell.trouble import WRITES, Fate


async def place_of(desk: Desk) -> Reservation:
    (found,) = await desk.reservations()
    return found


async def moved(desk: Desk, pod: str = "a", successor: str = "b") -> None:
    """The rest of the cluster does its part: scheduler, workload controller, scheduler again, kubelet."""
    place = await place_of(desk)
    await desk.place(place.metadata.name)
    await desk.settle()
    assert await desk.pod(pod) is None
    new = await desk.add_pod(successor, "n2")
    await desk.arrive(place.metadata.name, new)
    await desk.settle()


def test_the_whole_way() -> None:
    async def story(desk: Desk) -> None:
        one = desk.start()
        await desk.add_pod("a")
        await desk.add_job()
        await desk.settle()
        assert one.evictions() == []
        await moved(desk)
        job = await desk.job()
        assert (job.status.phase, job.status.node_name) == ("Succeeded", "n2")
        assert job.status.pod_ref is not None
        assert job.status.pod_ref.name == "b"
        assert one.evictions() == ["a"]

    at_desk(story)


def test_a_pod_stays_until_its_place_is_ready_and_its_job_waits_only_so_long() -> None:
    async def story(desk: Desk) -> None:
        one = desk.start()
        await desk.add_pod("a")
        await desk.add_job(ttl="2m")
        await desk.settle(119)
        assert (await desk.job()).status.phase == "Running"
        await desk.settle(6)
        job = await desk.job()
        assert (job.status.phase, job.status.reason) == ("Failed", "Timeout")
        assert await desk.pod("a") is not None
        assert await desk.reservations() == []
        assert one.evictions() == []
        await desk.settle(360)
        assert await desk.jobs() == []  # cleared away

    at_desk(story)


def test_a_paused_job_waits_for_its_approval() -> None:
    async def story(desk: Desk) -> None:
        desk.start()
        await desk.add_pod("a")
        await desk.add_job(paused=True)
        await desk.settle(60)
        assert (await desk.job()).status.phase == ""
        assert await desk.reservations() == []
        ok(await desk.client.patch(POD_MIGRATION_JOBS, "j", {"spec": {"paused": False}}, kind="merge"))
        await desk.settle()
        await moved(desk)
        assert (await desk.job()).status.phase == "Succeeded"

    at_desk(story)


def test_a_soft_eviction_asks_and_somebody_else_does_it() -> None:
    async def story(desk: Desk) -> None:
        one = desk.start(evictionPolicy="SoftEviction", defaultJobMode="EvictDirectly")
        await desk.add_pod("a")
        await desk.add_job()
        await desk.settle(20)
        pod = await desk.pod("a")
        assert pod is not None
        assert A_SOFT_EVICTION in pod.metadata.annotations
        assert (await desk.job()).status.reason == "Evicting"
        assert one.evictions() == []
        await desk.remove_pod("a")
        await desk.settle()
        assert (await desk.job()).status.phase == "Succeeded"

    at_desk(story)


@pytest.mark.parametrize("policy", ["Eviction", "Delete"])
def test_a_pod_that_takes_its_time_is_asked_once(policy: str) -> None:
    async def story(desk: Desk) -> None:
        one = desk.start(evictionPolicy=policy, defaultJobMode="EvictDirectly")
        await desk.add_pod("a", grace=30)
        await desk.add_job()
        await desk.settle(20)
        pod = await desk.pod("a")
        assert pod is not None
        assert pod.metadata.deletion_timestamp is not None
        assert (await desk.job()).status.phase == "Running"
        await desk.remove_pod("a")
        await desk.settle()
        assert (await desk.job()).status.phase == "Succeeded"
        asked = [r for r in one.wire.requests if r.method == "DELETE" and r.path.endswith("/pods/a")]
        assert len(one.evictions()) + len(asked) == 1

    at_desk(story)


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        pytest.param({"phase": "Failed", "conditions": [{"type": "Ready", "reason": "Expired"}]}, "ReservationExpired"),
        pytest.param({"phase": "Failed"}, "Unschedulable"),
        pytest.param({"phase": "Available", "nodeName": "n1"}, "ForbiddenMigratePod", id="same-node"),
        pytest.param(
            {"phase": "Succeeded", "nodeName": "n2", "currentOwners": [{"name": "x", "uid": "x"}]},
            "ForbiddenMigratePod",
            id="taken",
        ),
        pytest.param(None, "MissingReservation", id="deleted"),
    ],
)
def test_a_lost_place_ends_the_job_and_the_pod_stays(trouble: dict[str, Any] | None, reason: str) -> None:
    async def story(desk: Desk) -> None:
        one = desk.start()
        await desk.add_pod("a")
        await desk.add_job()
        await desk.settle()
        name = (await place_of(desk)).metadata.name
        if trouble is None:
            ok(await desk.client.delete(RESERVATIONS, name))
        else:
            await desk.say(name, **trouble)
        await desk.settle()
        job = await desk.job()
        assert (job.status.phase, job.status.reason) == ("Failed", reason)
        assert await desk.pod("a") is not None
        assert one.evictions() == []

    at_desk(story)


def test_a_place_that_vanished_behind_the_watchs_back_is_noticed_before_the_eviction() -> None:
    async def story(desk: Desk) -> None:
        one = desk.start()
        await desk.add_pod("a")
        await desk.add_job()
        await desk.settle()
        name = (await place_of(desk)).metadata.name
        one.wire.fate = lambda r: "503" if r.method == "PATCH" else "well"
        await desk.place(name)
        await desk.settle(1)
        one.wire.hold("/reservations")
        ok(await desk.client.delete(RESERVATIONS, name))
        one.wire.fate = lambda _: "well"
        await desk.settle(30)
        job = await desk.job()
        assert (job.status.phase, job.status.reason) == ("Failed", "MissingReservation")
        assert one.evictions() == []

    at_desk(story)


def test_budgets_hold_though_the_watch_has_not_shown_who_passed() -> None:
    async def story(desk: Desk) -> None:
        one = desk.start(maxMigratingPerNode=1, maxMigratingPerWorkload=5, maxUnavailablePerWorkload=5)
        for name in ("a", "b", "c"):
            await desk.add_pod(name)
        await desk.settle(1)
        for name in ("a", "b", "c"):
            await desk.add_job(name, name)
        await desk.clock.sleep(0.01)
        one.wire.hold("/podmigrationjobs")
        await desk.settle(10)
        passed = [j for j in await desk.jobs() if has_passed(j)]
        assert len(passed) == 1

    at_desk(story)


def test_another_pod_of_the_name_is_never_meant() -> None:
    async def story(desk: Desk) -> None:
        one = desk.start()
        await desk.add_pod("a")
        await desk.add_job()
        await desk.settle()
        name = (await place_of(desk)).metadata.name
        await desk.remove_pod("a")
        other = await desk.add_pod("a")
        await desk.place(name)
        await desk.settle()
        job = await desk.job()
        assert (job.status.phase, job.status.reason) == ("Failed", "MissingPod")
        still = await desk.pod("a")
        assert still is not None
        assert still.metadata.uid == other.metadata.uid
        assert one.evictions() == []

    at_desk(story)


def test_a_successor_of_the_same_name_is_the_success_of_the_job() -> None:
    async def story(desk: Desk) -> None:
        desk.start()
        await desk.add_pod("a")
        await desk.add_job()
        await desk.settle()
        await moved(desk, "a", "a")
        assert (await desk.job()).status.phase == "Succeeded"

    at_desk(story)


def test_deleting_a_job_gives_its_place_back_and_a_persons_own_place_is_left_alone() -> None:
    async def story(desk: Desk) -> None:
        desk.start()
        await desk.add_pod("a")
        await desk.add_pod("c")
        await desk.add_job()
        template = {"metadata": {"name": "c"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        own = {
            "metadata": {"name": "mine"},
            "spec": {"template": template, "owners": [{"labelSelector": {}}], "ttl": "1h"},
        }
        ok(await desk.client.create(RESERVATIONS, own))
        await desk.add_job("k", "c", reservationOptions={"reservationRef": {"name": "mine"}})
        await desk.settle()
        assert len(await desk.reservations()) == 2
        ok(await desk.client.delete(POD_MIGRATION_JOBS, "j"))
        ok(await desk.client.delete(POD_MIGRATION_JOBS, "k"))
        await desk.settle()
        assert [r.metadata.name for r in await desk.reservations()] == ["mine"]

    at_desk(story)


# Outages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["lost", "lost-after", "409", "429", "500", "500-after", "503"])
def test_every_write_may_fail_once(fate: Fate) -> None:
    async def story(desk: Desk) -> None:
        one = desk.start()
        failed: set[tuple[str, str]] = set()

        def once(request: Request) -> Fate:
            key = (request.method, request.path)
            if request.method not in WRITES or key in failed or "/events" in request.path:
                return "well"
            failed.add(key)
            return fate

        one.wire.fate = once
        await desk.add_pod("a")
        await desk.add_job()
        await desk.settle(30)
        await desk.place((await place_of(desk)).metadata.name)
        await desk.settle(30)
        assert await desk.pod("a") is None
        new = await desk.add_pod("b", "n2")
        await desk.arrive((await place_of(desk)).metadata.name, new)
        await desk.settle(30)
        job = await desk.job()
        # An eviction whose answer was lost has no record: the pod is gone, and nobody can say by whom.
        allowed = {"Succeeded"} | ({"Failed"} if fate.endswith("after") else set())
        assert job.status.phase in allowed, job.status
        assert len(failed) == 4

    at_desk(story)


def test_an_outage_of_ten_minutes_in_the_middle() -> None:
    async def story(desk: Desk) -> None:
        one = desk.start(defaultJobTTL="1h")
        await desk.add_pod("a")
        await desk.add_job()
        await desk.settle()
        one.wire.cut = True
        await one.wire.break_watches()
        await desk.place((await place_of(desk)).metadata.name)
        await desk.settle(600)
        assert await desk.pod("a") is not None
        one.wire.cut = False
        await desk.settle(120)
        assert await desk.pod("a") is None
        new = await desk.add_pod("b", "n2")
        await desk.arrive((await place_of(desk)).metadata.name, new)
        await desk.settle(30)
        assert (await desk.job()).status.phase == "Succeeded"
        assert one.evictions() == ["a"]

    at_desk(story)


# Two of them -------------------------------------------------------------------------------------------------------

STUCK = {"RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 1}}


def test_only_the_leader_acts_and_the_next_one_finishes_what_it_began() -> None:
    async def story(desk: Desk) -> None:
        one = desk.start("one", elects=True)
        await desk.settle()
        two = desk.start("two", elects=True)
        await desk.add_pod("a")
        await desk.add_job(ttl="10m")
        await desk.settle()
        name = (await place_of(desk)).metadata.name
        assert not [r for r in two.wire.requests if r.method in WRITES and "/leases" not in r.path]
        await one.kill()
        await desk.place(name)
        await desk.settle(60)
        assert await desk.pod("a") is None
        assert (one.evictions(), two.evictions()) == ([], ["a"])
        new = await desk.add_pod("b", "n2")
        await desk.arrive(name, new)
        await desk.settle(10)
        assert (await desk.job()).status.phase == "Succeeded"
        assert [r.metadata.name for r in await desk.reservations()] == [name]

    at_desk(story)


@pytest.mark.parametrize("sent", range(1, 9))
def test_killed_after_any_write_the_next_process_brings_the_job_to_an_end(sent: int) -> None:
    async def story(desk: Desk) -> None:
        one = desk.start("one")
        left = sent

        def dies(request: Request) -> Fate:
            nonlocal left
            if request.method in WRITES and "/events" not in request.path:
                left -= 1
                if left < 0:
                    one.wire.cut = True
                    one.wire.requests.remove(request)
                    return "lost"
            return "well"

        one.wire.fate = dies
        await desk.add_pod("a")
        await desk.add_job(ttl="30m")
        await desk.settle()
        for place in await desk.reservations():
            await desk.place(place.metadata.name)
        await desk.settle()
        await one.kill()
        two = desk.start("two")
        await desk.settle()
        for place in await desk.reservations():
            if place.status.phase != "Available":
                await desk.place(place.metadata.name)
        await desk.settle(15)
        assert await desk.pod("a") is None
        new = await desk.add_pod("b", "n2")
        for place in await desk.reservations():
            await desk.arrive(place.metadata.name, new)
        await desk.settle(15)
        job = await desk.job()
        assert job.status.phase in ("Succeeded", "Failed"), job.status
        assert len(await desk.reservations()) == 1
        assert one.evictions().count("a") + two.evictions().count("a") == 1
        if job.status.phase == "Failed":
            assert (job.status.reason, one.evictions()) == ("MissingPod", ["a"])

    at_desk(story)


# Proposals ---------------------------------------------------------------------------------------------------------


def test_a_round_makes_one_job_for_a_pod_however_slow_the_watch_is() -> None:
    async def story(desk: Desk) -> None:
        pod = await desk.add_pod("a")
        restarts = {
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "i", "ready": True, "restartCount": 9}]
        }
        await desk.client.patch(
            PODS, pod.metadata.name, {"status": restarts}, "default", kind="merge", subresource="status"
        )
        one = desk.start(interval="2s", deschedule=STUCK)
        await desk.settle(30)
        (job,) = await desk.jobs()
        assert job.metadata.annotations["koordinator.sh/evict-trigger"] == "RemovePodsHavingTooManyRestarts"
        assert job.metadata.annotations["koordinator.sh/job-created-by"] == one.name
        assert job.spec.pod_ref is not None
        assert job.spec.pod_ref.uid == pod.metadata.uid

    at_desk(story)
