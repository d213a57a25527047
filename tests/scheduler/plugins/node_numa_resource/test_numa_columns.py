"""NodeNUMAResource says of many nodes at once what it says of each: on random machines, labels and holders."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.plugin_equivalence import check_columns_match_definition
from tests.scheduler.plugins.node_numa_resource.numa_builders import zone
from tests.scheduler.plugins.node_numa_resource.numa_cluster import STATUS, NumaCluster, node, pod, topology

SHAPES = ((1, 1, 2, 2), (1, 2, 2, 2), (2, 1, 3, 2), (2, 2, 2, 1), (1, 2, 2, 1))
POLICIES = ("", "SingleNUMANode", "SingleNUMANode", "Restricted", "BestEffort")
BINDS = ("", "", "", "FullPCPUsOnly", "SpreadByPCPUs")


@st.composite
def specs(draw: st.DrawFn) -> dict[str, str]:
    kinds = ("", "Default", "FullPCPUs", "SpreadByPCPUs", "ConstrainedBurst")
    return {
        "requiredCPUBindPolicy": draw(st.sampled_from(("", "", *kinds))),
        "preferredCPUBindPolicy": draw(st.sampled_from(kinds)),
        "preferredCPUExclusivePolicy": draw(st.sampled_from(("", "PCPULevel", "NUMANodeLevel"))),
    }


@st.composite
def pods(draw: st.DrawFn, name: str) -> Any:
    qos = draw(st.sampled_from(("LSR", "LSR", "LSE", "LS", "BE", "")))
    cpu = draw(st.sampled_from((1, 2, 2, 4, 6, "500m", "1500m", 0)))
    numa = draw(st.sampled_from(("", "", "", "SingleNUMANode", "Restricted", "BestEffort")))
    exclusive = draw(st.sampled_from(("", "Required", "Preferred")))
    return pod(
        name,
        cpu,
        qos=qos,
        memory=draw(st.sampled_from(("1Gi", "6Gi", "20Gi"))),
        spec=draw(st.none() | specs()),
        numa={"numaTopologyPolicy": numa, "singleNUMANodeExclusive": exclusive} if numa else None,
    )


@st.composite
def holders(draw: st.DrawFn, name: str, on: str, cpus: int) -> Any:
    """A pod that was given something before, by whomever."""
    held = sorted(draw(st.sets(st.integers(0, cpus - 1), max_size=cpus)))
    amounts = {"cpu": str(len(held) or 1), "memory": draw(st.sampled_from(("1Gi", "3Gi", "7Gi")))}
    status: dict[str, Any] = {"cpuset": ",".join(map(str, held))}
    if draw(st.booleans()):
        status["numaNodeResources"] = [{"node": draw(st.integers(0, 1)), "resources": amounts}]
    return pod(name, 1, node_name=on, annotations={STATUS: status})


def strategies(draw: st.DrawFn) -> dict[str, Any]:
    kinds = st.sampled_from(("LeastAllocated", "MostAllocated"))
    weights = [{"name": "cpu", "weight": 2}, {"name": "memory", "weight": 1}]
    return {
        "scoringStrategy": {"type": draw(kinds), "resources": weights},
        "numaScoringStrategy": {"type": draw(kinds), "resources": weights},
    }


@st.composite
def clusters(draw: st.DrawFn) -> NumaCluster:
    """Nodes of all sorts."""
    cluster = NumaCluster(**strategies(draw))
    for i in range(draw(st.integers(1, 9))):
        name, shape = f"n{i}", draw(st.sampled_from(SHAPES))
        labels = {
            "numa-topology-policy": draw(st.sampled_from(POLICIES)),
            "cpu-bind-policy": draw(st.sampled_from(BINDS)),
        }
        ratio = draw(st.sampled_from((None, None, None, None, 1.0, 1.5, "bad")))
        written: dict[str, Any] = {"resource-amplification-ratio": "{" if ratio == "bad" else {"cpu": ratio}}
        count = shape[0] * shape[1]
        cpus = count * shape[2] * shape[3]
        stated = {k: v for k, v in labels.items() if v}
        cluster.add(node(name, cpus, labels=stated, annotations=written if ratio is not None else None))
        if draw(st.integers(0, 5)):
            memory = draw(st.sampled_from(("8Gi", "16Gi", "0")))
            zones = [zone(f"node-{n}", cpu=cpus // count, memory=memory) for n in range(draw(st.integers(0, count)))]
            kept: dict[str, Any] = draw(st.sampled_from(({}, {"reservation": {"reservedCPUs": "0"}})))
            cluster.describe(topology(name, shape, zones=zones, annotations=kept))
    for i in range(draw(st.integers(0, 6))):
        cluster.place(draw(pods(f"placed{i}")))
    return cluster


@st.composite
def single_clusters(draw: st.DrawFn) -> NumaCluster:
    """Nodes that numbers by NUMA node say it all about, in every state of fullness."""
    cluster = NumaCluster(**strategies(draw))
    for i in range(draw(st.integers(7, 12))):
        name, shape = f"n{i}", draw(st.sampled_from(((1, 2, 2, 2), (1, 2, 3, 2), (1, 3, 2, 1))))
        per_zone = shape[2] * shape[3]
        count = shape[0] * shape[1]
        policy = draw(st.sampled_from(("SingleNUMANode", "SingleNUMANode", "SingleNUMANode", "")))
        cluster.add(node(name, count * per_zone, labels={"numa-topology-policy": policy} if policy else None))
        more: dict[str, str] = draw(st.sampled_from(({}, {"example.com/x": "4"}, {"example.com/x": "0"})))
        memory = draw(st.sampled_from(("8Gi", "16Gi")))
        zones = [zone(f"node-{n}", cpu=per_zone, memory=memory, more=more) for n in range(count)]
        if draw(st.integers(0, 9)) == 0:
            zones[0]["resources"] = zones[0]["resources"][1:]  # without cpu
        cluster.describe(topology(name, shape, zones=zones))
        for k in range(draw(st.integers(0, 2))):
            cluster.state.set_pod(draw(holders(f"{name}-h{k}", name, count * per_zone)))
    return cluster


@st.composite
def single_pods(draw: st.DrawFn) -> Any:
    extended: dict[str, str] = draw(st.sampled_from(({}, {}, {"example.com/x": "1"})))
    numa = draw(st.sampled_from(("", "SingleNUMANode", "SingleNUMANode")))
    exclusive = draw(st.sampled_from(("", "Required", "Preferred")))
    return pod(
        "judged",
        draw(st.integers(1, 5)),
        qos=draw(st.sampled_from(("LSR", "LSR", "LS"))),
        memory=draw(st.sampled_from(("1Gi", "4Gi", "7Gi"))),
        spec=draw(st.none() | specs()),
        numa={"numaTopologyPolicy": numa, "singleNUMANodeExclusive": exclusive} if numa else None,
        more=extended,
    )


@settings(max_examples=100, deadline=None)
@given(cluster=clusters(), judged=st.lists(pods("judged"), min_size=1, max_size=3), rows=st.lists(st.integers(0, 8)))
def test_both_forms_agree(cluster: NumaCluster, judged: list[Any], rows: list[int]) -> None:
    for i, one in enumerate(judged):
        check_columns_match_definition(cluster.plugin, cluster.state, cluster.info(one), rows)
        cluster.place(pod(f"more{i}", 1, qos="LS"))  # what was kept of the nodes must follow


@settings(max_examples=100, deadline=None)
@given(cluster=single_clusters(), judged=st.lists(single_pods(), min_size=2, max_size=4))
def test_both_forms_agree_about_one_numa_node(cluster: NumaCluster, judged: list[Any]) -> None:
    for i, one in enumerate(judged):
        check_columns_match_definition(cluster.plugin, cluster.state, cluster.info(one), list(range(9)))
        cluster.place(pod(f"more{i}", 2))  # what was kept of the nodes must follow
