"""Migrations in a running descheduler: killed, cut off, replaced, paused, and every way in which a place is lost."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koordinator.protocol import A_EVICTION_RECORD, A_SOFT_EVICTION
from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, POD_DISRUPTION_BUDGETS, PODS
from koord.api.model import to_dict
from koord.cli.commands.migration import build_migration_job
from koord.descheduler.migration.job import has_passed_arbitration
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.policy.eviction import parse_record
from tests.descheduler.descheduler_harness import DeschedulerHarness, run_in_harness
from tests.scheduler.faulty_cluster import WRITES, RequestFate


async def place_of(harness: DeschedulerHarness) -> Reservation:
    (found,) = await harness.reservations()
    return found


async def moved(harness: DeschedulerHarness, pod: str = "a", successor: str = "b") -> None:
    """The rest of the cluster does its part: scheduler, workload controller, scheduler again, kubelet."""
    place = await place_of(harness)
    await harness.place(place.metadata.name)
    await harness.settle()
    assert await harness.pod(pod) is None
    new = await harness.add_pod(successor, "n2")
    await harness.arrive(place.metadata.name, new)
    await harness.settle()


def test_the_whole_way() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        await harness.add_job()
        await harness.settle()
        assert one.evictions() == []
        await moved(harness)
        job = await harness.job()
        assert (job.status.phase, job.status.node_name) == ("Succeeded", "n2")
        assert job.status.pod_ref is not None
        assert job.status.pod_ref.name == "b"
        assert one.evictions() == ["a"]
        (record,) = one.descheduler.ledger
        assert (record.actor, record.rule, record.reason) == ("koord-descheduler", "PodMigrationJob", "NotSet")
        assert (record.key, record.node, record.outcome) == ("default/a", "n1", "evicted")
        assert (record.request, record.request_uid) == ("PodMigrationJob j", job.metadata.uid)
        events = unwrap(await harness.client.list(EVENTS_EVENTS, "default")).items
        (event,) = [event for event in events if event.reason == "Descheduled"]
        assert event.note == 'Pod evicted from node "n1" by the reason "NotSet"'
        assert (event.reporting_controller, event.action) == ("koord-descheduler", "Migrating")
        assert parse_record(event.metadata.annotations) == record

    run_in_harness(story)


async def protect(harness: DeschedulerHarness) -> None:
    """Make a disruption budget that allows no pod of the workload to go."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "rs"}}}
    body = {"metadata": {"name": "all", "namespace": "default"}, "spec": spec}
    budget = unwrap(await harness.client.create(POD_DISRUPTION_BUDGETS, body))
    seen = {"observedGeneration": budget.metadata.generation, "expectedPods": 1, "desiredHealthy": 1}
    status = {"status": {"disruptionsAllowed": 0, "currentHealthy": 1, **seen}}
    unwrap(
        await harness.client.patch(POD_DISRUPTION_BUDGETS, "all", status, "default", kind="merge", subresource="status")
    )


def test_a_refusal_by_a_disruption_budget_is_recorded_with_its_attempts() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start(evictQPS="10", evictBurst=5)
        await harness.add_pod("a")
        await protect(harness)
        await harness.add_job(mode="EvictDirectly", ttl="1m")
        await harness.settle(20)
        assert await harness.pod("a") is not None
        (record,) = one.descheduler.ledger
        assert record.outcome == "refused"
        assert "disruption budget" in record.detail
        assert record.count == len(one.evictions()) > 1

    run_in_harness(story)


def test_the_record_that_a_job_carries_names_who_asked() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        pod = to_dict(await harness.add_pod("a"))
        unwrap(
            await harness.client.create(
                POD_MIGRATION_JOBS, build_migration_job(pod, mode="EvictDirectly", at_once=True, reason="a new rack")
            )
        )
        await harness.settle()
        assert await harness.pod("a") is None
        (record,) = one.descheduler.ledger
        assert (record.actor, record.rule, record.reason) == ("koord-migrate", "EvictDirectly", "a new rack")
        assert (record.uid, record.outcome) == (pod["metadata"]["uid"], "evicted")
        assert record.request.startswith("PodMigrationJob a-")

    run_in_harness(story)


