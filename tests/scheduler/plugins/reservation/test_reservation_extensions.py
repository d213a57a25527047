"""Plugins of other packages have a say about single reservations; one is the example of docs/plugins.md."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from koord.api.kubernetes.node import Node
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.attempt import SchedulingAttempt
from koord.scheduler.framework.binding_runtime import run_pre_bind
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import AttemptError, ChosenNode
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.reservation import MatchedReservation
from koord.scheduler.framework.verdict import BindEffect, Fault, PodPatch, Reject, reject
from tests.plugin_page import example
from tests.scheduler.builders import make_node, make_pod
from tests.scheduler.plugins.reservation.reservation_cluster import (
    OWNER,
    ReservationCluster,
    owner,
    reservation,
    reserve_pod,
)

TIER, POOL = "example.com/tier", "example.com/pool"


def tier_plugin() -> Plugin:
    made = example("scheduler-reservations")["ReservationTier"]()
    assert isinstance(made, Plugin)
    return made


def cluster(*plugins: Plugin) -> ReservationCluster:
    return ReservationCluster(node(), others=plugins)


def node() -> Node:
    return make_node("n0", cpu="16")


def of_tier(tier: str, name: str = "o", *, insists: bool = False) -> Pod:
    return owner(name, cpu="1", affinity={} if insists else None, labels={**OWNER, TIER: tier})


def test_a_pod_takes_a_reservation_of_its_tier() -> None:
    world = cluster(tier_plugin())
    world.put(reservation("gold", "n0", labels={TIER: "gold"}))
    world.put(reservation("silver", "n0", labels={TIER: "silver"}))
    assert world.promise(of_tier("silver", "a")) == ("n0", "silver")
    assert world.promise(of_tier("gold", "b")) == ("n0", "gold")


def test_the_words_of_a_rejection_reach_a_pod_that_insists_on_a_reservation() -> None:
    world = cluster(tier_plugin())
    world.put(reservation("gold", "n0", labels={TIER: "gold"}))
    assert "1 Reservation(s) of tier gold" in world.message(of_tier("silver", insists=True))
    assert world.promise(of_tier("silver", "free")) == ("n0", "")  # one that does not takes the node without it


def test_equal_pods_of_other_tiers_do_not_share_a_verdict() -> None:
    world = cluster(tier_plugin())
    world.put(reservation("gold", "n0", labels={TIER: "gold"}))
    assert world.node_for(of_tier("gold", "a", insists=True)) == "n0"
    assert world.node_for(of_tier("silver", "b", insists=True)) == ""
    assert world.node_for(of_tier("gold", "c", insists=True)) == "n0"


@pytest.mark.parametrize("pool", ["a", "b"])
def test_scores_of_other_plugins_decide_between_reservations_that_are_equal(pool: str) -> None:
    world = cluster(tier_plugin())
    for name in ("a", "b"):
        world.put(reservation(name, "n0", labels={POOL: "batch" if name == pool else "web"}))
    assert world.promise(owner(cpu="1")) == ("n0", pool)


def test_a_reserve_pod_meets_pre_bind_reservation_and_no_other_pod_does() -> None:
    world = cluster(tier_plugin())
    held = reservation("r")
    world.put(held)

    def patch_of(pod: Pod) -> PodPatch | None:
        info = world.state.pod_info(pod)
        chosen = ChosenNode("n0", 1, 0, {})
        attempt = SchedulingAttempt(world.profile, info, CycleState(world.state), chosen)

        async def nothing(_: object) -> Fault | None:
            return None

        answer = asyncio.run(run_pre_bind(attempt, nothing))
        assert answer is None or isinstance(answer, PodPatch)
        return answer

    found = patch_of(reserve_pod(held))
    assert found is not None
    assert found.annotations["example.com/placed-on"] == "n0"
    assert patch_of(make_pod("plain")) is None


class Witness(Plugin):
    """Record what is asked; reject, fail or score as it is told."""

    name = "Witness"

    def __init__(self, against: Reject | Fault | None = None, nominating: Reject | None = None, score: int = 0) -> None:
        self.against, self.nominating, self.given = against, nominating, score
        self.restored: list[dict[str, list[str]]] = []

    def restore_reservations(
        self, cycle: CycleState, pod: PodInfo, matched: Mapping[str, Sequence[MatchedReservation]]
    ) -> Fault | None:
        self.restored.append({name: sorted(one.name for one in found) for name, found in matched.items()})
        return None

    def filter_reservation(
        self, cycle: CycleState, pod: PodInfo, reservation: MatchedReservation, node: NodeInfo
    ) -> Reject | Fault | None:
        return self.against

    def filter_nominated_reservation(
        self, cycle: CycleState, pod: PodInfo, reservation: MatchedReservation, node: NodeInfo
    ) -> Reject | Fault | None:
        return self.nominating if reservation.name == "a" else None

    def score_reservation(
        self, cycle: CycleState, pod: PodInfo, reservation: MatchedReservation, node: NodeInfo
    ) -> int:
        return self.given

    def pre_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> BindEffect | Reject | Fault | None:
        return None


def test_restoring_names_the_reservations_that_the_pod_may_use() -> None:
    witness = Witness()
    world = cluster(witness)
    world.put(reservation("a", "n0"))
    world.put(reservation("b", "n0", owners=[{"labelSelector": {"matchLabels": {"app": "other"}}}]))
    assert world.node_for(owner(cpu="1")) == "n0"
    assert witness.restored == [{"n0": ["a"]}]
    assert world.node_for(make_pod("plain")) == "n0"
    assert len(witness.restored) == 1


def test_a_reservation_that_may_not_be_nominated_leaves_the_others() -> None:
    world = cluster(Witness(nominating=reject("Reservation(s) is closed")))
    world.put(reservation("a", "n0"))
    world.put(reservation("b", "n0"))
    assert world.promise(owner(cpu="1")) == ("n0", "b")


def test_a_fault_ends_the_attempt() -> None:
    world = cluster(Witness(against=Fault("no answer")))
    world.put(reservation("a", "n0"))
    decision = world.decide(owner(cpu="1", affinity={}))
    assert isinstance(decision, AttemptError)
    assert "Witness: no answer" in decision.message


def test_a_score_out_of_range_names_the_plugin() -> None:
    world = cluster(Witness(score=101))
    world.put(reservation("a", "n0"))
    world.put(reservation("b", "n0"))
    with pytest.raises(ValueError, match=r'plugin "Witness" returns an invalid score 101 for reservation .*\[0, 100\]'):
        world.promise(owner(cpu="1"))
