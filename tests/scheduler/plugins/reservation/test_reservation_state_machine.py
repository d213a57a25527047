"""Any history of reservations, owners, strangers and nodes: after every step the book and the sums are what live
objects say, and an engine that lived through it judges as one that is made anew.

R30: free = allocatable - used - unconsumed reservations, whatever happened. R16, R25: what an engine kept is never
stale, so whoever is woken sees what woke it. `make soak` makes the long walk longer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.scheduler.cache.pod_model import Pod
from tests.scheduler.builders import make_node
from tests.scheduler.plugins.reservation.reservation_cluster import (
    ReservationCluster,
    bound,
    owner,
    reservation,
    stranger,
)
from tests.soak_budget import soak_events

NODES = ("n0", "n1", "n2")
PLACES = (*NODES, "")  # "": none yet
EVENTS = soak_events(100_000)
SEEDS = 4

PROBES = (
    stranger("probe-stranger", cpu="2"),
    owner("probe-owner", cpu="2"),
    owner("probe-large", cpu="5", affinity={}),
    owner("probe-named", cpu="1", affinity={"name": "r1"}),
    owner("probe-labelled", cpu="1", affinity={"reservationSelector": {"zone": "z1"}}),
    stranger("probe-ignorer", cpu="3", labels={"scheduling.koordinator.sh/reservation-ignored": "true"}),
)


class ReservationHistory:
    """Live objects and the world that heard of them. Every method is one event; what is impossible does nothing."""

    def __init__(self) -> None:
        self.nodes = {name: make_node(name) for name in NODES}
        self.world = ReservationCluster(*self.nodes.values())
        self.reservations: dict[str, Reservation] = {}
        self.bound: dict[str, Pod] = {}
        self.promised: dict[str, Pod] = {}
        self._made = 0

    # Events ------------------------------------------------------------------------------------------------------

    def reserve(self, name: str, node: str, cpu: int, kind: int) -> None:
        """A new one, or a change of one that is there: its node, its size, its policy, its flag."""
        if node not in self.nodes:
            node = ""
        spec: dict[str, Any] = {
            "allocatePolicy": ("", "Aligned", "Restricted")[kind % 3],
            "allocateOnce": kind % 4 == 0,
            "unschedulable": kind % 7 == 0,
        }
        labels = {"scheduling.koordinator.sh/reservation-order": str(kind)} if kind % 5 == 0 else {}
        self.reservations[name] = self.world.put(reservation(name, node, cpu=str(cpu), labels=labels, **spec))

    def end(self, name: str) -> None:
        there = self.reservations.pop(name, None)
        if there is not None:
            self.world.put(reservation(name, there.status.node_name, phase="Failed"))

    def delete(self, name: str) -> None:
        self.reservations.pop(name, None)
        self.world.drop(name)

    def arrive(self, cpu: int, mine: bool) -> None:
        """A pod is decided about, assumed, and takes its part."""
        self._made += 1
        pod = (owner if mine else stranger)(f"p{self._made}", cpu=str(cpu))
        if self.world.promise(pod)[0]:
            self.promised[pod.metadata.name] = pod

    def confirm(self, number: int) -> None:
        pod = _nth(self.promised, number)
        if pod is not None:
            self.bound[pod.metadata.name] = self.world.bound_as_promised(pod)
            del self.promised[pod.metadata.name]
            self.world.bind(self.bound[pod.metadata.name])

    def undo(self, number: int) -> None:
        pod = _nth(self.promised, number)
        if pod is not None:
            del self.promised[pod.metadata.name]
            self.world.undo(pod)

    def come(self, node: str, cpu: int, name: str) -> None:
        """A pod that somebody else bound, which says that it owns a part of a reservation, or of one that is not."""
        self._made += 1
        pod = bound(owner(f"p{self._made}", cpu=str(cpu)), node, (name, f"uid-{name}") if name else None)
        self.bound[pod.metadata.name] = pod
        self.world.bind(pod)

    def leave(self, number: int) -> None:
        pod = _nth(self.bound, number)
        if pod is not None:
            del self.bound[pod.metadata.name]
            self.world.unbind(pod)

    def relabel(self, node: str, zone: str) -> None:
        if node in self.nodes:
            self.nodes[node] = make_node(node, labels={"zone": zone})
            self.world.state.set_node(self.nodes[node])

    def remove_node(self, node: str) -> None:
        if len(self.nodes) > 1 and self.nodes.pop(node, None) is not None:
            self.world.state.drop_node(node)

    def add_node(self, node: str) -> None:
        self.nodes[node] = make_node(node)
        self.world.state.set_node(self.nodes[node])

    # What must be true -------------------------------------------------------------------------------------------

    def check_sums(self) -> None:
        state, register = self.world.state, self.world.book.register
        used: dict[str, int] = dict.fromkeys(NODES, 0)
        left = {
            there.metadata.uid: (there.status.node_name, resource_amounts(there.status.allocatable)["cpu"])
            for there in self.reservations.values()
            if there.status.phase == "Available"
        }
        for pod in (*self.bound.values(), *self.promised.values()):
            placed = state.placed_pod(pod.metadata.uid)
            assert placed is not None
            used[placed.node_name] += placed.requests["cpu"]
            part = register.owner_pod(placed.uid)
            if part is not None and part.reservation in left and left[part.reservation][0] == placed.node_name:
                node, amount = left[part.reservation]
                left[part.reservation] = (node, amount - placed.requests["cpu"])
        for node, amount in left.values():
            used[node] += max(0, amount)
        held = {node.name: node.requested.get("cpu", 0) for node in state.table.index.values()}
        assert {name: held.get(name, 0) for name in NODES} == used

    def rebuilt(self) -> ReservationCluster:
        again = ReservationCluster(*self.nodes.values())
        for pod in self.bound.values():
            again.bind(pod)
        for there in self.reservations.values():
            again.put(there)
        for pod in self.promised.values():
            placed = self.world.state.placed_pod(pod.metadata.uid)
            assert placed is not None
            again.state.assume(again.state.pod_info(pod), placed.node_name)
            part = self.world.book.register.owner_pod(placed.uid)
            if part is not None:
                again.book.assume_owner(again.state.pod_info(pod), part.reservation, placed.node_name)
        return again

    def check_all(self) -> None:
        self.check_sums()
        again = self.rebuilt()
        assert again.sums() == self.world.sums()
        assert again.book.register.usages == self.world.book.register.usages
        for probe in PROBES:
            assert self.world.said(probe) == again.said(probe), probe.metadata.name


def _nth(pods: dict[str, Pod], number: int) -> Pod | None:
    return list(pods.values())[number % len(pods)] if pods else None


names = st.sampled_from(("r0", "r1", "r2", "r3"))
nodes = st.sampled_from(NODES)
some_cpu = st.integers(1, 5)
numbers = st.integers(0, 20)


class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.life = ReservationHistory()

    @rule(name=names, node=st.sampled_from(PLACES), cpu=some_cpu, kind=numbers)
    def reserve(self, name: str, node: str, cpu: int, kind: int) -> None:
        self.life.reserve(name, node, cpu, kind)

    @rule(name=names)
    def end(self, name: str) -> None:
        self.life.end(name)

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.life.delete(name)

    @rule(cpu=some_cpu, mine=st.booleans())
    def arrive(self, cpu: int, mine: bool) -> None:
        self.life.arrive(cpu, mine)

    @rule(number=numbers)
    def confirm(self, number: int) -> None:
        self.life.confirm(number)

    @rule(number=numbers)
    def undo(self, number: int) -> None:
        self.life.undo(number)

    @rule(node=nodes, cpu=some_cpu, name=st.sampled_from(("r0", "r1", "")))
    def come(self, node: str, cpu: int, name: str) -> None:
        self.life.come(node, cpu, name)

    @rule(number=numbers)
    def leave(self, number: int) -> None:
        self.life.leave(number)

    @rule(node=nodes, zone=st.sampled_from(("z0", "z1")))
    def relabel(self, node: str, zone: str) -> None:
        self.life.relabel(node, zone)

    @rule(node=nodes)
    def remove_node(self, node: str) -> None:
        self.life.remove_node(node)

    @rule(node=nodes)
    def add_node(self, node: str) -> None:
        self.life.add_node(node)

    @invariant()
    def as_made_anew(self) -> None:
        if hasattr(self, "life"):
            self.life.check_all()


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_long_walk_keeps_the_sums(seed: int) -> None:
    """Every event is followed by a look at the sums; now and then by everything."""
    chance = random.Random(seed)
    life = ReservationHistory()
    some: list[tuple[int, Callable[[], None]]] = [
        (
            6,
            lambda: life.reserve(
                _name(chance), chance.choice((*NODES, "")), chance.randint(1, 5), chance.randint(0, 20)
            ),
        ),
        (2, lambda: life.end(_name(chance))),
        (2, lambda: life.delete(_name(chance))),
        (10, lambda: life.arrive(chance.randint(1, 5), chance.random() < 0.6)),
        (30, lambda: life.confirm(chance.randint(0, 20))),
        (15, lambda: life.undo(chance.randint(0, 20))),
        (15, lambda: life.come(chance.choice(NODES), chance.randint(1, 3), chance.choice(("r0", "r1", "")))),
        (40, lambda: life.leave(chance.randint(0, 20))),
        (2, lambda: life.relabel(chance.choice(NODES), chance.choice(("z0", "z1")))),
        (1, lambda: life.remove_node(chance.choice(NODES))),
        (2, lambda: life.add_node(chance.choice(NODES))),
    ]
    weights = [weight for weight, _ in some]
    deeds = [deed for _, deed in some]
    for number, event in enumerate(chance.choices(deeds, weights, k=EVENTS // SEEDS)):
        event()
        life.check_sums()
        if number % 1000 == 0:
            life.check_all()


def _name(chance: random.Random) -> str:
    return f"r{chance.randint(0, 3)}"
