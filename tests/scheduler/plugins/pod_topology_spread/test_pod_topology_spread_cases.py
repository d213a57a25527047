"""PodTopologySpread by example: each rule of the documentation once, what-ifs, defaults and hints."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.api.config.scheduler.in_tree_args import PodTopologySpreadArgs
from koord.api.kubernetes.meta import OwnerReference
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.verdict import Skip
from koord.scheduler.plugins.pod_topology_spread.constraint import (
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    SERVICE,
    STATEFUL_SET,
    OwnerIndex,
    default_selector,
)
from koord.scheduler.plugins.pod_topology_spread.plugin import PodTopologySpread
from koord.values.selector import Selector
from tests.scheduler.builders import HOSTNAME, ZONE, make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import profile_of, view_of
from tests.scheduler.plugins.affinity_clusters import ENDING
from tests.scheduler.plugins.affinity_oracle import SPREAD, UNLABELLED

WEB = {"app": "web"}
SYSTEM = PodTopologySpreadArgs(defaulting_type="System")


def spread(key: str = ZONE, skew: int = 1, when: str = "DoNotSchedule", **words: Any) -> dict[str, Any]:
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": WEB},
        **words,
    }


def web(name: str, node: str = "", **words: Any) -> Pod:
    return make_pod(name, node=node, **{"labels": WEB, **words})


def zoned(name: str, zone: str, **words: Any) -> Any:
    return make_node(name, labels={ZONE: zone}, **words)


NODES = (zoned("a1", "a"), zoned("a2", "a"), zoned("b1", "b"), zoned("c1", "c"))


def plugin(state: ClusterState, owners: OwnerIndex | None = None) -> PodTopologySpread:
    return PodTopologySpread(SYSTEM, state, owners or OwnerIndex())


def refusals(state: ClusterState, pod: Pod) -> dict[str, str]:
    told = view_of(SchedulingEngine(profile_of([plugin(state)]), state), state, pod)
    return {name: said[1].text for name, said in told.items() if isinstance(said[0], str)}


ONE_IN_A = (web("old", "a1"),)


@pytest.mark.parametrize(
    ("constraints", "placed", "refused"),
    [
        pytest.param([spread()], (), "", id="empty-cluster-takes-it-anywhere"),
        pytest.param([spread()], ONE_IN_A, "a1 a2", id="the-fuller-zone-is-refused"),
        pytest.param([spread(skew=2)], ONE_IN_A, "", id="within-the-skew"),
        pytest.param(
            [spread()], (*ONE_IN_A, web("o2", "b1"), web("o3", "c1")), "", id="all-zones-alike-raise-the-floor"
        ),
        pytest.param(
            [spread(labelSelector={"matchLabels": {"app": "db"}})],
            (make_pod("d1", node="a1", labels={"app": "db"}), make_pod("d2", node="a1", labels={"app": "db"})),
            "a1 a2",
            id="a-pod-that-does-not-count-itself-may-not-join-what-is-too-full",
        ),
        pytest.param(
            [spread(labelSelector={"matchLabels": {"app": "db"}})],
            (make_pod("d1", node="a1", labels={"app": "db"}),),
            "",
            id="a-pod-that-does-not-count-itself-adds-nothing",
        ),
        pytest.param([spread(labelSelector=None)], ONE_IN_A, "", id="no-selector-counts-nobody"),
        pytest.param([spread(labelSelector={})], (*ONE_IN_A, web("o2", "a1")), "", id="empty-selector-counts-nobody"),
        pytest.param([spread()], (web("old", "a1", namespace="other"),), "", id="other-namespaces-do-not-count"),
        pytest.param([spread(minDomains=4)], ONE_IN_A, "a1 a2", id="too-few-domains-keep-the-floor-at-zero"),
        pytest.param(
            [spread(minDomains=4)],
            (*ONE_IN_A, web("o2", "b1"), web("o3", "c1")),
            "a1 a2 b1 c1",
            id="too-few-domains-refuse-even-when-balanced",
        ),
        pytest.param(
            [spread(minDomains=3)], (*ONE_IN_A, web("o2", "b1"), web("o3", "c1")), "", id="enough-domains-are-balanced"
        ),
        pytest.param([spread(), spread(HOSTNAME)], (web("o1", "b1"),), "b1", id="two-constraints-must-both-hold"),
        pytest.param([spread("rack")], (), "a1 a2 b1 c1", id="no-node-has-the-key"),
        pytest.param(
            [spread(matchLabelKeys=["rev"])],
            (web("old", "a1", labels={**WEB, "rev": "1"}), web("o2", "b1", labels={**WEB, "rev": "2"})),
            "b1",
            id="matchLabelKeys-count-the-same-revision-only",
        ),
    ],
)
def test_hard_constraints(constraints: list[Any], placed: tuple[Pod, ...], refused: str) -> None:
    state = make_state(NODES, placed)
    pod = web("new", labels={**WEB, "rev": "2"}, topologySpreadConstraints=constraints)
    text = UNLABELLED if constraints[0]["topologyKey"] == "rack" else SPREAD
    assert refusals(state, pod) == dict.fromkeys(refused.split(), text)


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        pytest.param({}, "a1 a2", id="taints-are-ignored-unless-said"),
        pytest.param({"nodeTaintsPolicy": "Ignore"}, "a1 a2", id="ignored"),
        pytest.param({"nodeTaintsPolicy": "Honor"}, "", id="honoured-the-empty-tainted-zone-does-not-exist"),
    ],
)
def test_taints_policy(policy: dict[str, str], refused: str) -> None:
    nodes = (*NODES[:3], zoned("c1", "c", taints=["gone=:NoSchedule"]))
    state = make_state(nodes, (*ONE_IN_A, web("o2", "b1"), web("o3", "a2")))
    pod = web("new", topologySpreadConstraints=[spread(skew=2, **policy)])
    assert refusals(state, pod) == dict.fromkeys(refused.split(), SPREAD)
    tolerant = web("new", topologySpreadConstraints=[spread(skew=2, **policy)], tolerations=[{"operator": "Exists"}])
    assert refusals(state, tolerant) == dict.fromkeys(("a1", "a2"), SPREAD)


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        pytest.param({}, "", id="affinity-is-honoured-unless-said"),
        pytest.param({"nodeAffinityPolicy": "Honor"}, "", id="honoured-the-unselected-zone-does-not-exist"),
        pytest.param({"nodeAffinityPolicy": "Ignore"}, "a1 a2", id="ignored"),
    ],
)
def test_affinity_policy(policy: dict[str, str], refused: str) -> None:
    nodes = [make_node(n, labels={ZONE: n[0], "pool": "x" if n[0] != "c" else "y"}) for n in ("a1", "a2", "b1", "c1")]
    state = make_state(nodes, (*ONE_IN_A, web("o2", "b1"), web("o3", "a2")))
    pod = web("new", topologySpreadConstraints=[spread(skew=2, **policy)], nodeSelector={"pool": "x"})
    assert refusals(state, pod) == dict.fromkeys(refused.split(), SPREAD)


def test_pods_that_are_being_deleted_do_not_count() -> None:
    state = make_state(NODES, ONE_IN_A)
    engine = SchedulingEngine(profile_of([plugin(state)]), state)
    pod = web("new", topologySpreadConstraints=[spread()])
    assert isinstance(view_of(engine, state, pod)["a1"][0], str)
    old = ONE_IN_A[0]
    meta = msgspec.structs.replace(old.metadata, deletion_timestamp=ENDING)
    state.set_pod(msgspec.structs.replace(old, metadata=meta))
    assert view_of(engine, state, pod)["a1"] == (0, {})
    state.drop_pod(old.metadata.uid)
    assert view_of(engine, state, pod)["a1"] == (0, {})


def test_a_taint_that_comes_changes_what_is_counted() -> None:
    state = make_state(NODES, (*ONE_IN_A, web("o2", "b1"), web("o3", "a2")))
    engine = SchedulingEngine(profile_of([plugin(state)]), state)
    pod = web("new", topologySpreadConstraints=[spread(skew=2, nodeTaintsPolicy="Honor")])
    assert isinstance(view_of(engine, state, pod)["a1"][0], str)
    state.set_node(zoned("c1", "c", taints=["gone=:NoExecute"]))
    assert view_of(engine, state, pod)["a1"] == (0, {})


def test_a_what_if_shifts_the_copy_alone() -> None:
    state = make_state(NODES, ONE_IN_A)
    mine = plugin(state)
    pod = state.pod_info(web("new", topologySpreadConstraints=[spread()]))
    cycle = CycleState(state)
    assert mine.pre_filter(cycle, pod) is None
    a1, b1 = state.table.index["a1"], state.table.index["b1"]
    assert mine.filter(cycle, pod, a1) is not None
    trial = cycle.fork()
    old = state.placed_pod(ONE_IN_A[0].metadata.uid)
    assert old is not None
    mine.remove_pod(trial, pod, old, a1)
    assert mine.filter(trial, pod, a1) is None
    assert mine.filter(cycle, pod, a1) is not None
    mine.add_pod(trial, pod, state.pod_info(web("more")), b1)
    assert mine.filter(trial, pod, b1) is not None
    mine.add_pod(trial, pod, state.pod_info(web("elsewhere", namespace="other")), a1)
    assert mine.filter(trial, pod, a1) is None
    assert mine.filter(cycle, pod, b1) is None


# Defaults --------------------------------------------------------------------------------------------------------


def owned(pod: Pod, kind: str, name: str, version: str = "apps/v1") -> Pod:
    reference = OwnerReference(api_version=version, kind=kind, name=name, uid=name, controller=True)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(reference,)))


def workloads() -> OwnerIndex:
    index = OwnerIndex()
    index.set(SERVICE, "default", "front", Selector.from_labels(WEB))
    index.set(SERVICE, "default", "all", Selector.from_labels({}))
    index.set(SERVICE, "default", "back", Selector.from_labels({"app": "db"}))
    index.set(SERVICE, "other", "front", Selector.from_labels(WEB))
    index.set(REPLICA_SET, "default", "rs", Selector.from_label_selector({"hash": "1"}))
    index.set(STATEFUL_SET, "default", "ss", Selector.from_label_selector({}, [("set", "Exists", ())]))
    index.set(REPLICATION_CONTROLLER, "default", "rc", Selector.from_labels({"rc": "yes"}))
    return index


@pytest.mark.parametrize(
    ("pod", "selector"),
    [
        pytest.param(web("p"), "app=web", id="service"),
        pytest.param(make_pod("p", labels={"app": "none"}), "", id="nobody"),
        pytest.param(owned(web("p"), REPLICA_SET, "rs"), "app=web,hash=1", id="service-and-replica-set"),
        pytest.param(owned(make_pod("p"), STATEFUL_SET, "ss"), "set", id="stateful-set"),
        pytest.param(owned(make_pod("p"), REPLICATION_CONTROLLER, "rc", "v1"), "rc=yes", id="replication-controller"),
        pytest.param(owned(make_pod("p"), REPLICA_SET, "rs", "extensions/v1beta1"), "", id="another-group"),
        pytest.param(owned(make_pod("p"), "Job", "rs", "batch/v1"), "", id="another-kind"),
        pytest.param(owned(web("p"), REPLICA_SET, "unknown"), "app=web", id="unknown-owner"),
        pytest.param(web("p", namespace="third"), "", id="another-namespace"),
    ],
)
def test_default_selector(pod: Pod, selector: str) -> None:
    assert str(default_selector(ClusterState().pod_info(pod), workloads())) == selector


def test_default_constraints_follow_services() -> None:
    state = make_state((*NODES, make_node("bare")), ONE_IN_A)
    owners = OwnerIndex()
    engine = SchedulingEngine(profile_of([plugin(state, owners)]), state)
    pod = web("new")
    assert view_of(engine, state, pod)["a1"] == (0, {})
    owners.set(SERVICE, "default", "front", Selector.from_labels(WEB))
    told = view_of(engine, state, pod)
    scores = {name: said[0] for name, said in told.items()}
    assert scores["a1"] < scores["a2"] < scores["b1"] == scores["c1"] < scores["bare"] == 100
    owners.drop(SERVICE, "default", "front")
    assert view_of(engine, state, pod)["a1"] == (0, {})


def test_pods_of_one_owner_share_a_class_and_strangers_need_none() -> None:
    state = ClusterState()
    mine = plugin(state, workloads())
    one, two = (state.pod_info(owned(web(n, labels={**WEB, "n": n}), REPLICA_SET, "rs")) for n in ("p1", "p2"))
    assert mine.signature(one) is mine.signature(two) is not None
    assert mine.signature(state.pod_info(make_pod("p3", labels={"n": "3"}))) is None
    cycle = CycleState(state)
    assert isinstance(mine.pre_filter(cycle, state.pod_info(make_pod("p4"))), Skip)


# Hints -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "old", "new", "helps"),
    [
        pytest.param(ClusterEvent("Pod", ADD), None, web("x", "a1"), True, id="a-counted-pod-comes"),
        pytest.param(ClusterEvent("Pod", ADD), None, make_pod("x", node="a1"), False, id="another-pod-comes"),
        pytest.param(ClusterEvent("Pod", ADD), None, web("x"), False, id="a-waiting-pod-comes"),
        pytest.param(
            ClusterEvent("Pod", ADD), None, web("x", "a1", namespace="other"), False, id="in-another-namespace"
        ),
        pytest.param(ClusterEvent("Pod", DELETE), web("x", "a1"), None, True, id="a-counted-pod-goes"),
        pytest.param(ClusterEvent("Pod", DELETE), make_pod("x", node="a1"), None, False, id="another-pod-goes"),
        pytest.param(
            ClusterEvent("Pod", UPDATE, "labels"),
            web("x", "a1"),
            make_pod("x", node="a1"),
            True,
            id="no-longer-counted",
        ),
        pytest.param(
            ClusterEvent("Pod", UPDATE, "labels"),
            web("x", "a1"),
            web("x", "a1", labels={**WEB, "more": "1"}),
            False,
            id="counted-as-before",
        ),
        pytest.param(
            ClusterEvent("Pod", UPDATE, "tolerations"),
            web("new"),
            web("new", tolerations=[{"operator": "Exists"}]),
            True,
            id="tolerates-more-where-taints-are-honoured",
        ),
        pytest.param(ClusterEvent("Node", ADD), None, NODES[0], True, id="a-node-with-the-key"),
        pytest.param(ClusterEvent("Node", ADD), None, make_node("bare"), False, id="a-node-without-the-key"),
        pytest.param(ClusterEvent("Node", DELETE), NODES[0], None, True, id="a-node-goes"),
        pytest.param(ClusterEvent("Node", UPDATE, "labels"), zoned("a1", "a"), zoned("a1", "b"), True, id="moved"),
        pytest.param(ClusterEvent("Node", UPDATE, "labels"), make_node("a1"), zoned("a1", "b"), True, id="got-the-key"),
        pytest.param(
            ClusterEvent("Node", UPDATE, "labels"),
            zoned("a1", "a"),
            make_node("a1", labels={ZONE: "a", "x": "y"}),
            False,
            id="another-label",
        ),
        pytest.param(
            ClusterEvent("Node", UPDATE, "taints"),
            zoned("a1", "a"),
            zoned("a1", "a", taints=["a=:NoExecute"]),
            True,
            id="taints",
        ),
    ],
)
def test_hints(event: ClusterEvent, old: Any, new: Any, helps: bool) -> None:
    state = ClusterState()
    pod = state.pod_info(web("new", topologySpreadConstraints=[spread(nodeTaintsPolicy="Honor")]))
    old, new = (state.pod_info(each) if isinstance(each, Pod) else each for each in (old, new))
    mine = plugin(state)
    assert any(wake.covers(event) for wake in mine.wakes_on)
    assert mine.queueing_hint(pod, ObjectEvent(event, old, new)) is helps
