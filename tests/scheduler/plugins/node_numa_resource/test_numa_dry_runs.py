"""NodeNUMAResource beside others: pods that leave or come in a what-if, reservations, hints of devices, waking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.dry_run import DryRuns
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.reservation import (
    MatchedReservation,
    NumaTopologyHint,
    NumaTopologyHints,
    numa_affinities,
    writable_reservations,
)
from koord.scheduler.framework.verdict import ROW, Reject, Skip, reject
from koord.scheduler.plugins.node_numa_resource.cache import NodeAllocation, PodAllocation
from koord.scheduler.plugins.node_numa_resource.ledger import NumaAllocation
from koord.values.bitmask import BitMask
from koord.values.cpuset import CPUSet
from tests.scheduler.plugins.node_numa_resource.numa_builders import machine
from tests.scheduler.plugins.node_numa_resource.numa_cluster import (
    STATUS,
    NumaCluster,
    bound,
    node,
    pod,
    told,
    topology,
)

SINGLE = {"numa-topology-policy": "SingleNUMANode"}
NOT_ENOUGH = "not enough cpus available to satisfy request"


def full_node(*, labels: Any = None) -> NumaCluster:
    """Eight CPUs of sixteen bound by each of two pods, and room for more by Kubernetes' count."""
    cluster = NumaCluster().add(node("a", 32, labels=labels)).describe(topology("a"))
    for name in ("x", "y"):
        assert cluster.place(pod(name, 8)).startswith("a ")
    return cluster


# Pods that leave and come ----------------------------------------------------------------------------------------


def prepared(cluster: NumaCluster, one: Any) -> tuple[DryRuns, NodeInfo]:
    info = cluster.info(one)
    cycle = cluster.engine.decide(info).cycle
    return DryRuns(cluster.engine.profile, cycle, info), cluster.state.table.index["a"]


@pytest.mark.parametrize("labels", [pytest.param(None, id="no-policy"), pytest.param(SINGLE, id="one-numa-node")])
def test_a_pod_fits_once_another_has_left_and_not_when_it_is_back(labels: Any) -> None:
    cluster = full_node(labels=labels)
    trials, there = prepared(cluster, pod("p", 4))
    trial = trials.dry_run_on(there)
    assert trial.run_filters() is not None
    victim = there.pods["uid-x"]
    trial.remove(victim)
    assert trial.run_filters() is None
    trial.add(victim)
    assert trial.run_filters() is not None
    assert set(cluster.books.pod_allocations()["a"]) == {"uid-x", "uid-y"}, "nothing happened to the live books"


def test_a_pod_that_is_expected_takes_its_cpus() -> None:
    cluster = full_node()
    cluster.state.drop_pod("uid-x")
    trials, there = prepared(cluster, pod("p", 8))
    coming = cluster.info(pod("first", 2))
    assert trials.dry_run_on(there).run_filters() is None
    said = trials.dry_run_on(there).run_filters([coming])
    assert said is not None
    assert said[1].text == NOT_ENOUGH


# Reservations ----------------------------------------------------------------------------------------------------

RESERVE = {"scheduling.koordinator.sh/reserve-pod": "true"}


def reserved(cluster: NumaCluster, cpus: str = "0-7", *, policy: str = "") -> MatchedReservation:
    given = pod("r", 8, node_name="a", annotations={**RESERVE, STATUS: {"cpuset": cpus}})
    holder = cluster.state.set_pod(given)
    assert holder is not None
    return MatchedReservation(uid="uid-r", name="r", node_name="a", policy=policy, reserve_pod=holder)


def owner(name: str, cpus: str) -> Any:
    allocated = '{"name": "r", "uid": "uid-r"}'
    return pod(
        name,
        2,
        node_name="a",
        annotations={STATUS: {"cpuset": cpus}, "scheduling.koordinator.sh/reservation-allocated": allocated},
    )


def given_in(cluster: NumaCluster, one: Any, held: MatchedReservation, *, nominated: bool = True) -> str:
    info = cluster.info(one)
    cycle = CycleState(cluster.state)
    writable_reservations(cycle).matched = {"a": (held,)}
    if nominated:
        writable_reservations(cycle).nominated[info.uid] = held
    answer = cluster.plugin.pre_filter(cycle, info)
    assert not isinstance(answer, Skip)
    there = cluster.state.table.index["a"]
    verdict = cluster.plugin.filter(cycle, info, there)
    if verdict is not None:
        return verdict.text
    answer = cluster.plugin.reserve(cycle, info, there)
    if isinstance(answer, Reject):
        return f"reserve: {answer.text}"
    return told(cluster.books.pod_allocations()["a"][info.uid].allocation)