def test_a_pod_stays_until_its_place_is_ready_and_its_job_waits_only_so_long() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        await harness.add_job(ttl="2m")
        await harness.settle(119)
        assert (await harness.job()).status.phase == "Running"
        await harness.settle(6)
        job = await harness.job()
        assert (job.status.phase, job.status.reason) == ("Failed", "Timeout")
        assert await harness.pod("a") is not None
        assert await harness.reservations() == []
        assert one.evictions() == []
        await harness.settle(360)
        assert await harness.jobs() == []  # cleared away

    run_in_harness(story)


def test_a_paused_job_waits_for_its_approval() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        harness.start()
        await harness.add_pod("a")
        await harness.add_job(paused=True)
        await harness.settle(60)
        assert (await harness.job()).status.phase == ""
        assert await harness.reservations() == []
        unwrap(await harness.client.patch(POD_MIGRATION_JOBS, "j", {"spec": {"paused": False}}, kind="merge"))
        await harness.settle()
        await moved(harness)
        assert (await harness.job()).status.phase == "Succeeded"

    run_in_harness(story)


def test_a_soft_eviction_asks_and_somebody_else_does_it() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start(evictionPolicy="SoftEviction", defaultJobMode="EvictDirectly")
        await harness.add_pod("a")
        await harness.add_job()
        await harness.settle(20)
        pod = await harness.pod("a")
        assert pod is not None
        assert A_SOFT_EVICTION in pod.metadata.annotations
        assert (await harness.job()).status.reason == "Evicting"
        assert one.evictions() == []
        await harness.remove_pod("a")
        await harness.settle()
        assert (await harness.job()).status.phase == "Succeeded"

    run_in_harness(story)


@pytest.mark.parametrize("policy", ["Eviction", "Delete"])
def test_a_pod_that_takes_its_time_is_asked_once(policy: str) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start(evictionPolicy=policy, defaultJobMode="EvictDirectly")
        await harness.add_pod("a", grace=30)
        await harness.add_job()
        await harness.settle(20)
        pod = await harness.pod("a")
        assert pod is not None
        assert pod.metadata.deletion_timestamp is not None
        assert (await harness.job()).status.phase == "Running"
        await harness.remove_pod("a")
        await harness.settle()
        assert (await harness.job()).status.phase == "Succeeded"
        asked = [r for r in one.wire.requests if r.method == "DELETE" and r.path.endswith("/pods/a")]
        assert len(one.evictions()) + len(asked) == 1

    run_in_harness(story)


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
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        await harness.add_job()
        await harness.settle()
        name = (await place_of(harness)).metadata.name
        if trouble is None:
            unwrap(await harness.client.delete(RESERVATIONS, name))
        else:
            await harness.say(name, **trouble)
        await harness.settle()
        job = await harness.job()
        assert (job.status.phase, job.status.reason) == ("Failed", reason)
        assert await harness.pod("a") is not None
        assert one.evictions() == []

    run_in_harness(story)


def test_a_place_that_vanished_behind_the_watchs_back_is_noticed_before_the_eviction() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        await harness.add_job()
        await harness.settle()
        name = (await place_of(harness)).metadata.name
        one.wire.fate = lambda r: "503" if r.method == "PATCH" else "well"
        await harness.place(name)
        await harness.settle(1)
        one.wire.hold("/reservations")
        unwrap(await harness.client.delete(RESERVATIONS, name))
        one.wire.fate = lambda _: "well"
        await harness.settle(30)
        job = await harness.job()
        assert (job.status.phase, job.status.reason) == ("Failed", "MissingReservation")
        assert one.evictions() == []

    run_in_harness(story)


def test_budgets_hold_though_the_watch_has_not_shown_who_passed() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start(maxMigratingPerNode=1, maxMigratingPerWorkload=5, maxUnavailablePerWorkload=5)
        for name in ("a", "b", "c"):
            await harness.add_pod(name)
        await harness.settle(1)
        for name in ("a", "b", "c"):
            await harness.add_job(name, name)
        await harness.clock.sleep(0.01)
        one.wire.hold("/podmigrationjobs")
        await harness.settle(10)
        passed = [j for j in await harness.jobs() if has_passed_arbitration(j)]
        assert len(passed) == 1

    run_in_harness(story)


def test_another_pod_of_the_name_is_never_meant() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        await harness.add_job()
        await harness.settle()
        name = (await place_of(harness)).metadata.name
        await harness.remove_pod("a")
        other = await harness.add_pod("a")
        await harness.place(name)
        await harness.settle()
        job = await harness.job()
        assert (job.status.phase, job.status.reason) == ("Failed", "MissingPod")
        still = await harness.pod("a")
        assert still is not None
        assert still.metadata.uid == other.metadata.uid
        assert one.evictions() == []

    run_in_harness(story)


