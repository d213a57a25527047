"""Reservations for a pod are found, and the index equals one built anew whatever happened."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from koord.api.annotations.reservation_codecs import ReservationAffinity
from koord.api.koordinator.scheduling import ReservationControllerReference, ReservationOwner
from koord.api.kubernetes.meta import LabelSelector, LabelSelectorRequirement, OwnerReference
from koord.api.model import ObjectReference
from koord.scheduler.plugins.reservation.owner_matching import ReservationRequest
from koord.scheduler.plugins.reservation.reservation_index import (
    OwnerAssigned,
    OwnerReleased,
    ReservationGone,
    ReservationIndex,
    ReservationSeen,
)
from koord.scheduler.plugins.reservation.reservation_info import ReservationInfo, ReservationOwnerPod
from tests.scheduler.plugins.reservation.reservation_builders import amounts, pod, reservation_info
from tests.soak_budget import soak_runs


def labelled(operator: str, *values: str) -> ReservationOwner:
    requirement = LabelSelectorRequirement(key="app", operator=operator, values=values)
    return ReservationOwner(label_selector=LabelSelector(match_expressions=(requirement,)))


OWNERS = [
    ReservationOwner(),
    ReservationOwner(object=ObjectReference(name="p0")),
    ReservationOwner(object=ObjectReference(uid="uid-p1", namespace="default")),
    ReservationOwner(object=ObjectReference(namespace="default")),
    ReservationOwner(controller=ReservationControllerReference(name="c")),
    ReservationOwner(controller=ReservationControllerReference(kind="Job", namespace="default")),
    ReservationOwner(label_selector=LabelSelector(match_labels={"app": "a", "tier": "x"})),
    ReservationOwner(label_selector=LabelSelector()),
    labelled("In", "a", "b"),
    labelled("NotIn", "a"),
    labelled("Exists"),
]
seekers = st.builds(
    lambda n, labels, owner, namespace: pod(f"p{n}", labels=labels, owners=owner, namespace=namespace),
    st.integers(0, 2),
    st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["a", "b", "x"])),
    st.sampled_from([(), (OwnerReference(name="c", kind="Job"),), (OwnerReference(name="d", kind="Job"),)]),
    st.sampled_from(["default", "other"]),
)


@settings(max_examples=100)
@given(st.lists(st.lists(st.sampled_from(OWNERS), min_size=1, max_size=2), max_size=6), seekers)
def test_the_index_finds_what_a_scan_finds(found: list[list[ReservationOwner]], seeker: ReservationRequest) -> None:
    held = [reservation_info(f"r{i}", *owners, node=f"n{i % 2}") for i, owners in enumerate(found)]
    register = ReservationIndex.build(held, [])
    by_index = {s.info.name for group in register.candidates(seeker).values() for s in group}
    assert by_index == {one.name for one in held if one.matches_owner(seeker)}


def test_unrelated_reservations_are_not_looked_at() -> None:
    asked: list[str] = []

    class Counting(ReservationInfo, frozen=True, kw_only=True):
        def matches_owner(self, pod: ReservationRequest) -> bool:
            asked.append(self.name)
            return super().matches_owner(pod)

    def of(i: int) -> ReservationInfo:
        made = reservation_info(f"r{i}", ReservationOwner(label_selector=LabelSelector(match_labels={"app": f"a{i}"})))
        return Counting(**{name: getattr(made, name) for name in ReservationInfo.__struct_fields__})

    register = ReservationIndex.build([of(i) for i in range(50)], [])
    assert list(register.candidates(pod(labels={"app": "a7"}))) == ["n"]
    assert asked == ["r7"]


@pytest.mark.parametrize(
    ("held", "parts", "matchable"),
    [
        pytest.param({}, 0, True, id="free"),
        pytest.param({"available": False}, 0, False, id="not-available"),
        pytest.param({"node": ""}, 0, False, id="no-node"),
        pytest.param({"parse_error": "unreadable"}, 0, False, id="unreadable"),
        pytest.param({"allocate_once": True}, 1, False, id="once-and-taken"),
        pytest.param({"allocate_once": False}, 1, True, id="shared"),
    ],
)
def test_what_can_be_matched(held: dict[str, Any], parts: int, matchable: bool) -> None:
    occupants = [ReservationOwnerPod(uid=f"o{i}", reservation="uid-r", node="n") for i in range(parts)]
    assert bool(ReservationIndex.build([reservation_info(**held)], occupants).candidates(pod())) is matchable


def test_a_pod_that_names_one_is_shown_its_node() -> None:
    register = ReservationIndex.build(
        [reservation_info("a", node="n1"), reservation_info("b", node="n1"), reservation_info("c", node="n2")], []
    )

    def found(name: str) -> dict[str, list[str]]:
        by_node = register.candidates(pod(affinity=ReservationAffinity(name=name)))
        return {node: [s.info.name for s in group] for node, group in sorted(by_node.items())}

    assert found("a") == {"n1": ["a", "b"]}
    assert found("missing") == {"n1": ["a", "b"], "n2": ["c"]}


def test_who_ignores_reservations_sees_all() -> None:
    stranger = ReservationOwner(object=ObjectReference(name="x"))
    register = ReservationIndex.build([reservation_info("a", stranger)], [])
    assert not register.candidates(pod())
    assert register.candidates(pod(ignores_reservations=True))


def test_owners_count_on_its_node_in_what_is_reserved() -> None:
    parts = [
        ReservationOwnerPod(uid="1", reservation="uid-r", node="n", requests=amounts(1, 1, gpu=1)),
        ReservationOwnerPod(uid="2", reservation="uid-r", node="elsewhere", requests=amounts(1)),
    ]
    found = ReservationIndex.build([reservation_info()], parts).get("uid-r")
    assert found is not None
    assert (found.allocated, found.owner_count) == (amounts(1, 1), 1)


def test_taking_a_part() -> None:
    register = ReservationIndex.build([reservation_info("a"), reservation_info("b", terminating=True)], [])
    assert register.assume_error("uid-a") is None
    assert register.assume_error("uid-b") == "target reservation is terminating"
    assert register.assume_error("uid-c") == "cannot find target reservation"


class ReservationsInAnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.register = ReservationIndex()
        self.held: dict[str, ReservationInfo] = {}
        self.parts: dict[str, ReservationOwnerPod] = {}

    @rule(
        n=st.integers(0, 3),
        node=st.sampled_from(["", "n1", "n2"]),
        cpu=st.integers(0, 9),
        owner=st.sampled_from(OWNERS),
    )
    def see(self, n: int, node: str, cpu: int, owner: ReservationOwner) -> None:
        seen = reservation_info(
            f"r{n}", owner, node=node, reserved=amounts(cpu), allocate_once=bool(n % 2), available=cpu > 1
        )
        self.held[seen.uid] = seen
        self.register.handle(ReservationSeen(seen))

    @rule(n=st.integers(0, 3))
    def lose(self, n: int) -> None:
        self.held.pop(f"uid-r{n}", None)
        self.register.handle(ReservationGone(f"uid-r{n}"))

    @rule(n=st.integers(0, 4), r=st.integers(0, 3), node=st.sampled_from(["n1", "n2"]), cpu=st.integers(0, 9))
    def occupy(self, n: int, r: int, node: str, cpu: int) -> None:
        part = ReservationOwnerPod(uid=f"o{n}", reservation=f"uid-r{r}", node=node, requests=amounts(cpu))
        self.parts[part.uid] = part
        self.register.handle(OwnerAssigned(part))

    @rule(n=st.integers(0, 4))
    def vacate(self, n: int) -> None:
        self.parts.pop(f"o{n}", None)
        self.register.handle(OwnerReleased(f"o{n}"))

    @invariant()
    def equals_one_made_anew(self) -> None:
        anew = ReservationIndex.build(self.held.values(), self.parts.values())
        assert self.register.usages == anew.usages
        assert sorted(self.register.nodes) == sorted(anew.nodes)
        for node in ("n1", "n2"):
            assert self.register.on_node(node) == anew.on_node(node)
        for seeker in (pod("p0", labels={"app": "a"}), pod("p1"), pod("p2", ignores_reservations=True)):
            assert self.register.candidates(seeker) == anew.candidates(seeker)

    @invariant()
    def sums_over_nodes_are_sums_over_pods(self) -> None:
        there = [part for part in self.parts.values() if self.counts(part)]
        held = sum(s.allocated.get("cpu", 0) for s in self.register.usages.values())
        assert held == sum(part.requests.get("cpu", 0) for part in there)

    def counts(self, part: ReservationOwnerPod) -> bool:
        found = self.held.get(part.reservation)
        return found is not None and found.available and found.node == part.node


TestReservations = ReservationsInAnyOrder.TestCase
TestReservations.settings = settings(max_examples=soak_runs(30, 25), stateful_step_count=25, deadline=None)
