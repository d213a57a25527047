"""A reservation that a person names in a job must be able to take the pod's successor, or nobody is evicted."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.protocol import L_RESERVATION_ORDER
from koord.api.kubernetes.builtin_kinds import NODES
from koord.descheduler.migration.reservation_fit import reservation_misfit
from koord.kube.transport.api_error import unwrap
from tests.descheduler.cluster_builders import make_node, make_pod, make_snapshot
from tests.descheduler.descheduler_harness import DeschedulerHarness, run_in_harness
from tests.descheduler.migration.test_migration_controller import place_of
from tests.descheduler.migration_builders import make_reservation, ready_pod

OF_APP = [{"labelSelector": {"matchLabels": {"app": "rs"}}}]
OF_X = [{"labelSelector": {"matchLabels": {"app": "x"}}}]
CONTROLLED_BY_X = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x"}
AFFINITY = "scheduling.koordinator.sh/reservation-affinity"
IGNORED = "scheduling.koordinator.sh/reservation-ignored"
NOT_OWNED = "its owners do not select the pod that will replace it"
MINE = {"reservationRef": {"name": "mine"}}


async def reserve(
    harness: DeschedulerHarness,
    name: str = "mine",
    *,
    owners: list[dict[str, Any]] = OF_APP,
    cpu: str = "",
    node: str = "n2",
    labels: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> None:
    """Make a reservation that koord-scheduler has placed."""
    amounts = {"cpu": cpu} if cpu else {}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts}}
    body = {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"template": {"spec": {"containers": [container]}}, "owners": owners, "ttl": "1h0m0s", **spec},
    }
    unwrap(await harness.client.create(RESERVATIONS, body))
    await harness.say(name, **{"phase": "Available", "nodeName": node, "allocatable": amounts, **(status or {})})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param({"owners": OF_X}, NOT_OWNED, id="label"),
        pytest.param({"owners": [{"controller": CONTROLLED_BY_X}]}, NOT_OWNED, id="controller"),
        pytest.param({"owners": [{**OF_APP[0], "controller": CONTROLLED_BY_X}]}, NOT_OWNED, id="both"),
        pytest.param({"owners": [{"object": {"name": "a", "namespace": "default"}}]}, NOT_OWNED, id="this-very-pod"),
        pytest.param({"unschedulable": True}, "it is unschedulable", id="unschedulable"),
        pytest.param({"node": "n9"}, "node n9 does not exist", id="no-node"),
        pytest.param({"node": "n3"}, "node n3 does not take the pod: pod does not tolerate taints", id="taint"),
        pytest.param({"node": "n1"}, "", id="own-node"),
        pytest.param({"status": {"phase": "Failed"}}, "", id="failed"),
        pytest.param({"status": {"phase": "Succeeded"}}, "", id="used-up"),
        pytest.param({"status": {"currentOwners": [{"name": "x", "uid": "x"}]}}, "", id="taken"),
    ],
)
def test_a_reservation_that_cannot_take_the_pod_ends_the_job(given: dict[str, Any], why: str) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        taint = {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
        unwrap(await harness.client.patch(NODES, "n3", taint, kind="merge"))
        await harness.add_pod("a")
        await reserve(harness, **given)
        await harness.add_job(reservationOptions=MINE)
        await harness.settle(30)
        status = (await harness.job()).status
        assert status.phase == "Failed"
        if why:
            assert status.reason == "ForbiddenMigratePod"
            assert status.message.startswith('Reservation "mine" cannot take Pod "default/a": ')
        assert why in status.message
        assert one.evictions() == []
        assert [r.metadata.name for r in await harness.reservations()] == ["mine"], "it is a person's own"

    run_in_harness(story)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param({"cpu": "4"}, "", id="enough"),
        pytest.param({"cpu": "1"}, "", id="the-rest-is-free-on-the-node"),
        pytest.param({"cpu": "1", "allocatePolicy": "Restricted"}, "there is not enough cpu in it", id="restricted"),
        pytest.param({"cpu": "4", "allocatePolicy": "Restricted"}, "", id="restricted-and-enough"),
        pytest.param(
            {"cpu": "4", "allocateOnce": False, "allocatePolicy": "Restricted", "status": {"allocated": {"cpu": "1"}}},
            "there is not enough cpu in it",
            id="partly-taken",
        ),
    ],
)
def test_there_must_be_room(given: dict[str, Any], why: str) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a", cpu="4")
        await reserve(harness, **given)
        await harness.add_job(reservationOptions=MINE)
        await harness.settle(30)
        status = (await harness.job()).status
        assert why in status.message
        assert (status.phase == "Failed") is bool(why)
        assert one.evictions() == ([] if why else ["a"])

    run_in_harness(story)


@pytest.mark.parametrize(("held", "fits"), [("13", False), ("12", True)])
def test_what_other_reservations_hold_is_not_free(held: str, fits: bool) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a", cpu="4")
        await reserve(harness, "theirs", cpu=held)
        await reserve(harness, cpu="1")
        await harness.add_job(reservationOptions=MINE)
        await harness.settle(30)
        assert one.evictions() == (["a"] if fits else [])
        if not fits:
            assert "there is not enough cpu in it" in (await harness.job()).status.message

    run_in_harness(story)


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ({"labels": {"app": "rs", IGNORED: "true"}}, "the pod ignores reservations"),
        ({"annotations": {AFFINITY: '{"name":"x"}'}}, "the pod asks for reservation x"),
        ({"annotations": {AFFINITY: '{"reservationSelector":{"a":"b"}}'}}, "reservation affinity does not select it"),
        ({"annotations": {AFFINITY: "{"}}, "cannot be read"),
        ({"annotations": {AFFINITY: '{"name":"mine"}'}}, ""),
    ],
    ids=["ignores", "another", "selector", "unreadable", "this-one"],
)
def test_the_pods_own_demands_on_reservations(meta: dict[str, Any], why: str) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a", **meta)
        await reserve(harness)
        await harness.add_job(reservationOptions=MINE)
        await harness.settle(30)
        assert why in (await harness.job()).status.message
        assert one.evictions() == ([] if why else ["a"])

    run_in_harness(story)


def test_a_template_with_foreign_owners_is_refused_as_well() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        template = {"spec": {"owners": OF_X}}
        await harness.add_job(reservationOptions={"template": template})
        await harness.settle()
        for place in await harness.reservations():
            await harness.place(place.metadata.name)
        await harness.settle()
        status = (await harness.job()).status
        assert (status.phase, status.reason) == ("Failed", "ForbiddenMigratePod")
        assert "its owners do not select the pod" in status.message
        assert one.evictions() == []

    run_in_harness(story)


def test_a_reservation_that_waits_for_its_node_is_waited_for() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        await reserve(harness, node="", status={"phase": "Pending"})
        await harness.add_job(reservationOptions=MINE)
        await harness.settle(30)
        assert (await harness.job()).status.phase == "Running"
        assert one.evictions() == []
        await harness.place("mine")
        await harness.settle(10)
        assert one.evictions() == ["a"]

    run_in_harness(story)


@pytest.mark.parametrize(
    ("labels", "stamped"),
    [({"team": "x"}, True), ({L_RESERVATION_ORDER: "7"}, False), ({}, False)],
    ids=["labelled", "ordered-already", "without-labels"],
)
def test_the_scheduler_is_told_to_prefer_it(labels: dict[str, str], stamped: bool) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        await reserve(harness, labels=labels)
        await harness.add_job(reservationOptions=MINE)
        await harness.settle()
        found = (await place_of(harness)).metadata.labels
        order = found.get(L_RESERVATION_ORDER, "")
        assert {**found, L_RESERVATION_ORDER: ""} == {**labels, L_RESERVATION_ORDER: ""}
        assert (order.isdigit() and int(order) > 10**12) is stamped
        assert stamped or order == labels.get(L_RESERVATION_ORDER, "")
        assert one.evictions() == ["a"]

    run_in_harness(story)


# The identity of a successor ---------------------------------------------------------------------------------------


IN_SET, REPLICA, WAITING = ready_pod("a", owner="StatefulSet/s"), ready_pod("a"), make_pod("a", "")


@pytest.mark.parametrize(
    ("pod", "owner", "fits"),
    [
        pytest.param(IN_SET, {"name": "a"}, True, id="a-name-that-comes-back"),
        pytest.param(IN_SET, {"name": "a", "uid": "default-a"}, False, id="a-uid-does-not"),
        pytest.param(REPLICA, {"name": "a"}, False, id="nor-the-name-of-a-replica"),
        pytest.param(WAITING, {"name": "a", "uid": "default-a"}, True, id="a-pod-without-a-node-is-meant-itself"),
        pytest.param(WAITING, {"name": "a", "uid": "x"}, False, id="another-one"),
    ],
)
def test_owners_by_object(pod: Any, owner: dict[str, str], fits: bool) -> None:
    reservation = make_reservation(phase="Available", node="n2", owners=[{"object": owner}])
    snapshot = make_snapshot((make_node("n2"),))
    assert (reservation_misfit(pod, reservation, snapshot, ()) is None) is fits
