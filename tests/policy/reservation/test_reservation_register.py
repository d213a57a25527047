"""Reservations for a pod are found, and the index equals one built anew whatever happened."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from koord.api.annotations.reservation_affinity import ReservationAffinity
from koord.api.koord_scheduling import ReservationControllerReference, ReservationOwner
from koord.api.meta import LabelSelector, LabelSelectorRequirement, OwnerReference
from koord.api.part import ObjectReference
from koord.policy.reservation.holding import Holding
from koord.policy.reservation.register import Gone, Occupant, Occupied, Register, Seen, Vacated
from koord.policy.reservation.seeker import Seeker
from tests.policy.reservation.reservations import amounts, holding, pod
from tests.soak import runs


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
def test_the_index_finds_what_a_scan_finds(found: list[list[ReservationOwner]], seeker: Seeker) -> None:
    held = [holding(f"r{i}", *owners, node=f"n{i % 2}") for i, owners in enumerate(found)]
    register = Register.of(held, [])
    by_index = {s.holding.name for group in register.candidates(seeker).values() for s in group}
    assert by_index == {one.name for one in held if one.is_for(seeker)}


def test_unrelated_reservations_are_not_looked_at() -> None:
    asked: list[str] = []

    class Counting(Holding, frozen=True, kw_only=True):
        def is_for(self, pod: Seeker) -> bool:
            asked.append(self.name)
            return super().is_for(pod)

    def of(i: int) -> Holding:
        made = holding(f"r{i}", ReservationOwner(label_selector=LabelSelector(match_labels={"app": f"a{i}"})))
        return Counting(**{name: getattr(made, name) for name in Holding.__struct_fields__})

    register = Register.of([of(i) for i in range(50)], [])
    assert list(register.candidates(pod(labels={"app": "a7"}))) == ["n"]
    assert asked == ["r7"]


@pytest.mark.parametrize(
    ("held", "parts", "matchable"),
    [
        pytest.param({}, 0, True, id="free"),
        pytest.param({"available": False}, 0, False, id="not-available"),
        pytest.param({"node": ""}, 0, False, id="no-node"),
        pytest.param({"fault": "unreadable"}, 0, False, id="unreadable"),
        pytest.param({"once": True}, 1, False, id="once-and-taken"),
        pytest.param({"once": False}, 1, True, id="shared"),
    ],
)
def test_what_can_be_matched(held: dict[str, Any], parts: int, matchable: bool) -> None:
    occupants = [Occupant(uid=f"o{i}", reservation="uid-r", node="n") for i in range(parts)]
    assert bool(Register.of([holding(**held)], occupants).candidates(pod())) is matchable


def test_a_pod_that_names_one_is_shown_its_node() -> None:
    register = Register.of([holding("a", node="n1"), holding("b", node="n1"), holding("c", node="n2")], [])

    def found(name: str) -> dict[str, list[str]]:
        by_node = register.candidates(pod(affinity=ReservationAffinity(name=name)))
        return {node: [s.holding.name for s in group] for node, group in sorted(by_node.items())}

    assert found("a") == {"n1": ["a", "b"]}
    assert found("missing") == {"n1": ["a", "b"], "n2": ["c"]}


def test_who_ignores_reservations_sees_all() -> None:
    stranger = ReservationOwner(object=ObjectReference(name="x"))
    register = Register.of([holding("a", stranger)], [])
    assert not register.candidates(pod())
    assert register.candidates(pod(ignores=True))


def test_owners_count_on_its_node_in_what_is_reserved() -> None:
    parts = [
        Occupant(uid="1", reservation="uid-r", node="n", requests=amounts(1, 1, gpu=1)),
        Occupant(uid="2", reservation="uid-r", node="elsewhere", requests=amounts(1)),
    ]
    found = Register.of([holding()], parts).get("uid-r")
    assert found is not None
    assert (found.allocated, found.assigned) == (amounts(1, 1), 1)


def test_whoever_waits_is_woken() -> None:
    register = Register()
    assert [e.nodes for e in register.handle(Seen(holding()))] == [{"n"}]
    assert register.handle(Seen(holding())) == ()
    part = Occupant(uid="1", reservation="uid-r", node="n", requests=amounts(1))
    assert register.handle(Occupied(part)) == ()
    assert [e.nodes for e in register.handle(Vacated("1"))] == [{"n"}]
    assert register.handle(Vacated("1")) == ()
    assert [e.nodes for e in register.handle(Gone("uid-r"))] == [{"n"}]


def test_taking_a_part() -> None:
    register = Register.of([holding("a"), holding("b", terminating=True)], [])
    assert register.refusal_to_take("uid-a") is None
    assert register.refusal_to_take("uid-b") == "target reservation is terminating"
    assert register.refusal_to_take("uid-c") == "cannot find target reservation"


class ReservationsInAnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.register = Register()
        self.held: dict[str, Holding] = {}
        self.parts: dict[str, Occupant] = {}

    @rule(
        n=st.integers(0, 3),
        node=st.sampled_from(["", "n1", "n2"]),
        cpu=st.integers(0, 9),
        owner=st.sampled_from(OWNERS),
    )
    def see(self, n: int, node: str, cpu: int, owner: ReservationOwner) -> None:
        seen = holding(f"r{n}", owner, node=node, reserved=amounts(cpu), once=bool(n % 2), available=cpu > 1)
        self.held[seen.uid] = seen
        self.register.handle(Seen(seen))

    @rule(n=st.integers(0, 3))
    def lose(self, n: int) -> None:
        self.held.pop(f"uid-r{n}", None)
        self.register.handle(Gone(f"uid-r{n}"))

    @rule(n=st.integers(0, 4), r=st.integers(0, 3), node=st.sampled_from(["n1", "n2"]), cpu=st.integers(0, 9))
    def occupy(self, n: int, r: int, node: str, cpu: int) -> None:
        part = Occupant(uid=f"o{n}", reservation=f"uid-r{r}", node=node, requests=amounts(cpu))
        self.parts[part.uid] = part
        self.register.handle(Occupied(part))

    @rule(n=st.integers(0, 4))
    def vacate(self, n: int) -> None:
        self.parts.pop(f"o{n}", None)
        self.register.handle(Vacated(f"o{n}"))

    @invariant()
    def equals_one_made_anew(self) -> None:
        anew = Register.of(self.held.values(), self.parts.values())
        assert self.register.standings == anew.standings
        assert sorted(self.register.nodes) == sorted(anew.nodes)
        for node in ("n1", "n2"):
            assert self.register.on(node) == anew.on(node)
        for seeker in (pod("p0", labels={"app": "a"}), pod("p1"), pod("p2", ignores=True)):
            assert self.register.candidates(seeker) == anew.candidates(seeker)

    @invariant()
    def sums_over_nodes_are_sums_over_pods(self) -> None:
        there = [part for part in self.parts.values() if self.counts(part)]
        held = sum(s.allocated.get("cpu", 0) for s in self.register.standings.values())
        assert held == sum(part.requests.get("cpu", 0) for part in there)

    def counts(self, part: Occupant) -> bool:
        found = self.held.get(part.reservation)
        return found is not None and found.available and found.node == part.node


TestReservations = ReservationsInAnyOrder.TestCase
TestReservations.settings = settings(max_examples=runs(30, 25), stateful_step_count=25, deadline=None)
