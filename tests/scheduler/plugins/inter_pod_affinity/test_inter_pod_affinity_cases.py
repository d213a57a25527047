"""InterPodAffinity by example: each rule of the documentation once, namespaces, what-ifs and hints."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.scheduler.in_tree_args import InterPodAffinityArgs
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.verdict import Skip
from koord.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from koord.scheduler.plugins.inter_pod_affinity.term_counts import ExistingTerms
from tests.scheduler.builders import HOSTNAME, ZONE, make_node, make_pod, make_state
from tests.scheduler.plugin_equivalence import profile_of, view_of
from tests.scheduler.plugins.affinity_clusters import NamespaceIndex, namespace_index
from tests.scheduler.plugins.affinity_oracle import AFFINITY, ANTI_AFFINITY, EXISTING

WEB = {"app": "web"}
NODES = (*(make_node(name, labels={ZONE: name[0]}) for name in ("a1", "a2", "b1")), make_node("bare"))
ARGS = InterPodAffinityArgs(hard_pod_affinity_weight=1)


def term(key: str = ZONE, app: str = "web", **words: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **words}


def near(*terms: Any) -> Any:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def far(*terms: Any) -> Any:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def liking(kind: str, weight: int, wanted: Any) -> Any:
    weighted = [{"weight": weight, "podAffinityTerm": wanted}]
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}


def plugin(state: ClusterState, namespaces: NamespaceIndex | None = None) -> InterPodAffinity:
    return InterPodAffinity(ARGS, state, namespaces or namespace_index())


def view(state: ClusterState, pod: Pod) -> Any:
    return view_of(SchedulingEngine(profile_of([plugin(state)]), state), state, pod)


def refusals(state: ClusterState, pod: Pod) -> dict[str, str]:
    return {name: said[1].text for name, said in view(state, pod).items() if isinstance(said[0], str)}


def web(name: str, node: str = "", **words: Any) -> Pod:
    return make_pod(name, node=node, **{"labels": WEB, **words})


OLD = (web("old", "a1"),)
NOT_RED = {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["red"]}]}


@pytest.mark.parametrize(
    ("affinity", "placed", "refused", "text"),
    [
        pytest.param(near(term()), OLD, "b1 bare", AFFINITY, id="near-a-pod-of-its-zone"),
        pytest.param(near(term(HOSTNAME)), OLD, "a2 b1 bare", AFFINITY, id="near-a-pod-of-its-host"),
        pytest.param(near(term()), (), "bare", AFFINITY, id="the-first-of-a-group-opens-it-where-the-key-is"),
        pytest.param(near(term(app="db")), (), "a1 a2 b1 bare", AFFINITY, id="nobody-to-be-near-to"),
        pytest.param(near(term()), (web("old", "bare"),), "bare", AFFINITY, id="a-pod-outside-all-domains-opens-too"),
        pytest.param(
            near(term(), term(HOSTNAME, app="db")),
            (*OLD, make_pod("db", node="a1", labels={"app": "db"})),
            "a1 a2 b1 bare",
            AFFINITY,
            id="one-pod-must-match-all-terms",
        ),
        pytest.param(far(term()), OLD, "a1 a2", ANTI_AFFINITY, id="away-from-its-zone"),
        pytest.param(far(term(HOSTNAME)), OLD, "a1", ANTI_AFFINITY, id="away-from-its-host"),
        pytest.param(far(term("rack")), OLD, "", "", id="a-key-that-no-node-has-separates-nobody"),
        pytest.param({}, (web("old", "a1", affinity=far(term())),), "a1 a2", EXISTING, id="a-placed-pod-keeps-it-away"),
        pytest.param({}, (web("old", "a1", affinity=far(term(app="db"))),), "", "", id="it-is-not-meant"),
        pytest.param(
            {},
            (make_pod("old", node="a1", namespace="other", affinity=far(term())),),
            "",
            "",
            id="terms-mean-their-own-namespace",
        ),
        pytest.param(
            {},
            (make_pod("old", node="a1", namespace="other", affinity=far(term(namespaces=["default"]))),),
            "a1 a2",
            EXISTING,
            id="terms-can-name-another-namespace",
        ),
        pytest.param(
            {},
            (make_pod("o", node="a1", namespace="other", affinity=far(term(namespaceSelector=NOT_RED))),),
            "",
            "",
            id="a-placed-pod's-namespace-selector-sees-labels",
        ),
        pytest.param(
            far(term(namespaceSelector={"matchLabels": {"team": "blue"}})),
            (web("o1", "a1", namespace="other"), web("o2", "b1", namespace="third")),
            "a1 a2",
            ANTI_AFFINITY,
            id="namespaces-by-label",
        ),
        pytest.param(
            far(term(namespaceSelector={})),
            (web("o1", "b1", namespace="third"),),
            "b1",
            ANTI_AFFINITY,
            id="all-of-them",
        ),
        pytest.param(
            far(term(namespaceSelector=NOT_RED)), OLD, "a1 a2", ANTI_AFFINITY, id="a-negative-selector-covers-all"
        ),
    ],
)
def test_hard_rules(affinity: Any, placed: tuple[Pod, ...], refused: str, text: str) -> None:
    assert refusals(make_state(NODES, placed), web("new", affinity=affinity)) == dict.fromkeys(refused.split(), text)


@pytest.mark.parametrize(
    ("affinity", "placed", "scores"),
    [
        pytest.param(liking("podAffinity", 5, term()), OLD, (100, 100, 0, 0), id="drawn-to-a-zone"),
        pytest.param(liking("podAntiAffinity", 5, term()), OLD, (0, 0, 100, 100), id="leaning-away"),
        pytest.param({}, (web("o", "a1", affinity=liking("podAffinity", 5, term())),), (100, 100, 0, 0), id="wanted"),
        pytest.param({}, (web("o", "a1", affinity=near(term())),), (100, 100, 0, 0), id="required-by-others"),
        pytest.param(
            liking("podAffinity", 3, term()),
            (*OLD, web("o2", "b1", affinity=liking("podAffinity", 4, term()))),
            (42, 42, 100, 0),  # 3 of 7: in zone b the other one's 4 come on top
            id="both-directions-add-up",
        ),
        pytest.param({}, OLD, (0, 0, 0, 0), id="nobody-cares"),
    ],
)
def test_soft_rules(affinity: Any, placed: tuple[Pod, ...], scores: tuple[int, ...]) -> None:
    told = view(make_state(NODES, placed), web("new", affinity=affinity))
    assert tuple(told[node.metadata.name][0] for node in NODES) == scores


def test_what_keeps_a_pod_away_is_found_and_forgotten() -> None:
    state = make_state(NODES)
    mine = plugin(state)
    engine = SchedulingEngine(profile_of([mine]), state)
    pod = web("new")
    plain = state.pod_info(make_pod("plain", labels={"app": "plain"}))
    assert mine.signature(state.pod_info(pod)) is None
    state.set_pod(web("old", "a1", affinity=far(term())))
    assert mine.signature(plain) is None
    assert set(refusals_of(engine, state, pod)) == {"a1", "a2"}
    state.set_pod(web("old2", "b1", affinity=far(term())))
    assert set(refusals_of(engine, state, pod)) == {"a1", "a2", "b1"}
    state.drop_pod(web("old").metadata.uid)
    assert set(refusals_of(engine, state, pod)) == {"b1"}
    state.drop_pod(web("old2").metadata.uid)
    assert refusals_of(engine, state, pod) == {}
    assert len(state.derived(ExistingTerms)) == 0


def refusals_of(engine: SchedulingEngine, state: ClusterState, pod: Pod) -> dict[str, str]:
    return {name: said[1].text for name, said in view_of(engine, state, pod).items() if isinstance(said[0], str)}


def test_labels_of_namespaces_are_followed() -> None:
    state = make_state(NODES, (web("old", "a1", namespace="other"),))
    namespaces = namespace_index()
    engine = SchedulingEngine(profile_of([plugin(state, namespaces)]), state)
    pod = web("new", affinity=far(term(namespaceSelector={"matchLabels": {"team": "green"}})))
    held = web("held", "b1", namespace="other", affinity=far(term(namespaceSelector={"matchLabels": {"mood": "bad"}})))
    state.set_pod(held)
    assert refusals_of(engine, state, pod) == {}
    namespaces.set("other", {"team": "green"})
    assert refusals_of(engine, state, pod) == dict.fromkeys(("a1", "a2", "b1"), ANTI_AFFINITY)
    namespaces.drop("other")
    namespaces.set("default", {"mood": "bad"})
    assert refusals_of(engine, state, pod) == {"b1": EXISTING}


def test_a_what_if_shifts_the_copy_alone() -> None:
    state = make_state(NODES, (web("old", "a1", affinity=far(term(HOSTNAME, app="db"))),))
    mine = plugin(state)
    pod = state.pod_info(
        make_pod("new", labels={"app": "db"}, affinity={**near(term()), **far(term(HOSTNAME, app="bat"))})
    )
    cycle = CycleState(state)
    assert mine.pre_filter(cycle, pod) is None
    a1, a2, b1 = (state.table.index[name] for name in ("a1", "a2", "b1"))

    def said(which: CycleState) -> list[str]:
        return [r.text if (r := mine.filter(which, pod, node)) else "" for node in (a1, a2, b1)]

    assert said(cycle) == [EXISTING, "", AFFINITY]
    trial = cycle.fork()
    old = state.placed_pod(web("old").metadata.uid)
    assert old is not None
    mine.remove_pod(trial, pod, old, a1)
    assert said(trial) == [AFFINITY, AFFINITY, AFFINITY]
    mine.add_pod(trial, pod, old, b1)
    assert said(trial) == [AFFINITY, AFFINITY, EXISTING]
    mine.add_pod(trial, pod, state.pod_info(web("friend")), a1)
    mine.add_pod(trial, pod, state.pod_info(make_pod("bat", labels={"app": "bat"})), a2)
    assert said(trial) == ["", ANTI_AFFINITY, EXISTING]
    mine.add_pod(trial, pod, state.pod_info(make_pod("zonal", affinity=far(term(ZONE, app="db")))), a2)
    assert said(trial) == [EXISTING, ANTI_AFFINITY, EXISTING]
    assert said(cycle) == [EXISTING, "", AFFINITY]


def test_pods_that_nothing_bears_on_are_skipped() -> None:
    state = make_state(NODES, OLD)
    mine, cycle = plugin(state), CycleState(state)
    pod = state.pod_info(web("new"))
    assert isinstance(mine.pre_filter(cycle, pod), Skip)
    assert isinstance(mine.pre_score(cycle, pod, ()), Skip)


# Hints -----------------------------------------------------------------------------------------------------------

NEAR, FAR = near(term()), far(term())
PLAIN: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("affinity", "event", "old", "new", "helps"),
    [
        pytest.param(NEAR, ClusterEvent("Pod", ADD), None, web("x", "a1"), True, id="a-friend-comes"),
        pytest.param(NEAR, ClusterEvent("Pod", ADD), None, web("x"), False, id="a-friend-that-waits"),
        pytest.param(NEAR, ClusterEvent("Pod", ADD), None, make_pod("x", node="a1"), False, id="a-stranger-comes"),
        pytest.param(
            NEAR,
            ClusterEvent("Pod", UPDATE, "labels"),
            make_pod("x", node="a1"),
            web("x", "a1"),
            True,
            id="becomes-a-friend",
        ),
        pytest.param(FAR, ClusterEvent("Pod", DELETE), web("x", "a1"), None, True, id="an-enemy-goes"),
        pytest.param(FAR, ClusterEvent("Pod", DELETE), make_pod("x", node="a1"), None, False, id="a-stranger-goes"),
        pytest.param(
            FAR,
            ClusterEvent("Pod", UPDATE, "labels"),
            web("x", "a1"),
            make_pod("x", node="a1"),
            True,
            id="no-longer-an-enemy",
        ),
        pytest.param(
            PLAIN, ClusterEvent("Pod", DELETE), make_pod("x", node="a1", affinity=FAR), None, True, id="a-hermit-goes"
        ),
        pytest.param(NEAR, ClusterEvent("Node", ADD), None, NODES[0], True, id="a-node-with-the-key"),
        pytest.param(NEAR, ClusterEvent("Node", ADD), None, NODES[3], False, id="a-node-without-the-key"),
        pytest.param(FAR, ClusterEvent("Node", ADD), None, NODES[3], True, id="any-node-is-far"),
        pytest.param(
            NEAR, ClusterEvent("Node", UPDATE, "labels"), make_node("a1"), NODES[0], True, id="a-node-gets-the-key"
        ),
        pytest.param(
            FAR, ClusterEvent("Node", UPDATE, "labels"), make_node("a1"), NODES[0], False, id="that-helps-no-hater"
        ),
        pytest.param(
            FAR, ClusterEvent("Node", UPDATE, "labels"), NODES[0], make_node("a1"), True, id="a-node-loses-the-key"
        ),
        pytest.param(FAR, ClusterEvent("Node", UPDATE, "labels"), NODES[0], NODES[0], False, id="nothing-changed"),
    ],
)
def test_hints(affinity: Any, event: ClusterEvent, old: Any, new: Any, helps: bool) -> None:
    state = ClusterState()
    pod = state.pod_info(web("new", affinity=affinity))
    old, new = (state.pod_info(each) if isinstance(each, Pod) else each for each in (old, new))
    mine = plugin(state)
    assert any(wake.covers(event) for wake in mine.wakes_on)
    assert mine.queueing_hint(pod, ObjectEvent(event, old, new)) is helps