def test_a_successor_of_the_same_name_is_the_success_of_the_job() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        harness.start()
        await harness.add_pod("a")
        await harness.add_job()
        await harness.settle()
        await moved(harness, "a", "a")
        assert (await harness.job()).status.phase == "Succeeded"

    run_in_harness(story)


def test_deleting_a_job_gives_its_place_back_and_a_persons_own_place_is_left_alone() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        harness.start()
        await harness.add_pod("a")
        await harness.add_pod("c")
        await harness.add_job()
        template = {"metadata": {"name": "c"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        own = {
            "metadata": {"name": "mine"},
            "spec": {"template": template, "owners": [{"labelSelector": {}}], "ttl": "1h"},
        }
        unwrap(await harness.client.create(RESERVATIONS, own))
        await harness.add_job("k", "c", reservationOptions={"reservationRef": {"name": "mine"}})
        await harness.settle()
        assert len(await harness.reservations()) == 2
        unwrap(await harness.client.delete(POD_MIGRATION_JOBS, "j"))
        unwrap(await harness.client.delete(POD_MIGRATION_JOBS, "k"))
        await harness.settle()
        assert [r.metadata.name for r in await harness.reservations()] == ["mine"]

    run_in_harness(story)


# Outages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["lost", "lost-after", "409", "429", "500", "500-after", "503"])
def test_every_write_may_fail_once(fate: RequestFate) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        failed: set[tuple[str, str]] = set()

        def once(request: ApiRequest) -> RequestFate:
            key = (request.method, request.path)
            if request.method not in WRITES or key in failed or "/events" in request.path:
                return "well"
            failed.add(key)
            return fate

        one.wire.fate = once
        await harness.add_pod("a")
        await harness.add_job()
        await harness.settle(30)
        await harness.place((await place_of(harness)).metadata.name)
        await harness.settle(30)
        assert await harness.pod("a") is None
        new = await harness.add_pod("b", "n2")
        await harness.arrive((await place_of(harness)).metadata.name, new)
        await harness.settle(30)
        job = await harness.job()
        # An eviction whose answer was lost has no record: the pod is gone, and nobody can say by whom.
        allowed = {"Succeeded"} | ({"Failed"} if fate.endswith("after") else set())
        assert job.status.phase in allowed, job.status
        assert len(failed) == 4

    run_in_harness(story)


def test_an_outage_of_ten_minutes_in_the_middle() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start(defaultJobTTL="1h")
        await harness.add_pod("a")
        await harness.add_job()
        await harness.settle()
        one.wire.cut = True
        await one.wire.break_watches()
        await harness.place((await place_of(harness)).metadata.name)
        await harness.settle(600)
        assert await harness.pod("a") is not None
        one.wire.cut = False
        await harness.settle(120)
        assert await harness.pod("a") is None
        new = await harness.add_pod("b", "n2")
        await harness.arrive((await place_of(harness)).metadata.name, new)
        await harness.settle(30)
        assert (await harness.job()).status.phase == "Succeeded"
        assert one.evictions() == ["a"]

    run_in_harness(story)


# Two of them -------------------------------------------------------------------------------------------------------

STUCK = {"RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 1}}


def test_only_the_leader_acts_and_the_next_one_finishes_what_it_began() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start("one", elects=True)
        await harness.settle()
        two = harness.start("two", elects=True)
        await harness.add_pod("a")
        await harness.add_job(ttl="10m")
        await harness.settle()
        name = (await place_of(harness)).metadata.name
        assert not [r for r in two.wire.requests if r.method in WRITES and "/leases" not in r.path]
        await one.kill()
        await harness.place(name)
        await harness.settle(60)
        assert await harness.pod("a") is None
        assert (one.evictions(), two.evictions()) == ([], ["a"])
        new = await harness.add_pod("b", "n2")
        await harness.arrive(name, new)
        await harness.settle(10)
        assert (await harness.job()).status.phase == "Succeeded"
        assert [r.metadata.name for r in await harness.reservations()] == [name]

    run_in_harness(story)


@pytest.mark.parametrize("sent", range(1, 9))
def test_killed_after_any_write_the_next_process_brings_the_job_to_an_end(sent: int) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start("one")
        left = sent

        def dies(request: ApiRequest) -> RequestFate:
            nonlocal left
            if request.method in WRITES and "/events" not in request.path:
                left -= 1
                if left < 0:
                    one.wire.cut = True
                    one.wire.requests.remove(request)
                    return "lost"
            return "well"

        one.wire.fate = dies
        await harness.add_pod("a")
        await harness.add_job(ttl="30m")
        await harness.settle()
        for place in await harness.reservations():
            await harness.place(place.metadata.name)
        await harness.settle()
        await one.kill()
        two = harness.start("two")
        await harness.settle()
        for place in await harness.reservations():
            if place.status.phase != "Available":
                await harness.place(place.metadata.name)
        await harness.settle(15)
        assert await harness.pod("a") is None
        new = await harness.add_pod("b", "n2")
        for place in await harness.reservations():
            await harness.arrive(place.metadata.name, new)
        await harness.settle(15)
        job = await harness.job()
        assert job.status.phase in ("Succeeded", "Failed"), job.status
        assert len(await harness.reservations()) == 1
        assert one.evictions().count("a") + two.evictions().count("a") == 1
        if job.status.phase == "Failed":
            assert (job.status.reason, one.evictions()) == ("MissingPod", ["a"])

    run_in_harness(story)


# Proposals ---------------------------------------------------------------------------------------------------------


def test_a_round_makes_one_job_for_a_pod_however_slow_the_watch_is() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        pod = await harness.add_pod("a")
        restarts = {
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "i", "ready": True, "restartCount": 9}]
        }
        await harness.client.patch(
            PODS, pod.metadata.name, {"status": restarts}, "default", kind="merge", subresource="status"
        )
        one = harness.start(interval="2s", deschedule=STUCK)
        await harness.settle(30)
        (job,) = await harness.jobs()
        assert job.metadata.annotations["koordinator.sh/evict-trigger"] == "RemovePodsHavingTooManyRestarts"
        assert job.metadata.annotations["koordinator.sh/job-created-by"] == one.name
        assert job.spec.pod_ref is not None
        assert job.spec.pod_ref.uid == pod.metadata.uid
        assert A_EVICTION_RECORD not in job.metadata.annotations, "upstream's jobs carry no such annotation"

    run_in_harness(story)


def stuck(harness: DeschedulerHarness, name: str) -> Any:
    status = {"containerStatuses": [{"name": "c", "image": "i", "imageID": "i", "ready": True, "restartCount": 9}]}
    return harness.client.patch(PODS, name, {"status": status}, "default", kind="merge", subresource="status")


@pytest.mark.parametrize("args", [{"dry_run": True}, {"dryRun": True}], ids=["of-the-program", "of-the-evictor"])
def test_a_dry_run_evicts_nobody_and_is_recorded_as_one(args: dict[str, Any]) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        await harness.add_pod("a")
        await stuck(harness, "a")
        one = harness.start(interval="2s", deschedule=STUCK, **args)
        await harness.settle(30)
        assert await harness.jobs() == []
        (record,) = one.descheduler.ledger
        assert (record.rule, record.outcome) == ("RemovePodsHavingTooManyRestarts", "dry-run")
        assert record.count > 5
        events = unwrap(await harness.client.list(EVENTS_EVENTS, "default")).items
        assert "Descheduled" not in {event.reason for event in events}

    run_in_harness(story)


def test_the_default_evictor_evicts_at_once_and_records_it() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        await harness.add_pod("a")
        await harness.add_pod("b")
        for name in ("a", "b"):
            await stuck(harness, name)
        one = harness.start(interval="2s", deschedule=STUCK, evictor="DefaultEvictor")
        await harness.settle(10)
        assert await harness.pod("a") is None
        records = one.descheduler.ledger.records()
        assert {(one.name, one.node, one.outcome) for one in records} == {
            ("a", "n1", "evicted"),
            ("b", "n1", "evicted"),
        }
        events = unwrap(await harness.client.list(EVENTS_EVENTS, "default")).items
        told = {event.regarding.name: event for event in events if event.reason == "Descheduled"}
        assert told["a"].note == "pod evicted by RemovePodsHavingTooManyRestarts"
        assert parse_record(told["a"].metadata.annotations) in records

    run_in_harness(story)