def with_room(**fields: Any) -> NumaCluster:
    return NumaCluster(**fields).add(node("a", 32)).describe(topology("a"))


@pytest.mark.parametrize("policy", ["", "Aligned", "Restricted"])
def test_a_pod_gets_the_cpus_that_its_reservation_has_left(policy: str) -> None:
    cluster = with_room()
    held = reserved(cluster, policy=policy)
    cluster.state.set_pod(owner("o", "0-3"))
    assert given_in(cluster, pod("p", 4), held) == "4-7"


def test_what_owners_have_is_not_counted_twice_and_comes_back() -> None:
    cluster = with_room()
    reserved(cluster)
    site = cluster.plugin.evaluator.profiles.for_node(cluster.state.table.index["a"])
    cluster.state.set_pod(owner("o", "0-3"))
    assert str(cluster.books.node_allocation(site, "a").ledger.cpus_of("uid-r")) == "4-7"
    cluster.state.drop_pod("uid-o")
    assert str(cluster.books.node_allocation(site, "a").ledger.cpus_of("uid-r")) == "0-7"


def test_strangers_do_not_get_what_is_reserved() -> None:
    cluster = with_room()
    reserved(cluster)
    assert cluster.place(pod("p", 8)) == "a 8-15"
    assert cluster.place(pod("q", 2)) == f"0/1 nodes are available: 1 {NOT_ENOUGH}."


def test_a_restricted_reservation_gives_no_more_than_it_has() -> None:
    cluster = with_room()
    held = reserved(cluster, "4-5", policy="Restricted")
    one = pod("p", 4, annotations={"scheduling.koordinator.sh/reservation-affinity": "{}"})
    assert given_in(cluster, one, held) == f"Reservation(s) {NOT_ENOUGH}"


def test_another_reservation_is_filled_up_from_what_is_free() -> None:
    cluster = with_room()
    held = reserved(cluster, "4-5")
    assert given_in(cluster, pod("p", 4), held) == "4-5,8-9"


def test_an_affinity_without_a_reservation_chosen_is_refused() -> None:
    cluster = with_room()
    held = reserved(cluster)
    one = pod("p", 4, annotations={"scheduling.koordinator.sh/reservation-affinity": "{}"})
    assert given_in(cluster, one, held, nominated=False) == "reserve: no nominated reservation"


def test_a_pod_that_ignores_reservations_uses_them_as_if_they_were_free() -> None:
    cluster = with_room()
    held = reserved(cluster)
    one = pod("p", 16, labels={"scheduling.koordinator.sh/reservation-ignored": "true"})
    assert given_in(cluster, one, held, nominated=False) == "0-15"


def test_a_promise_out_of_a_reservation_is_taken_off_it() -> None:
    cluster = with_room()
    held = reserved(cluster)
    assert given_in(cluster, pod("p", 4), held) == "0-3"
    site = cluster.plugin.evaluator.profiles.for_node(cluster.state.table.index["a"])
    assert str(cluster.books.node_allocation(site, "a").ledger.cpus_of("uid-r")) == "4-7"
    cluster.plugin.unreserve(CycleState(cluster.state), cluster.info(pod("p", 4)), "a")
    assert str(cluster.books.node_allocation(site, "a").ledger.cpus_of("uid-r")) == "0-7"


def test_guests_may_come_before_their_host() -> None:
    topo = machine(1, 2, 4, 2)
    host, guest = PodAllocation(_given("0-7")), PodAllocation(_given("0-3"), "host")
    one = NodeAllocation.for_topology(topo, {"host": host, "guest": guest})
    other = NodeAllocation.for_topology(topo, {"guest": guest, "host": host})
    assert one.ledger.pods == other.ledger.pods
    assert str(one.without_pod("guest").ledger.cpus_of("host")) == "0-7"
    assert one.without_pod("host").ledger.pods.keys() == {"guest"}


def _given(cpus: str) -> NumaAllocation:
    return NumaAllocation(cpus=CPUSet.parse(cpus))


# Hints of others -------------------------------------------------------------------------------------------------


