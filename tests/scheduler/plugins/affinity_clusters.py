"""Hypothesis strategies for pods with spread constraints and affinity terms over few labels, so that they
often match.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import strategies as st

from koord.api.kubernetes.node import Node
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.plugins.inter_pod_affinity.terms import _NO_LABELS
from koord.values.selector import Selector
from tests.scheduler.builders import HOSTNAME, NODE_NAMES, ZONE, make_node, make_pod

NAMESPACE_LABELS: dict[str, dict[str, str]] = {"default": {"team": "red"}, "other": {"team": "blue"}, "third": {}}
KEYS = (HOSTNAME, ZONE, "rack")
ENDING = datetime(2026, 1, 1, tzinfo=UTC)


def namespace_index() -> NamespaceIndex:
    index = NamespaceIndex()
    for name, labels in NAMESPACE_LABELS.items():
        index.set(name, labels)
    return index


def pod_labels() -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries(
        {"app": st.sampled_from(("web", "web", "db"))},
        optional={"tier": st.sampled_from(("x", "y")), "rev": st.just("1")},
    )


def selectors() -> st.SearchStrategy[Any]:
    expression = st.one_of(
        st.builds(
            lambda k, o, v: {"key": k, "operator": o, "values": v},
            st.sampled_from(("app", "tier")),
            st.sampled_from(("In", "NotIn")),
            st.sampled_from((["web"], ["x"], ["web", "x"], ["db", "y"])),
        ),
        st.builds(
            lambda k, o: {"key": k, "operator": o},
            st.sampled_from(("tier", "rev")),
            st.sampled_from(("Exists", "DoesNotExist")),
        ),
    )
    return st.one_of(
        st.just({"matchLabels": {"app": "web"}}),
        st.sampled_from(({}, None, {"matchLabels": {"app": "db", "tier": "x"}})),
        st.lists(expression, min_size=1, max_size=2).map(lambda found: {"matchExpressions": found}),
    )


def _without_none(value: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in value.items() if part is not None}


def constraints() -> st.SearchStrategy[Any]:
    policy = st.sampled_from((None, "Honor", "Ignore"))
    return st.builds(
        lambda **words: _without_none(words),
        maxSkew=st.integers(1, 3),
        topologyKey=st.sampled_from(KEYS),
        whenUnsatisfiable=st.sampled_from(("DoNotSchedule", "ScheduleAnyway")),
        labelSelector=selectors(),
        minDomains=st.sampled_from((None, None, 1, 2, 4)),
        nodeAffinityPolicy=policy,
        nodeTaintsPolicy=policy,
        matchLabelKeys=st.sampled_from((None, None, ["tier"], ["rev", "absent"])),
    )


def terms() -> st.SearchStrategy[Any]:
    return st.builds(
        lambda **words: _without_none(words),
        topologyKey=st.sampled_from(KEYS),
        labelSelector=selectors(),
        namespaces=st.sampled_from((None, None, ["default"], ["other", "third"])),
        namespaceSelector=st.sampled_from(
            (
                None,
                None,
                {},
                {"matchLabels": {"team": "blue"}},
                {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["red"]}]},
            )
        ),
    )


def _weighted() -> st.SearchStrategy[Any]:
    return st.builds(lambda weight, term: {"weight": weight, "podAffinityTerm": term}, st.integers(1, 100), terms())


def pod_affinities() -> st.SearchStrategy[Any]:
    part = st.fixed_dictionaries(
        {},
        optional={
            "requiredDuringSchedulingIgnoredDuringExecution": st.lists(terms(), min_size=1, max_size=2),
            "preferredDuringSchedulingIgnoredDuringExecution": st.lists(_weighted(), min_size=1, max_size=2),
        },
    )
    return st.fixed_dictionaries({}, optional={"podAffinity": part, "podAntiAffinity": part})


@st.composite
def labelled_nodes(draw: st.DrawFn, name: str = "") -> Node:
    labels = draw(
        st.fixed_dictionaries(
            {}, optional={ZONE: st.sampled_from(("a", "b", "c")), "rack": st.sampled_from(("1", "2"))}
        )
    )
    chosen = name or draw(st.sampled_from(NODE_NAMES))
    taints = draw(st.sampled_from(([], ["a=x:NoSchedule"], ["b=:NoExecute", "a=x:PreferNoSchedule"])))
    node = make_node(chosen, labels=labels, taints=taints)
    if draw(st.integers(0, 7)) == 0:  # a hostname label that another node has too, or none
        own = dict(node.metadata.labels)
        own.pop(HOSTNAME)
        if draw(st.booleans()):
            own[HOSTNAME] = "n0"
        node = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=own))
    return node


@st.composite
def affinity_pods(
    draw: st.DrawFn, /, name: str = "", node: str = "", *, spreads: bool = False, relates: bool = False, **words: Any
) -> Pod:
    """Generate pods with spread constraints, with affinity, or plain ones."""
    spec: dict[str, Any] = {}
    if spreads and draw(st.integers(0, 3)):
        spec["topologySpreadConstraints"] = draw(st.lists(constraints(), max_size=3))
        spec["tolerations"] = draw(st.sampled_from(([], [{"key": "a", "operator": "Exists"}])))
        spec["nodeSelector"] = draw(st.sampled_from(({}, {}, {ZONE: "a"}, {"rack": "1"})))
    if relates and draw(st.integers(0, 3)):
        spec["affinity"] = draw(pod_affinities())
    if spreads and draw(st.integers(0, 3)) == 0:
        wanted = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a", "b"]}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": wanted}}
        spec["affinity"] = {**spec.get("affinity", {}), "nodeAffinity": required}
    chosen = name or f"p{draw(st.integers(0, 10_000))}"
    pod = make_pod(
        chosen,
        uid=f"uid-default-{chosen}",
        namespace=draw(st.sampled_from(("default",) * 5 + ("other", "third"))),
        node=node,
        labels=draw(pod_labels()),
        **(spec | words),
    )
    if node and draw(st.integers(0, 4)) == 4:
        meta = msgspec.structs.replace(pod.metadata, deletion_timestamp=ENDING)
        pod = msgspec.structs.replace(pod, metadata=meta)
    return pod


class AffinityCluster(msgspec.Struct, frozen=True):
    nodes: tuple[Node, ...]
    placed: tuple[Pod, ...]
    pod: Pod

    def waiting(self) -> list[Pod]:
        """The waiting pod, and twins of placed ones: a scene costs more to draw than to judge."""
        return [self.pod, *(_twin(pod) for pod in self.placed[:4])]

    def state(self) -> ClusterState:
        state = ClusterState()
        for node in self.nodes:
            state.set_node(node)
        for pod in self.placed:
            state.set_pod(pod)
        return state


def _twin(pod: Pod) -> Pod:
    meta = msgspec.structs.replace(
        pod.metadata, name=f"{pod.metadata.name}-twin", uid=f"{pod.metadata.uid}-twin", deletion_timestamp=None
    )
    return msgspec.structs.replace(pod, metadata=meta, spec=msgspec.structs.replace(pod.spec, node_name=""))


@st.composite
def affinity_clusters(draw: st.DrawFn, *, spreads: bool = False, relates: bool = False) -> AffinityCluster:
    """Generate nodes, pods on them (and on names that no node has), and one pod that waits."""
    names = draw(st.lists(st.sampled_from(NODE_NAMES), min_size=1, max_size=6, unique=True))
    placed = [
        draw(affinity_pods(f"old{i}", node=draw(st.sampled_from(NODE_NAMES[:7])), spreads=spreads, relates=relates))
        for i in range(draw(st.sampled_from((10, 6, 3, 1, 0))))
    ]
    return AffinityCluster(
        tuple(draw(labelled_nodes(name)) for name in names),
        tuple(placed),
        draw(affinity_pods("new", spreads=spreads, relates=relates)),
    )


class NamespaceIndex:
    """Namespace labels in memory. Only changed labels change the version."""

    def __init__(self) -> None:
        self.version = 0
        self._labels: dict[str, Mapping[str, str]] = {}

    def labels(self, name: str) -> Mapping[str, str]:
        return self._labels.get(name, _NO_LABELS)

    def selected(self, selector: Selector) -> frozenset[str]:
        return frozenset(name for name, labels in self._labels.items() if selector.matches(labels))

    def set(self, name: str, labels: Mapping[str, str]) -> None:
        if self._labels.get(name) != labels:
            self._labels[name] = dict(labels)
            self.version += 1

    def drop(self, name: str) -> None:
        if self._labels.pop(name, None) is not None:
            self.version += 1
