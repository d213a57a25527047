"""The next step of one job, for everything that can be known of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.api.koordinator.protocol import A_EVICT_REASON, A_EVICT_TRIGGER
from koord.api.koordinator.scheduling import PodMigrationJob, Reservation
from koord.api.kubernetes.pod import Pod
from koord.descheduler.migration.step import (
    CreateReservation,
    DeleteJobReservation,
    EvictPod,
    MigrationFacts,
    MigrationStep,
    NormalizeReservationTtl,
    SetPodUid,
    next_step,
)
from tests.descheduler.cluster_builders import NOW_S, make_pod
from tests.descheduler.migration_builders import make_job, make_reservation, ready_pod

POD = ready_pod("a", "n1")
GONE: Pod | None = None


def facts(**given: Any) -> MigrationFacts:
    return MigrationFacts(**{"now_s": NOW_S, "default_mode": "ReservationFirst", "pod": POD, **given})


def ended(taken: MigrationStep) -> tuple[str, str]:
    assert taken.status is not None
    return taken.status.phase, taken.status.reason


def conditions(*given: tuple[str, str] | tuple[str, str, str]) -> dict[str, Any]:
    return {"conditions": [dict(zip(("type", "status", "reason"), one, strict=False)) for one in given]}


CREATED = ("ReservationCreated", "True")
SCHEDULED = ("ReservationScheduled", "True")
EVICTING = ("Eviction", "False", "Evicting")
EVICTED = ("Eviction", "True", "EvictComplete")


def running(*told: Any, reservation: str = "r", **given: Any) -> PodMigrationJob:
    return make_job(phase="Running", reservation=reservation, status=conditions(*told), **given)


# Before it starts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(make_job(paused=True), id="paused"),
        pytest.param(make_job(paused=True, ttl="1m", age_s=3600), id="paused-and-late"),
        pytest.param(make_job(phase="Succeeded"), id="succeeded"),
        pytest.param(make_job(phase="Failed"), id="failed"),
        pytest.param(make_job(phase="Aborted"), id="aborted-by-a-person"),
    ],
)
def test_nothing_is_done_for_jobs_that_are_paused_or_over(job: PodMigrationJob) -> None:
    assert next_step(job, facts()) == MigrationStep()


@pytest.mark.parametrize("phase", ["", "Pending", "Running"])
@pytest.mark.parametrize(("age_s", "late"), [(299.0, False), (300.0, True)])
def test_a_job_that_is_too_old_fails_and_gives_its_place_back(phase: str, age_s: float, late: bool) -> None:
    job = make_job(phase=phase, ttl="5m", age_s=age_s, reservation="r")
    taken = next_step(job, facts(reservation=make_reservation()))
    assert (taken.action == DeleteJobReservation("r")) is late
    assert (taken.status is not None and ended(taken) == ("Failed", "Timeout")) is late


@pytest.mark.parametrize("ttl", [None, "0s"])
def test_without_a_ttl_a_job_is_never_late(ttl: str | None) -> None:
    assert ended(next_step(make_job(ttl=ttl, age_s=1e7), facts())) == ("Running", "")


@pytest.mark.parametrize(
    ("job", "pod", "expected"),
    [
        pytest.param(make_job(pod=""), POD, ("Failed", "InvalidPodRef"), id="no-name"),
        pytest.param(make_job(namespace=""), POD, ("Failed", "InvalidPodRef"), id="no-namespace"),
        pytest.param(make_job(), None, ("Failed", "MissingPod"), id="no-such-pod"),
        pytest.param(make_job(uid="older"), POD, ("Failed", "MissingPod"), id="another-of-that-name"),
        pytest.param(make_job(), POD, ("Running", ""), id="there"),
    ],
)
def test_beginning(job: PodMigrationJob, pod: Pod | None, expected: tuple[str, str]) -> None:
    assert ended(next_step(job, facts(pod=pod))) == expected


@pytest.mark.parametrize("phase", ["", "Pending", "Running"])
def test_a_job_that_names_no_uid_gets_the_one_of_now(phase: str) -> None:
    taken = next_step(make_job(uid="", phase=phase), facts())
    assert taken.action == SetPodUid("default-a")
    assert ended(taken) == ("Running", "")


# Limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "waits"),
    [
        pytest.param(running(CREATED, SCHEDULED), True, id="before-the-eviction"),
        pytest.param(running(CREATED, SCHEDULED, EVICTING), False, id="not-for-its-own-eviction"),
        pytest.param(
            running(CREATED, SCHEDULED, annotations={"descheduler.alpha.kubernetes.io/evict": "true"}),
            False,
            id="not-if-it-says-so",
        ),
    ],
)
def test_evictions_of_a_workload_follow_each_other_slowly(job: PodMigrationJob, waits: bool) -> None:
    place = make_reservation(phase="Available", node="n2")
    taken = next_step(
        job, facts(reservation=place, rate_limit_reason="another pod of its workload was evicted a moment ago")
    )
    assert (taken == MigrationStep(requeue_after_s=3.0)) is (waits or job.status.conditions[-1].reason == "Evicting")


# Without a reservation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "default", "direct"),
    [
        ("EvictDirectly", "ReservationFirst", True),
        ("", "EvictDirectly", True),
        ("", "ReservationFirst", False),
        ("ReservationFirst", "EvictDirectly", False),
    ],
)
def test_mode_of_the_job_or_else_of_the_program(mode: str, default: str, direct: bool) -> None:
    taken = next_step(make_job(phase="Running", mode=mode), facts(default_mode=default))
    assert isinstance(taken.action, EvictPod if direct else CreateReservation)


def test_direct_eviction_succeeds_when_the_pod_is_gone() -> None:
    job = make_job(phase="Running", mode="EvictDirectly", status=conditions(EVICTING))
    assert next_step(job, facts()) == MigrationStep(requeue_after_s=3.0)
    gone = next_step(job, facts(pod=GONE))
    assert gone.status is not None
    assert gone.status.reason == "EvictComplete"
    after = make_job(phase="Running", mode="EvictDirectly", status=conditions(EVICTED))
    done = next_step(after, facts(pod=GONE))
    assert done.status is not None
    assert (done.status.phase, done.status.status) == ("Succeeded", "Complete")
    assert done.status.message == 'Pod "default/a" has been evicted'


def test_words_of_an_eviction_name_its_reason() -> None:
    annotations = {A_EVICT_REASON: "too hot", A_EVICT_TRIGGER: "LowNodeLoad"}
    taken = next_step(make_job(phase="Running", mode="EvictDirectly", annotations=annotations), facts())
    assert taken.event is not None
    assert taken.event.message == 'Pod "default/a" evicted from node "n1" by the reason "too hot"'
    nameless = next_step(make_job(phase="Running", mode="EvictDirectly"), facts())
    assert nameless.event is not None
    assert nameless.event.message.endswith('by the reason "NotSet"')


# With one ----------------------------------------------------------------------------------------------------------


def test_a_place_is_made_for_the_pod_that_is_meant_only() -> None:
    job = make_job(phase="Running")
    assert next_step(job, facts()).action == CreateReservation()
    assert ended(next_step(job, facts(pod=None))) == ("Failed", "MissingPod")
    other = make_pod("a", "n1", metadata={"uid": "another"})
    assert ended(next_step(job, facts(pod=other))) == ("Failed", "MissingPod")


def test_a_named_reservation_that_is_not_there_ends_the_job() -> None:
    assert ended(next_step(running(), facts())) == ("Failed", "MissingReservation")
    assert ended(next_step(running(CREATED, SCHEDULED, EVICTED), facts(pod=None))) == ("Failed", "MissingReservation")


def test_a_persons_reservation_gets_its_ttl_tidied_first() -> None:
    theirs = make_reservation(ttl="60m")
    theirs.metadata.labels.clear()
    assert next_step(running(), facts(reservation=theirs)).action == NormalizeReservationTtl("r", "1h0m0s", "res-r")
    ours = make_reservation(ttl="60m")
    assert next_step(running(), facts(reservation=ours)).action is None


FAILED = [{"type": "Scheduled", "status": "False", "message": "0/3 nodes fit"}]
EXPIRED = [{"type": "Ready", "status": "False", "reason": "Expired"}]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        pytest.param(make_reservation(phase="Failed", conditions=EXPIRED), "ReservationExpired", id="expired"),
        pytest.param(make_reservation(phase="Failed", node="n2"), "Unschedulable", id="failed-with-a-node"),
        pytest.param(make_reservation(phase="Available"), "Unschedulable", id="no-node"),
        pytest.param(make_reservation(phase="Available", node="n1"), "ForbiddenMigratePod", id="the-pods-own-node"),
    ],
)
def test_places_that_end_a_job(place: Reservation, expected: str) -> None:
    assert ended(next_step(running(CREATED), facts(reservation=place))) == ("Failed", expected)


def test_a_place_that_is_not_found_yet_is_waited_for() -> None:
    assert next_step(running(CREATED), facts(reservation=make_reservation(phase="Pending"))) == MigrationStep(
        requeue_after_s=3.0
    )
    refused = make_reservation(phase="Pending", conditions=FAILED)
    told = next_step(running(CREATED), facts(reservation=refused))
    assert told.status is not None
    assert (told.status.phase, told.status.reason, told.status.message) == (
        "Running",
        "Unschedulable",
        "0/3 nodes fit",
    )
    again = next_step(make_job(phase="Running", reservation="r", status=_plain(told)), facts(reservation=refused))
    assert again == MigrationStep(requeue_after_s=3.0)


def _plain(taken: MigrationStep) -> dict[str, Any]:
    assert taken.status is not None
    return {
        "conditions": [
            {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message}
            for c in taken.status.conditions
        ]
    }


def test_a_found_place_is_written_down() -> None:
    taken = next_step(running(CREATED), facts(reservation=make_reservation(phase="Available", node="n2")))
    assert taken.status is not None
    assert (taken.status.node_name, taken.status.status) == ("n2", "ReservationScheduled")
    assert taken.event is not None
    assert taken.event.message == 'Assigned Reservation "r" to node "n2"'


SAFE = running(CREATED, SCHEDULED)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        pytest.param(make_reservation(phase="Succeeded", node="n2", owner="x"), "ForbiddenMigratePod", id="taken"),
        pytest.param(
            make_reservation(phase="Available", node="n2", owner="x"), "ForbiddenMigratePod", id="taken-a-moment-ago"
        ),
        pytest.param(make_reservation(phase="Failed", node="n2"), "ReservationExpired", id="failed-since"),
        pytest.param(None, "MissingReservation", id="gone"),
    ],
)
def test_nobody_leaves_for_a_place_that_is_lost(place: Reservation | None, expected: str) -> None:
    taken = next_step(SAFE, facts(reservation=place))
    assert taken.action is None
    assert ended(taken) == ("Failed", expected)


def test_a_place_for_many_may_have_others_in_it() -> None:
    shared = make_reservation(phase="Available", node="n2", owner="x", allocateOnce=False)
    assert isinstance(next_step(SAFE, facts(reservation=shared)).action, EvictPod)


def test_the_pod_leaves_once_its_place_is_certain() -> None:
    taken = next_step(SAFE, facts(reservation=make_reservation(phase="Available", node="n2")))
    assert taken.action == EvictPod(POD)
    assert taken.status is not None
    assert taken.status.reason == "Evicting"
    assert taken.requeue_after_s == 3.0


def test_a_pod_that_is_going_already_is_not_asked_again() -> None:
    going = ready_pod("a", "n1", metadata={"deletionTimestamp": "2027-01-15T08:00:00Z"})
    taken = next_step(SAFE, facts(pod=going, reservation=make_reservation(phase="Available", node="n2")))
    assert taken.action is None
    assert taken.status is not None
    assert taken.status.reason == "Evicting"


@pytest.mark.parametrize("pod", [None, ready_pod("a", "n3", metadata={"uid": "next"})], ids=["gone", "same-name"])
def test_gone_before_we_asked_is_missing_and_after_it_is_done(pod: Pod | None) -> None:
    place = make_reservation(phase="Available", node="n2")
    assert ended(next_step(SAFE, facts(pod=pod, reservation=place))) == ("Failed", "MissingPod")
    asked = next_step(running(CREATED, SCHEDULED, EVICTING), facts(pod=pod, reservation=place))
    assert asked.action is None
    assert asked.status is not None
    assert asked.status.reason == "EvictComplete"


def test_a_place_taken_while_the_pod_leaves_lets_the_job_go_on() -> None:
    place = make_reservation(phase="Succeeded", node="n2", owner="b")
    leaving = running(CREATED, SCHEDULED, EVICTING)
    assert next_step(leaving, facts(reservation=place)) == MigrationStep(requeue_after_s=3.0)
    gone = next_step(leaving, facts(pod=None, reservation=place))
    assert gone.status is not None
    assert gone.status.reason == "EvictComplete"


# The successor -----------------------------------------------------------------------------------------------------

LEFT = (CREATED, SCHEDULED, EVICTED)


def test_waiting_for_somebody_to_come() -> None:
    place = make_reservation(phase="Available", node="n2")
    taken = next_step(running(*LEFT), facts(pod=None, reservation=place))
    assert taken.status is not None
    assert taken.status.reason == "WaitForPodBindReservation"
    waiting = ("PodBoundReservation", "False", "WaitForPodBindReservation")
    assert next_step(running(*LEFT, waiting), facts(pod=None, reservation=place)) == MigrationStep(requeue_after_s=3.0)


def test_the_successor_is_named_then_waited_for_then_done() -> None:
    place = make_reservation(phase="Succeeded", node="n2", owner="b")
    named = next_step(running(*LEFT), facts(pod=None, reservation=place))
    assert named.status is not None
    assert named.status.pod_ref is not None
    assert (named.status.pod_ref.uid, named.status.status) == ("default-b", "ReservationBound")
    bound = (*LEFT, ("ReservationBound", "True"))
    early = next_step(running(*bound), facts(pod=None, reservation=place, successor=make_pod("b", "n2")))
    assert early.status is not None
    assert early.status.reason == "WaitForBoundPodReady"
    assert early.requeue_after_s == 3.0
    for successor in (ready_pod("b", "n2"), None):  # one that went again does not hold the job up
        ready = next_step(running(*bound), facts(pod=None, reservation=place, successor=successor))
        assert ready.status is not None
        assert ready.status.status == "BoundPodReady"
    last = next_step(running(*bound, ("BoundPodReady", "True")), facts(pod=None, reservation=place))
    assert last.status is not None
    assert (last.status.phase, last.status.status, last.status.message) == (
        "Succeeded",
        "Complete",
        'Bind Pod "default/b" in Reservation "r"',
    )


# A pod that had no node --------------------------------------------------------------------------------------------


def test_a_pending_pod_is_only_given_a_place() -> None:
    owners = [{"object": {"kind": "Pod", "name": "a", "namespace": "default", "uid": "default-a"}}]
    place = make_reservation(phase="Available", node="n2", owners=owners)
    pending = make_pod("a", "", status={"phase": "Pending"})
    job = running(CREATED, SCHEDULED)
    waits = next_step(job, facts(pod=pending, reservation=place))
    assert waits.action is None
    assert waits.status is not None
    assert waits.status.reason == "Unschedulable"
    placed = make_pod("a", "n2", status={"conditions": [{"type": "PodScheduled", "status": "True"}]})
    done = next_step(job, facts(pod=placed, reservation=place))
    assert done.status is not None
    assert (done.status.phase, done.status.message) == ("Succeeded", 'Assign Pod "default/a" to node "n2"')
    taken = make_reservation(phase="Succeeded", node="n2", owner="x", owners=owners)
    assert ended(next_step(job, facts(pod=pending, reservation=taken))) == ("Failed", "ForbiddenMigratePod")
    assert ended(next_step(job, facts(pod=None, reservation=place))) == ("Failed", "MissingPod")


# A reservation that a person names ---------------------------------------------------------------------------------


def named_by_a_person(**spec: Any) -> Reservation:
    found = make_reservation(phase="Available", node="n2", **spec)
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, labels={}))


def test_a_place_for_a_name_that_comes_back_is_one_for_a_successor() -> None:
    place = named_by_a_person(owners=[{"object": {"name": "a", "namespace": "default"}}])
    taken = next_step(running(CREATED, SCHEDULED), facts(reservation=place))
    assert isinstance(taken.action, EvictPod)


def test_a_place_that_cannot_take_the_pod_ends_the_job_until_the_eviction_and_not_after() -> None:
    known = facts(reservation=named_by_a_person(), reservation_misfit="its owners do not select the pod")
    for told in ((), (CREATED,), (CREATED, SCHEDULED)):
        taken = next_step(running(*told), known)
        assert (ended(taken), taken.action) == (("Failed", "ForbiddenMigratePod"), None)
    assert next_step(running(CREATED, SCHEDULED, EVICTING), known) == MigrationStep(requeue_after_s=3.0)
