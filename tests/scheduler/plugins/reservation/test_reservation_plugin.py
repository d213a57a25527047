"""The Reservation plugin case by case: who may use what, what fits, what is taken, and in which words it is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koord.api.config.scheduler.koordinator_args import PreAllocationConfig
from koord.api.koordinator.protocol import L_RESERVATION_IGNORED, L_RESERVATION_ORDER
from koord.api.kubernetes.affinity import Affinity
from koord.api.kubernetes.builtin_kinds import POD_DISRUPTION_BUDGETS
from koord.api.kubernetes.meta import OwnerReference
from koord.api.model import convert
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import SchedulerPodStatus
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import ChosenNode, Unschedulable
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.reservation import reservations_of
from koord.scheduler.framework.verdict import ROW, Fault, PodPatch, PreBindActions, Reject, StatusBinding, reject
from koord.scheduler.plugins.reservation.http import reservation_item
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.plugin_equivalence import profile_of
from tests.scheduler.plugins.reservation.reservation_cluster import (
    ReservationCluster,
    bound,
    owner,
    reservation,
    reserve_pod,
    stranger,
)

RESTRICTED = "scheduling.koordinator.sh/reservation-restricted-options"
EXACT = "scheduling.koordinator.sh/exact-match-reservation"
GPU = "koordinator.sh/gpu-core"
INNER = "node.koordinator.sh/reservation"
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"


def one_node(cpu: str = "8", **words: Any) -> ReservationCluster:
    return ReservationCluster(make_node("n0", cpu=cpu, **words))


def selecting(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"labelSelector": {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}}


class TestRoom:
    """R30: free = allocatable - used - unconsumed reservations, for everyone whom they are not for."""

    def test_is_kept_from_strangers(self) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="6"))
        assert world.free("n0") == 2000
        assert world.node_for(stranger(cpu="2")) == "n0"
        assert world.message(stranger(cpu="3")) == "0/1 nodes are available: 1 Insufficient cpu."
        assert world.promise(owner(cpu="6")) == ("n0", "r")

    def test_is_its_owners_who_came_before_it(self) -> None:
        world = one_node()
        pod = owner(cpu="6")
        assert world.node_for(pod) == "n0"
        world.put(reservation("r", "n0", cpu="6"))
        assert world.promise(pod) == ("n0", "r")

    def test_that_an_owner_uses_is_counted_once(self) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="6"))
        world.promise(owner("a", cpu="4"))
        assert world.free("n0") == 2000, "4 used, 2 of the reservation left"
        world.promise(owner("b", cpu="3"))
        assert world.free("n0") == 1000, "7 used: one more than was reserved"
        world.undo(owner("a", cpu="4"))
        assert world.free("n0") == 2000, "3 used, 3 of the reservation left"

    def test_of_an_oversize_owner_comes_from_the_node_and_makes_no_reservation_negative(self) -> None:
        world = one_node()
        world.put(reservation("small", "n0", cpu="1", allocatePolicy="Aligned"))
        world.put(reservation("other", "n0", cpu="4", allocatePolicy="Aligned", owners=[{"object": {"name": "x"}}]))
        assert world.node_for(owner("big", cpu="5")) == "", "1 of its own and 3 of the node: 4 are another's"
        assert world.promise(owner("big", cpu="4")) == ("n0", "small")
        assert world.free("n0") == 0
        assert world.node_for(stranger(cpu="100m")) == ""

    def test_is_known_by_the_annotation_of_bound_owners(self) -> None:
        world = one_node()
        world.bind(bound(owner("a", cpu="4"), "n0", ("r", "uid-r")))
        assert world.free("n0") == 4000
        world.put(reservation("r", "n0", cpu="6"))
        assert world.free("n0") == 2000
        world.drop("r")
        assert world.free("n0") == 4000, "its owner is a pod like any other now"

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_is_free_when_the_reservation_has_ended(self, phase: str) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="6"))
        world.put(reservation("r", "n0", cpu="6", phase=phase))
        assert world.free("n0") == 8000

    def test_includes_one_place_for_a_pod(self) -> None:
        world = one_node(pods="2")
        world.put(reservation("r", "n0", cpu="2"))
        world.bind(bound(stranger("a", cpu="1"), "n0"))
        assert world.node_for(stranger("b", cpu="1")) == ""
        assert world.node_for(owner("c", cpu="1")) == "n0"


class TestPolicies:
    @pytest.mark.parametrize(
        ("policy", "cpu", "expected"),
        [
            ("", "6", "n0"),
            ("Aligned", "6", "n0"),
            ("Aligned", "9", ""),
            ("Restricted", "4", "n0"),
            ("Restricted", "6", ""),
        ],
    )
    def test_say_whether_owners_may_take_more_than_is_reserved(self, policy: str, cpu: str, expected: str) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="4", allocatePolicy=policy))
        assert world.node_for(owner(cpu=cpu, affinity={})) == expected

    def test_restricted_to_some_resources_leave_the_others_to_the_node(self) -> None:
        world = one_node()
        options = {RESTRICTED: json.dumps({"resources": ["memory"]})}
        world.put(reservation("r", "n0", cpu="4", memory="4Gi", allocatePolicy="Restricted", annotations=options))
        assert world.promise(owner("cpu", cpu="6", memory="1Gi", affinity={})) == ("n0", "r")
        assert world.node_for(owner("memory", cpu="1", memory="4Gi", affinity={})) == ""

    def test_words_name_the_numbers_when_the_pod_asked_for_it_by_name(self) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="4", allocatePolicy="Restricted"))
        assert "Reservation(s) Insufficient cpu, requested: 5000, used: 0, capacity: 4000" in world.message(
            owner(cpu="5", affinity={"name": "r"})
        )
        assert "1 Reservation(s) Insufficient cpu." in world.message(owner(cpu="5", affinity={}))

    def test_without_an_affinity_a_full_restricted_reservation_leaves_the_node(self) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="2", allocatePolicy="Restricted"))
        assert world.promise(owner("a", cpu="4")) == ("n0", "")

    def test_inner_part_is_not_for_owners(self) -> None:
        world = one_node()
        inner = {INNER: json.dumps({"resources": {"cpu": "1"}})}
        world.put(reservation("r", "n0", cpu="7", allocatePolicy="Restricted", annotations=inner))
        assert world.node_for(owner(cpu="7", affinity={})) == ""
        assert world.node_for(owner(cpu="6", affinity={})) == "n0"

    def test_count_pods_where_a_number_of_them_is_reserved(self) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="4", more={"pods": "1"}, allocatePolicy="Restricted"))
        assert world.promise(owner("a", cpu="1", affinity={}))[1] == "r"
        assert "Reservation(s) Too many pods" in world.message(owner("b", cpu="1", affinity={}))

    @pytest.mark.parametrize(
        ("there", "comes", "fits"), [("", "Aligned", False), ("", "", True), ("Restricted", "Aligned", True)]
    )
    def test_default_does_not_stand_beside_the_others(self, there: str, comes: str, fits: bool) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="2", allocatePolicy=there))
        new = world.put(reservation("new", cpu="2", allocatePolicy=comes))
        assert bool(world.node_for(reserve_pod(new))) is fits
        if not fits:
            assert "1 node(s) reservation allocate policy conflict" in world.message(reserve_pod(new))


class TestWho:
    @pytest.mark.parametrize(
        ("owners", "matches"),
        [
            ([{}], True),
            ([{"object": {"name": "o"}}], True),
            ([{"object": {"name": "o", "namespace": "elsewhere"}}], False),
            ([{"object": {"uid": "default/o"}}], False),
            ([{"object": {"namespace": "default"}}], True),
            ([{"object": {"name": "p"}}, {"labelSelector": {"matchLabels": {"app": "owner"}}}], True),
            (
                [{"labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "owner"]}]}}],
                True,
            ),
            ([{"labelSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}], False),
            ([{"controller": {"name": "web", "kind": "ReplicaSet"}}], True),
            ([{"controller": {"name": "web", "kind": "Job"}}], False),
            ([{"controller": {"kind": "ReplicaSet"}}], True),
        ],
    )
    def test_owners_are_found(self, owners: list[Any], matches: bool) -> None:
        world = one_node(cpu="4")
        world.put(reservation("r", "n0", cpu="4", owners=owners))
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}
        pod = controlled(owner("o", cpu="2"), reference)
        assert bool(world.node_for(pod)) is matches

    def test_once_is_for_one(self) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="4", allocateOnce=True))
        assert world.promise(owner("a", cpu="1")) == ("n0", "r")
        assert world.promise(owner("b", cpu="1")) == ("n0", "")
        assert world.free("n0") == 3000, "what the first left of it stays held until it has ended"

    @pytest.mark.parametrize(
        ("affinity", "expected"),
        [
            (None, "n1"),
            ({"name": "r0"}, "n0"),
            ({"reservationSelector": {"pool": "a"}}, "n0"),
            ({"reservationSelector": {"zone": "z1"}}, "n1"),
            ({"reservationSelector": {"pool": "c"}}, ""),
            (
                {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "reservationSelectorTerms": [
                            {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}
                        ]
                    }
                },
                "n1",
            ),
        ],
    )
    def test_affinity_chooses_by_name_labels_and_those_of_the_node(self, affinity: Any, expected: str) -> None:
        world = ReservationCluster(make_node("n0"), make_node("n1", labels={"zone": "z1"}))
        world.put(reservation("r0", "n0", cpu="4", labels={"pool": "a"}))
        world.put(reservation("r1", "n1", cpu="2", labels={"pool": "b"}))
        assert world.node_for(owner(cpu="2", affinity=affinity)) == expected

    def test_a_label_of_a_node_that_changes_is_seen(self) -> None:
        world = ReservationCluster(make_node("n0"))
        world.put(reservation("r", "n0", cpu="4"))
        pod = owner(cpu="2", affinity={"reservationSelector": {"zone": "z1"}})
        assert world.node_for(pod) == ""
        world.state.set_node(make_node("n0", labels={"zone": "z1"}))
        assert world.node_for(pod) == "n0"

    def test_taints_and_the_flag_keep_pods_away_that_do_not_tolerate_them(self) -> None:
        world = one_node(cpu="4")
        taints = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
        world.put(reservation("r", "n0", cpu="4", taints=taints))
        assert "1 Reservation(s) had untolerated taint {k: v}" in world.message(owner(cpu="1", affinity={}))
        tolerating = {"tolerations": [{"key": "k", "operator": "Exists"}]}
        assert world.node_for(owner(cpu="1", affinity=tolerating)) == "n0"
        assert world.node_for(owner(cpu="1")) == "n0", "taints do not concern pods without an affinity"
        world.put(reservation("r", "n0", cpu="4", unschedulable=True))
        assert "1 Reservation(s) is unschedulable" in world.message(owner(cpu="1"))
        assert world.node_for(owner(cpu="1", affinity={"name": "r"})) == "n0"

    def test_exact_match(self) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="4"))
        exact = {EXACT: json.dumps({"resourceNames": ["cpu"]})}
        assert world.promise(owner("a", cpu="3", annotations=exact))[1] == ""
        assert world.promise(owner("b", cpu="4", annotations=exact))[1] == "r"

    def test_a_pod_that_ignores_reservations_uses_them_and_owns_none(self) -> None:
        world = one_node(cpu="4")
        world.put(reservation("r", "n0", cpu="4"))
        assert world.node_for(stranger(cpu="2")) == ""
        ignorer = make_pod("i", cpu="2", labels={L_RESERVATION_IGNORED: "true"}, schedulerName="test")
        assert world.promise(ignorer) == ("n0", "")

    def test_an_affinity_that_cannot_be_read_is_told(self) -> None:
        world = one_node()
        pod = make_pod(
            "p", cpu="1", annotations={"scheduling.koordinator.sh/reservation-affinity": "{"}, schedulerName="test"
        )
        assert "reservation-affinity" in world.message(pod)

    def test_an_owner_is_not_kept_away_by_the_one_who_holds_its_place(self) -> None:
        """A reservation has the labels of the pod that is to come, which may want no other of its kind beside it."""
        world = one_node()
        alone = {"labelSelector": {"matchLabels": {"app": "owner"}}, "topologyKey": "kubernetes.io/hostname"}
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}}
        template = {"metadata": {"labels": {"app": "owner"}}}
        world.put(reservation("r", "n0", cpu="4", template=template))
        assert world.promise(spread(owner("b", cpu="2"), apart)) == ("n0", "r")
        assert world.node_for(spread(owner("c", cpu="2"), apart)) == "", "but by another owner"


class TestSharing:
    """A reservation is used only for something that it reserves and the pod requests, unless the pod demands one."""

    @pytest.mark.parametrize(
        ("reserved", "words", "uses"),
        [
            pytest.param({"cpu": "4"}, {}, False, id="best-effort"),
            pytest.param({"cpu": "4"}, {"memory": "1Gi"}, False, id="another-resource"),
            pytest.param({"cpu": "4"}, {"cpu": "0", "memory": "1Gi"}, False, id="zero-is-no-request"),
            pytest.param({"cpu": "4"}, {"cpu": "1", "memory": "1Gi"}, True, id="one-in-common"),
            pytest.param({"cpu": "", "more": {GPU: "100"}}, {"cpu": "1"}, False, id="only-gpus-are-reserved"),
            pytest.param({"cpu": "", "more": {GPU: "100"}}, {"cpu": "1", "more": {GPU: "50"}}, True, id="gpus-of-both"),
            pytest.param({"cpu": "4", "allocatePolicy": "Restricted"}, {}, False, id="restricted"),
            pytest.param({"cpu": "4", "allocatePolicy": "Aligned"}, {}, False, id="aligned"),
            pytest.param(
                {"memory": "4Gi", "allocatePolicy": "Restricted", "annotations": {RESTRICTED: '{"resources":["cpu"]}'}},
                {"memory": "1Gi"},
                False,
                id="restricted-to-another-resource",
            ),
            pytest.param({"cpu": ""}, {}, True, id="a-place-that-reserves-nothing"),
            pytest.param({"cpu": ""}, {"cpu": "1"}, False, id="nothing-reserved-of-what-is-requested"),
            pytest.param({"cpu": "4"}, {"affinity": {}}, True, id="demanded"),
            pytest.param({"cpu": "4"}, {"affinity": {"name": "r"}}, True, id="demanded-by-name"),
        ],
    )
    def test_takes_a_resource_in_common(self, reserved: Any, words: Any, uses: bool) -> None:
        world = one_node(more={GPU: "200"})
        world.put(reservation("r", "n0", allocateOnce=True, **reserved))
        held = world.free("n0")
        assert world.promise(owner("a", **words)) == ("n0", "r" if uses else "")
        if not uses:
            requested = world.state.pod_info(owner("a", **words)).requests.get("cpu", 0)
            assert world.free("n0") == held - requested, "all of it is still kept"

    def test_leaves_the_reservation_to_a_pod_that_requests_it(self) -> None:
        world = one_node(cpu="4")
        world.put(reservation("r", "n0", cpu="4", allocateOnce=True))
        assert world.promise(owner("best-effort")) == ("n0", "")
        assert world.promise(owner("a", cpu="4")) == ("n0", "r")

    def test_gives_no_place_of_a_reservation_away(self) -> None:
        world = one_node(pods="1")
        world.put(reservation("r", "n0", cpu="2"))
        assert world.node_for(owner("best-effort")) == ""
        assert world.node_for(owner("a", cpu="1")) == "n0"

    def test_holds_for_real_pods_that_act_as_reservations(self) -> None:
        world = one_node(cpu="4")
        world.bind(make_stand())
        assert world.promise(owner("best-effort")) == ("n0", "")
        assert world.promise(owner("a", cpu="2")) == ("n0", "stand")


def test_the_service_shows_reserved_and_used_host_ports() -> None:
    world = one_node()
    ports = [
        {"containerPort": 80, "hostPort": 80, "protocol": "TCP"},
        {"containerPort": 53, "hostPort": 53, "hostIP": "10.0.0.1", "protocol": "UDP"},
    ]
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "4"}}, "ports": ports}
    world.put(reservation("r", "n0", cpu="4", template={"spec": {"containers": [container]}}))
    (usage,) = world.book.register.on_node("n0")
    item = reservation_item(world.book, usage)
    assert item["allocatablePorts"] == {"0.0.0.0": ["TCP/80"], "10.0.0.1": ["UDP/53"]}
    assert (item["allocatedPorts"], item["assignedPods"]) == ({}, [])
    assert world.promise(owner("a", cpu="1", ports=[("TCP", "", 80)])) == ("n0", "r")
    (usage,) = world.book.register.on_node("n0")
    item = reservation_item(world.book, usage)
    assert item["allocatedPorts"] == {"0.0.0.0": ["TCP/80"]}
    (assigned,) = item["assignedPods"]
    assert (assigned["Name"], assigned["Ports"]) == ("a", {"0.0.0.0": ["TCP/80"]})


class TestChoice:
    def test_the_fullest_reservation_wins(self) -> None:
        world = ReservationCluster(make_node("n0"), make_node("n1"))
        world.put(reservation("large", "n0", cpu="4"))
        world.put(reservation("small", "n1", cpu="2"))
        assert world.promise(owner("a", cpu="2")) == ("n1", "small")

    def test_a_node_with_a_reservation_wins_over_one_without(self) -> None:
        world = ReservationCluster(make_node("n0"), make_node("n1"), make_node("n2"))
        world.put(reservation("r", "n1", cpu="8"))
        assert world.promise(owner("a", cpu="100m")) == ("n1", "r")

    def test_the_lowest_order_wins_over_everything(self) -> None:
        world = ReservationCluster(make_node("n0"), make_node("n1"), make_node("n2"))
        world.put(reservation("best", "n0", cpu="2"))
        world.put(reservation("late", "n1", cpu="8", labels={L_RESERVATION_ORDER: "20"}))
        world.put(reservation("first", "n2", cpu="8", labels={L_RESERVATION_ORDER: "10"}))
        decision = world.decide(owner(cpu="2"))
        assert isinstance(decision, ChosenNode)
        assert (decision.node, decision.scores["Reservation"]) == ("n2", 500_000)
        assert world.promise(owner("a", cpu="2")) == ("n2", "first")

    @pytest.mark.parametrize(
        ("cpu", "memory", "taken", "expected"),
        [("4", "8Gi", "", 50), ("2", "4Gi", "", 100), ("2", "4Gi", "3Gi", 0)],
    )
    def test_worked_scores(self, cpu: str, memory: str, taken: str, expected: int) -> None:
        world = ReservationCluster(make_node("n0", cpu="32"), make_node("n1", cpu="32"))
        world.put(reservation("r", "n0", cpu=cpu, memory=memory))
        world.put(reservation("full", "n1", cpu="2", memory="4Gi"))
        if taken:
            world.bind(bound(owner("there", cpu="2", memory=taken), "n0", ("r", "uid-r")))
        said = world.said(owner(cpu="2", memory="4Gi"))
        assert isinstance(said, dict)
        assert said["n0"][1] // 5000 == expected

    def test_after_others_came_and_went_the_choice_is_made_on_what_is_left(self) -> None:
        world = ReservationCluster(make_node("n0"), make_node("n1"))
        world.put(reservation("r0", "n0", cpu="2", allocatePolicy="Restricted"))
        world.put(reservation("r1", "n1", cpu="2", allocatePolicy="Restricted"))
        took = {world.promise(owner(name, cpu="2", affinity={})) for name in ("a", "b")}
        assert took == {("n0", "r0"), ("n1", "r1")}
        assert world.node_for(owner("c", cpu="2", affinity={})) == ""
        world.undo(owner("a", cpu="2", affinity={}))
        assert world.node_for(owner("c", cpu="2", affinity={})) != ""


class TestWords:
    def test_of_an_affinity_that_nothing_matches(self) -> None:
        world = ReservationCluster(make_node("n0"), make_node("n1"))
        world.put(reservation("r1", "n0"))
        world.put(reservation("r2", "n1"))
        assert world.message(owner(cpu="1", affinity={"name": "r9"})) == (
            "0/2 nodes are available: node(s) no reservations match reservation affinity. "
            "2 Reservation(s) didn't match the requested reservation name, 2 Reservation(s) matched owner total"
        )

    def test_of_a_node_that_is_too_small(self) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="4", allocatePolicy="Aligned"))
        world.promise(owner("big", cpu="6"))
        assert world.message(owner(cpu="4")) == (
            "0/1 nodes are available: 1 Insufficient cpu. "
            "1 Reservation(s) for node reason that Insufficient cpu, 1 Reservation(s) matched owner total"
        )

    def test_of_a_reservation_for_a_named_node(self) -> None:
        world = ReservationCluster(make_node("n0"), make_node("n1"))
        new = world.put(reservation("new", template={"spec": {"nodeName": "n1"}}))
        assert world.node_for(reserve_pod(new)) == "n1"
        elsewhere = world.put(reservation("other", template={"spec": {"nodeName": "n2"}}))
        decision = world.decide(reserve_pod(elsewhere))
        assert isinstance(decision, Unschedulable)
        assert decision.message() == (
            "0/2 nodes are available: 2 node(s) didn't match the nodeName specified by reservation."
        )

    def test_for_the_event_are_kept_only_of_pods_that_asked_for_a_reservation(self) -> None:
        world = one_node()
        world.put(reservation("r", "n0", cpu="4", allocatePolicy="Restricted"))
        pod = owner(cpu="5", affinity={})
        text = world.message(pod)
        world.plugin.on_attempt_failed(world.state.pod_info(pod), text, frozenset())
        ((_, note),) = world.book.pending_events.values()
        assert note == "0/1 reservations are available: 1 Reservation(s) Insufficient cpu."


class TestBinding:
    def test_an_owner_is_marked_with_what_it_took(self) -> None:
        world = one_node()
        world.put(reservation("r", "n0"))
        world.promise(owner("a", cpu="1"))
        work = world.plugin.pre_bind(world.cycle, world.state.pod_info(owner("a", cpu="1")), "n0")
        assert isinstance(work, PodPatch)
        assert [json.loads(text) for text in work.annotations.values()] == [{"name": "r", "uid": "uid-r"}]

    def test_a_reservation_gets_a_status_in_place_of_a_binding(self) -> None:
        world = one_node()
        new = world.put(reservation("new", cpu="2"))
        info = world.state.pod_info(reserve_pod(new))
        work = world.plugin.bind(world.cycle, info, "n0")
        assert isinstance(work, StatusBinding)
        status = work.make_status(new)
        assert isinstance(status, dict)
        assert (status["phase"], status["nodeName"], status["allocatable"]) == ("Available", "n0", {"cpu": "2"})
        ended = reservation("new", phase="Failed")
        assert work.make_status(ended).message == "reservation is not active"  # type: ignore[union-attr]


class TestOperatingPods:
    """Pods that stand as reservations themselves."""

    def test_hold_their_room_for_their_owners(self) -> None:
        world = one_node(cpu="4")
        world.bind(make_stand())
        assert world.free("n0") == 1000
        assert world.promise(owner("a", cpu="3")) == ("n0", "stand")
        assert world.free("n0") == 1000, "its room is counted once"
        assert world.node_for(owner("b", cpu="3")) == "", "it is for one"

    def test_that_are_not_ready_are_plain_pods(self) -> None:
        world = one_node(cpu="4")
        world.bind(make_stand(ready=False))
        assert world.node_for(owner("a", cpu="3")) == ""

    def test_that_go_leave_their_owner_what_it_uses(self) -> None:
        world = one_node(cpu="4")
        stand = make_stand()
        world.bind(stand)
        world.promise(owner("a", cpu="3"))
        world.unbind(stand)
        assert world.free("n0") == 1000


class TestPreemption:
    def test_takes_pods_but_nobody_who_holds_room(self) -> None:
        world = ReservationCluster(make_node("n0", cpu="4"), enable_preemption=True)
        world.handle.lister(POD_DISRUPTION_BUDGETS)
        world.put(reservation("r", "n0", cpu="2", template={"spec": {"priority": 1}}))
        world.bind(bound(stranger("low", cpu="2", priority=1), "n0"))
        decision = world.decide(stranger("high", cpu="3", priority=100))
        assert isinstance(decision, Unschedulable)
        assert decision.preempt is None, "without the pod there is room for 2 only"
        decision = world.decide(stranger("high", cpu="2", priority=100))
        assert isinstance(decision, Unschedulable)
        assert decision.preempt is not None
        assert [victim.name for victim in decision.preempt.victims] == ["low"]

    def test_by_a_reservation_spares_whoever_says_so(self) -> None:
        world = ReservationCluster(make_node("n0", cpu="4"), enable_preemption=True)
        spared = {"scheduling.koordinator.sh/disable-preemptible": "true"}
        world.bind(bound(stranger("safe", cpu="2", labels=spared), "n0"))
        world.bind(bound(stranger("low", cpu="2"), "n0"))
        two = world.decide(reserve_pod(world.put(reservation("two", cpu="2"))))
        assert isinstance(two, Unschedulable)
        assert two.preempt is not None
        assert [victim.name for victim in two.preempt.victims] == ["low"]
        four = world.decide(reserve_pod(world.put(reservation("four", cpu="4"))))
        assert isinstance(four, Unschedulable)
        assert four.preempt is None

    def test_for_an_owner_counts_what_is_reserved_for_it(self) -> None:
        world = ReservationCluster(make_node("n0", cpu="4"), enable_preemption=True)
        world.put(reservation("r", "n0", cpu="2"))
        world.bind(bound(stranger("low", cpu="2", priority=1), "n0"))
        decision = world.decide(owner("high", cpu="4", priority=100))
        assert isinstance(decision, Unschedulable)
        assert decision.preempt is not None
        assert [victim.name for victim in decision.preempt.victims] == ["low"]

    def test_of_an_owner_gives_room_to_other_owners_of_its_reservation_only(self) -> None:
        """R21: nobody is evicted for room that goes elsewhere."""
        world = ReservationCluster(make_node("n0", cpu="4"), enable_preemption=True)
        world.put(reservation("r", "n0", cpu="4"))
        world.bind(bound(owner("low", cpu="4", priority=1), "n0", ("r", "uid-r")))
        decision = world.decide(stranger("high", cpu="2", priority=100))
        assert isinstance(decision, Unschedulable)
        assert decision.preempt is None
        decision = world.decide(owner("high", cpu="2", priority=100))
        assert isinstance(decision, Unschedulable)
        assert decision.preempt is not None


def controlled(pod: Any, reference: dict[str, Any]) -> Any:
    references = (convert(reference, OwnerReference),)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=references))


def spread(pod: Any, affinity: dict[str, Any]) -> Any:
    return msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, affinity=convert(affinity, Affinity)), shape=None
    )


def make_stand(*, ready: bool = True) -> Any:
    pod = make_pod(
        "stand",
        node="n0",
        cpu="3",
        labels={"scheduling.koordinator.sh/operating-mode": "Reservation"},
        annotations={
            "scheduling.koordinator.sh/reservation-owners": json.dumps(
                [{"labelSelector": {"matchLabels": {"app": "owner"}}}]
            )
        },
    )
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return msgspec.structs.replace(
        pod, status=convert({"phase": "Running", "conditions": conditions}, SchedulerPodStatus)
    )


class TestPreAllocation:
    """Reservations that come over pods that run already."""

    def over(self, world: ReservationCluster, name: str = "new", cpu: str = "4", **words: Any) -> Any:
        spec = {"preAllocation": True, "allocatePolicy": "Restricted", **words}
        return reserve_pod(world.put(reservation(name, cpu=cpu, **spec)))

    def test_take_a_place_that_their_owner_holds(self) -> None:
        world = one_node(cpu="4")
        world.bind(bound(owner("there", cpu="3"), "n0"))
        assert world.node_for(reserve_pod(world.put(reservation("plain", cpu="4", allocatePolicy="Restricted")))) == ""
        pod = self.over(world)
        assert world.promise(pod)[0] == "n0"
        work = world.plugin.pre_bind(world.cycle, world.state.pod_info(pod), "n0")
        assert isinstance(work, PreBindActions)
        (write,) = work.writes
        note = json.loads(write.patch["metadata"]["annotations"][ALLOCATED])
        assert (write.name, note) == ("there", {"name": "new", "uid": "uid-new"})
        world.put(reservation("new", "n0", cpu="4", preAllocation=True, allocatePolicy="Restricted"))
        assert world.free("n0") == 0, "3 used, 1 of the reservation left"

    def test_nothing_is_left_when_it_comes_to_nothing(self) -> None:
        world = one_node(cpu="4")
        world.bind(bound(owner("there", cpu="3"), "n0"))
        pod = self.over(world)
        world.promise(pod)
        world.undo(pod)
        assert world.free("n0") == 1000
        assert world.book.register.owner_pod(uid_of(world, "there")) is None
        assert not world.book.register.owner_pods("uid-new")

    def test_leave_strangers_alone(self) -> None:
        world = one_node(cpu="4")
        world.bind(bound(stranger("there", cpu="3"), "n0"))
        assert world.node_for(self.over(world)) == ""

    def test_take_over_only_pods_that_request_what_they_reserve(self) -> None:
        world = one_node(cpu="4")
        world.bind(bound(owner("best-effort"), "n0"))
        world.bind(bound(owner("there", memory="1Gi"), "n0"))
        required = {"scheduling.koordinator.sh/pre-allocation-required": "true"}
        pod = self.over(world, cpu="2", labels=required)
        assert "node(s) no pod match reservation with pre allocation required" in world.message(pod)
        world.bind(bound(owner("cpu", cpu="1"), "n0"))
        assert world.promise(pod)[0] == "n0"
        assert set(world.book.register.owner_pods("uid-new")) == {uid_of(world, "cpu")}

    def test_are_restricted(self) -> None:
        world = one_node()
        assert "reservation pre allocation is unsupported" in world.message(self.over(world, allocatePolicy="Aligned"))

    def test_over_the_cluster_are_off_unless_allowed(self) -> None:
        wide: Any = {"preAllocationPolicy": {"mode": "Cluster", "enableMultiple": True}}
        world = one_node(cpu="4")
        assert "cluster mode pre-allocation which is disabled" in world.message(self.over(world, **wide))
        allowed = ReservationCluster(
            make_node("n0", cpu="4"), pre_allocation_config=PreAllocationConfig(enable_cluster_mode=True)
        )
        ready = {"pod.koordinator.sh/is-pre-allocatable": "true"}
        for name, priority in (("low", "1"), ("high", "9")):
            note = {"pod.koordinator.sh/pre-allocatable-priority": priority}
            allowed.bind(bound(stranger(name, cpu="2", labels=ready, annotations=note), "n0"))
        pod = self.over(allowed, **wide)
        assert allowed.promise(pod)[0] == "n0"
        assert set(allowed.book.register.owner_pods("uid-new")) == {uid_of(allowed, "low"), uid_of(allowed, "high")}

    def test_that_must_have_an_owner_wait_for_one(self) -> None:
        world = ReservationCluster(make_node("n0"), make_node("n1"))
        required: Any = {"labels": {"scheduling.koordinator.sh/pre-allocation-required": "true"}}
        assert "node(s) no pod match reservation with pre allocation required" in world.message(
            self.over(world, **required)
        )
        world.bind(bound(owner("there", cpu="3"), "n1"))
        assert world.node_for(self.over(world, **required)) == "n1"
        assert "node(s) no pod(s) to meet the pre-allocation requirements" in world.message(
            self.over(world, name="small", cpu="1", **required)
        )


def uid_of(world: ReservationCluster, name: str) -> str:
    return next(pod.uid for pod in world.state.pods() if pod.name == name)


class Cards(Plugin):
    """Stands for a plugin that gives devices: it has none for owners of one reservation."""

    name = "DeviceShare"
    scope = ROW

    def __init__(self) -> None:
        self.held: set[str] = set()

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        self.held.add(pod.uid)
        return reject("no card") if reservations_of(cycle).nominated[pod.uid].name == "a" else None

    def unreserve(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        self.held.discard(pod.uid)


def test_a_reservation_is_taken_only_if_devices_can_be_had_of_it() -> None:
    world = one_node()
    world.put(reservation("a", "n0", cpu="2"))
    world.put(reservation("b", "n0", cpu="2"))
    assert world.promise(owner("first", cpu="1")) == ("n0", "a")
    world.undo(owner("first", cpu="1"))
    cards = Cards()
    world.plugin.set_profile(profile_of([world.plugin, cards]))
    assert world.promise(owner("second", cpu="1")) == ("n0", "b")
    assert not cards.held, "asking leaves nothing behind"
