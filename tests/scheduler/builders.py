"""Build small clusters for tests: nodes and pods from a few arguments, and Hypothesis strategies for random ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from koord.api.kubernetes.node import Node
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
GPU = "example.com/gpu"


def make_node(
    name: str = "n0",
    *,
    cpu: str = "8",
    memory: str = "32Gi",
    pods: str = "110",
    more: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Iterable[str] = (),
    unschedulable: bool = False,
    images: Mapping[str, int] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Node:
    """Build a node. `more` is further allocatable; taints read like kubectl's: key=value:Effect; images are names with
    bytes.
    """
    return convert(
        {
            "metadata": {
                "name": name,
                "labels": {HOSTNAME: name, **(labels or {})},
                "annotations": dict(annotations or {}),
            },
            "spec": {"unschedulable": unschedulable, "taints": [taint(text) for text in taints]},
            "status": {
                "allocatable": {"cpu": cpu, "memory": memory, "pods": pods, **(more or {})},
                "images": [{"names": [image], "sizeBytes": size} for image, size in (images or {}).items()],
            },
        },
        Node,
    )


def make_pod(
    name: str = "p0",
    *,
    namespace: str = "default",
    uid: str = "",
    node: str = "",
    cpu: str = "",
    memory: str = "",
    more: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    priority: int | None = None,
    images: Sequence[str] = ("app",),
    ports: Sequence[tuple[str, str, int]] = (),
    nominated: str = "",
    **spec: Any,
) -> Pod:
    """One container per image; requests and host ports (protocol, address, number) are the first one's.

    Everything else of a pod's spec goes by its wire name: nodeSelector, tolerations, affinity, volumes.
    """
    requests = {name: amount for name, amount in (("cpu", cpu), ("memory", memory)) if amount} | dict(more or {})
    containers: list[dict[str, Any]] = [{"name": f"c{i}", "image": image} for i, image in enumerate(images)]
    containers[0]["resources"] = {"requests": requests}
    containers[0]["ports"] = [
        {"containerPort": number, "hostPort": number, "hostIP": address, "protocol": protocol}
        for protocol, address, number in ports
    ]
    return convert(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid or f"uid-{namespace}-{name}",
                "labels": dict(labels or {}),
                "annotations": dict(annotations or {}),
            },
            "spec": {"nodeName": node, "priority": priority, "containers": containers, **spec},
            "status": {"nominatedNodeName": nominated},
        },
        Pod,
    )


def make_state(nodes: Iterable[Node] = (), pods: Iterable[Pod] = ()) -> ClusterState:
    """Build a state that has seen these nodes, and these pods on the nodes that they name."""
    state = ClusterState()
    for node in nodes:
        state.set_node(node)
    for pod in pods:
        state.set_pod(pod)
    return state


def make_info(state: ClusterState | None = None, **words: Any) -> PodInfo:
    return (state or ClusterState()).pod_info(make_pod(**words))


def taint(text: str) -> dict[str, str]:
    pair, _, effect = text.partition(":")
    key, _, value = pair.partition("=")
    return {"key": key, "value": value, "effect": effect}


def node_term(
    *expressions: tuple[str, str, Sequence[str]], fields: Sequence[tuple[str, str, Sequence[str]]] = ()
) -> Any:
    """Build a node selector term of (key, operator, values)."""
    return {
        "matchExpressions": [{"key": k, "operator": o, "values": list(v)} for k, o, v in expressions],
        "matchFields": [{"key": k, "operator": o, "values": list(v)} for k, o, v in fields],
    }


def required_nodes(*terms: Any) -> Any:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def preferred_nodes(*weighted: tuple[int, Any]) -> Any:
    listed = [{"weight": weight, "preference": term} for weight, term in weighted]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": listed}}


# Random clusters -------------------------------------------------------------------------------------------------

NODE_NAMES = tuple(f"n{i}" for i in range(9))
_EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
_TAINTS = tuple(f"{key}={value}:{effect}" for key in ("a", "b") for value in ("", "x") for effect in _EFFECTS)
_CPU = ("0", "100m", "1", "1500m", "4", "8")
_MEMORY = ("0", "1Mi", "200Mi", "1Gi", "16Gi", "33Gi")
_IMAGES = {"app:latest": 50_000_000, "web:v1": 900_000_000, "db:v2": 400_000_000, "reg:5000/tool:latest": 2**31}
_PORTS = tuple(
    (kind, ip, n) for kind in ("TCP", "UDP") for ip in ("0.0.0.0", "", "10.0.0.1", "10.0.0.2") for n in (80, 443)
)


def some_of(values: Sequence[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), max_size=most, unique_by=str)


@st.composite
def node_objects(draw: st.DrawFn, name: str = "") -> Node:
    labels: dict[str, str] = {}
    for key, values in ((ZONE, ("a", "b", "c")), ("disk", ("ssd", "hdd", "")), ("generation", ("1", "7", "12", "old"))):
        value = draw(st.sampled_from((None, *values)))
        if value is not None:
            labels[key] = value
    more = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "ephemeral-storage": st.sampled_from(("0", "10Gi")),
                GPU: st.sampled_from(("0", "2", "8")),
                "hugepages-2Mi": st.just("512Mi"),
                "kubernetes.io/batch-cpu": st.sampled_from(("0", "4000")),
            },
        )
    )
    return make_node(
        name or draw(st.sampled_from(NODE_NAMES)),
        cpu=draw(st.sampled_from(("0", "500m", "4", "8", "96"))),
        memory=draw(st.sampled_from(("0", "1Gi", "32Gi"))),
        pods=draw(st.sampled_from(("0", "1", "2", "110"))),
        more=more,
        labels=labels,
        taints=draw(some_of(_TAINTS, 2)),
        unschedulable=draw(st.booleans()),
        images={name: size * draw(st.sampled_from((1, 1, 2))) for name, size in _IMAGES.items() if draw(st.booleans())},
    )


def _terms() -> st.SearchStrategy[Any]:
    expressions: st.SearchStrategy[Any] = st.one_of(
        st.tuples(
            st.sampled_from((ZONE, "disk", "absent")), st.sampled_from(("In", "NotIn")), some_of(("a", "b", "ssd"), 2)
        ),
        st.tuples(st.sampled_from((ZONE, "disk")), st.sampled_from(("Exists", "DoesNotExist")), st.just([])),
        st.tuples(st.just("generation"), st.sampled_from(("Gt", "Lt")), some_of(("5", "11", "x"), 1)),
        st.tuples(st.just(HOSTNAME), st.sampled_from(("In", "NotIn")), some_of(NODE_NAMES, 4)),
    )
    fields = st.tuples(st.just("metadata.name"), st.sampled_from(("In", "NotIn")), some_of(NODE_NAMES, 2))
    return st.builds(
        lambda found, named: node_term(*found, fields=named),
        st.lists(expressions, max_size=2),
        st.one_of(st.just([]), st.lists(fields, max_size=2)),
    )


def node_affinities() -> st.SearchStrategy[Any]:
    required = st.lists(_terms(), min_size=1, max_size=2).map(lambda terms: {"nodeSelectorTerms": terms})
    preferred = st.lists(
        st.builds(lambda weight, term: {"weight": weight, "preference": term}, st.integers(0, 100), _terms()),
        max_size=3,
    )
    return st.fixed_dictionaries(
        {},
        optional={
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
    )


def _tolerations() -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"operator": st.sampled_from(("", "Equal", "Exists", "Gt"))},
        optional={
            "key": st.sampled_from(("a", "b", "node.kubernetes.io/unschedulable")),
            "value": st.sampled_from(("", "x")),
            "effect": st.sampled_from(_EFFECTS),
        },
    )


@st.composite
def pod_objects(draw: st.DrawFn, /, name: str = "", node: str = "", **words: Any) -> Pod:
    """Draw a pod; `words` are given to `make_pod` over what is drawn."""
    number = draw(st.integers(0, 10_000)) if not name else 0
    more = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "ephemeral-storage": st.sampled_from(("1Gi", "20Gi")),
                GPU: st.sampled_from(("1", "4")),
                "hugepages-2Mi": st.just("2Mi"),
                "kubernetes.io/batch-cpu": st.just("1000"),
            },
        )
    )
    drawn: dict[str, Any] = {
        "cpu": draw(st.sampled_from(("", *_CPU))),
        "memory": draw(st.sampled_from(("", *_MEMORY))),
        "more": more,
        "labels": draw(st.fixed_dictionaries({}, optional={"app": st.sampled_from(("web", "db"))})),
        "priority": draw(st.sampled_from((None, 0, 10))),
        "images": draw(
            st.sampled_from((("app",), ("web:v1", "db:v2"), ("reg:5000/tool",), ("web:v1", "web:v1", "none")))
        ),
        "ports": draw(some_of(_PORTS, 2)),
        "tolerations": draw(st.lists(_tolerations(), max_size=2)),
        "nodeSelector": draw(st.fixed_dictionaries({}, optional={ZONE: st.sampled_from(("a", "b"))})),
        "affinity": {"nodeAffinity": draw(node_affinities())} if draw(st.booleans()) else None,
        "resources": draw(st.sampled_from((None, None, {"requests": {"cpu": "2"}}, {"requests": {"memory": "3Gi"}}))),
    }
    return make_pod(name or f"p{number}", node=node, **(drawn | words))


@st.composite
def clusters(draw: st.DrawFn, most_nodes: int = len(NODE_NAMES), most_pods: int = 6) -> ClusterState:
    """Draw nodes with pods on them; some pods are bound to names that no node has."""
    names = draw(st.lists(st.sampled_from(NODE_NAMES), min_size=1, max_size=most_nodes, unique=True))
    state = make_state(draw(node_objects(name)) for name in names)
    for i in range(draw(st.integers(0, most_pods))):
        state.set_pod(draw(pod_objects(f"old{i}", node=draw(st.sampled_from(NODE_NAMES)))))
    return state