class Cards(Plugin):
    """Has one card on each NUMA node that it is told of."""

    name = "Cards"
    scope = ROW

    def __init__(self, zones: Sequence[int], *, refuses: str = "") -> None:
        self._zones = zones
        self._refuses = refuses
        self.asked: list[BitMask | None] = []

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return None

    def numa_hints(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> NumaTopologyHints | Reject | None:
        return {"cards": [NumaTopologyHint(BitMask.of(n), preferred=True) for n in self._zones]}

    def numa_fits(self, cycle: CycleState, pod: PodInfo, node: NodeInfo, zones: BitMask | None) -> Reject | None:
        self.asked.append(zones)
        return reject(self._refuses) if self._refuses else None


def test_cpus_go_where_the_cards_are() -> None:
    cards = Cards([1])
    cluster = NumaCluster(cards).add(node("a", labels=SINGLE)).describe(topology("a"))
    assert cluster.place(pod("p", 4)) == "a 8-11 {1: cpu 4000}"
    assert cards.asked[-1] == BitMask.of(1)


def test_cards_on_a_numa_node_that_is_full_refuse_the_node() -> None:
    cluster = NumaCluster(Cards([0])).add(node("a", 32, labels=SINGLE)).describe(topology("a"))
    assert cluster.place(pod("p", 8)) == "a 0-7 {0: cpu 8000}"
    told = "cards prefer [01] among [01],cpu prefer [10] among [10],memory prefer [10] among [10 11]"
    assert cluster.place(pod("q", 2)) == f"0/1 nodes are available: 1 Unaligned NUMA Hint cause {told}."


def test_what_others_cannot_give_is_told_in_their_words() -> None:
    cluster = NumaCluster(Cards([0], refuses="no card left")).add(node("a", labels=SINGLE)).describe(topology("a"))
    assert cluster.place(pod("p", 4)) == "0/1 nodes are available: 1 no card left."


def test_zones_are_told_to_those_who_reserve_later() -> None:
    cluster = NumaCluster().add(node("a", labels=SINGLE)).describe(topology("a"))
    info = cluster.info(pod("p", 4))
    cycle = cluster.engine.decide(info).cycle
    cluster.state.assume(info, "a")
    assert cluster.plugin.reserve(cycle, info, cluster.state.table.index["a"]) is None
    assert numa_affinities(cycle) == {"uid-p": BitMask.of(0)}
    cluster.plugin.unreserve(cycle, info, "a")
    assert numa_affinities(cycle) == {}


# Waking ----------------------------------------------------------------------------------------------------------


def hope(cluster: NumaCluster, one: Any, kind: str, action: str, old: Any = None, new: Any = None) -> bool:
    return cluster.plugin.queueing_hint(cluster.info(one), ObjectEvent(ClusterEvent(kind, action), old, new))


def test_what_wakes_a_refused_pod_and_what_does_not() -> None:
    cluster = full_node()
    one = pod("p", 4)
    gone = cluster.state.placed_pod("uid-x")
    plain = cluster.info(bound(pod("z", 1, qos="LS"), "a", None))
    assert hope(cluster, one, "Pod", DELETE, old=gone)
    assert not hope(cluster, one, "Pod", DELETE, old=plain), "it held no CPUs of its own"
    assert hope(cluster, one, "NodeResourceTopology", UPDATE, new=topology("a"))
    assert not hope(cluster, one, "NodeResourceTopology", ADD, new=topology("elsewhere"))
    assert not hope(cluster, pod("p", 40), "Node", UPDATE, new=node("a")), "the machine has sixteen CPUs"
    assert hope(cluster, one, "Node", ADD, new=node("a"))


def test_a_pod_that_changes_what_it_asks_for_is_looked_at_again() -> None:
    cluster = full_node()
    before, after = cluster.info(pod("p", 4)), cluster.info(pod("p", 4, qos="LS"))
    assert hope(cluster, pod("p", 4, qos="LS"), "Pod", UPDATE, before, after)
    assert not hope(cluster, pod("p", 4), "Pod", UPDATE, before, before)


def test_designated_cpus_are_given_again_or_not_at_all() -> None:
    hint: dict[str, Any] = {
        "internal.scheduling.koordinator.sh/scheduling-hint": {"extensions": {"NodeNUMAResource": {}}}
    }
    cluster = with_room()
    one = pod("p", 4, annotations={STATUS: {"cpuset": "8-11"}, **hint})
    found = cluster.decide(one)
    assert not isinstance(found, str), found
    assert str(cluster.books.pod_allocations()["a"]["uid-p"].allocation.cpus) == "8-11"
    other = msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, name="q", uid="uid-q"))
    assert cluster.decide(other) == f"0/1 nodes are available: 1 {NOT_ENOUGH}."


def test_what_a_pod_carries_from_an_earlier_life_holds_nothing_until_it_is_bound() -> None:
    cluster = with_room()
    stale = pod("p", 4, annotations={STATUS: {"cpuset": "8-15"}})
    assert cluster.place(stale) == "a 0-3"
    lent = pod("q", 4, qos="LS", annotations={STATUS: {"cpuset": "12-15"}})
    assert cluster.decide(lent) == ("a", None)
    assert set(cluster.books.pod_allocations()["a"]) == {"uid-p"}
    cluster.bind("uid-q")
    assert str(cluster.books.pod_allocations()["a"]["uid-q"].allocation.cpus) == "12-15", (
        "the node agent goes by it, so it counts"
    )
