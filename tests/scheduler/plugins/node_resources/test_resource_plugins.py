"""NodeResourcesFit, NodeResourcesBalancedAllocation and ImageLocality: refusals, and scores by hand."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.scheduler.configuration import typed_args
from koord.api.config.scheduler.in_tree_args import (
    NodeResourcesBalancedAllocationArgs,
    NodeResourcesFitArgs,
    SchedulerPluginArgs,
)
from koord.api.kubernetes.node import Node
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import SKIP, Fault, Reject, reject, unresolvable
from koord.scheduler.plugins.image_locality import ImageLocality
from koord.scheduler.plugins.node_resources.balanced_allocation import BalancedAllocation
from koord.scheduler.plugins.node_resources.fit import NodeResourcesFit
from tests.scheduler.builders import GPU, make_node, make_pod, make_state

MI = 1024 * 1024


def _args(name: str, raw: dict[str, Any]) -> SchedulerPluginArgs:
    args = typed_args(name, raw)
    assert not isinstance(args, list), args
    return args


def fit(**raw: Any) -> NodeResourcesFit:
    args = _args("NodeResourcesFit", raw)
    assert isinstance(args, NodeResourcesFitArgs)
    return NodeResourcesFit(args)


def balanced(*resources: str) -> BalancedAllocation:
    args = _args("NodeResourcesBalancedAllocation", {"resources": [{"name": r, "weight": 1} for r in resources]})
    assert isinstance(args, NodeResourcesBalancedAllocationArgs)
    return BalancedAllocation(args)


def strategy(kind: str, *resources: tuple[str, int], **more: Any) -> NodeResourcesFit:
    listed = [{"name": name, "weight": weight} for name, weight in resources]
    return fit(scoringStrategy={"type": kind, "resources": listed, **more})


def verdict(plugin: Plugin, pod: Pod, node: Node, *placed: Pod) -> Reject | None:
    state = make_state([node], placed)
    info = state.node(node.metadata.name)
    assert info is not None
    found = plugin.filter(CycleState(state), state.pod_info(pod), info)
    assert not isinstance(found, Fault)
    return found


def score(plugin: Plugin, pod: Pod, node: Node, *placed: Pod) -> int:
    state = make_state([node], placed)
    info = state.node(node.metadata.name)
    assert info is not None
    return plugin.score(CycleState(state), state.pod_info(pod), info)


def taken(**words: Any) -> Pod:
    return make_pod("taken", node="n0", **words)


FOUR = make_node(cpu="4", memory="4Gi", pods="2", more={GPU: "2", "ephemeral-storage": "10Gi"})


@pytest.mark.parametrize(
    ("pod", "placed", "refusal"),
    [
        pytest.param(make_pod(cpu="4", memory="4Gi"), [], None, id="just-fits"),
        pytest.param(make_pod(), [taken(cpu="4")], None, id="asking-for-nothing-fits-a-full-node"),
        pytest.param(make_pod(cpu="0"), [taken(cpu="9")], None, id="asking-for-zero-fits-an-overfull-node"),
        pytest.param(make_pod(cpu="1"), [taken(cpu="3500m")], reject("Insufficient cpu"), id="cpu-taken"),
        pytest.param(make_pod(cpu="4001m"), [], unresolvable("Insufficient cpu"), id="larger-than-the-node"),
        pytest.param(
            make_pod(cpu="2", memory="5Gi"),
            [taken(cpu="3")],
            unresolvable("Insufficient cpu", "Insufficient memory"),
            id="one-of-two-is-beyond-help",
        ),
        pytest.param(
            make_pod(cpu="2"),
            [taken(cpu="3"), make_pod("b", node="n0")],
            reject("Too many pods", "Insufficient cpu"),
            id="pods-first",
        ),
        pytest.param(
            make_pod(more={GPU: "1"}), [taken(more={GPU: "2"})], reject(f"Insufficient {GPU}"), id="extended-taken"
        ),
        pytest.param(
            make_pod(more={"example.com/nic": "1"}),
            [],
            unresolvable("Insufficient example.com/nic"),
            id="extended-absent",
        ),
        pytest.param(
            make_pod(more={"ephemeral-storage": "11Gi", GPU: "3"}),
            [],
            unresolvable("Insufficient ephemeral-storage", f"Insufficient {GPU}"),
            id="built-in-before-extended",
        ),
        pytest.param(
            make_pod(resources={"requests": {"cpu": "5"}}),
            [],
            unresolvable("Insufficient cpu"),
            id="stated-for-the-pod",
        ),
        pytest.param(
            make_pod(cpu="1", initContainers=[{"name": "i", "resources": {"requests": {"cpu": "5"}}}]),
            [],
            unresolvable("Insufficient cpu"),
            id="init-container-at-its-peak",
        ),
        pytest.param(
            make_pod(cpu="3", overhead={"cpu": "2"}), [], unresolvable("Insufficient cpu"), id="overhead-comes-on-top"
        ),
    ],
)
def test_fit(pod: Pod, placed: list[Pod], refusal: Reject | None) -> None:
    assert verdict(fit(), pod, FOUR, *placed) == refusal


@pytest.mark.parametrize(
    ("ignored", "name", "fits"),
    [
        pytest.param({"ignoredResources": ["example.com/nic"]}, "example.com/nic", True, id="by-name"),
        pytest.param({"ignoredResourceGroups": ["example.com"]}, "example.com/nic", True, id="by-group"),
        pytest.param({"ignoredResourceGroups": ["example.com"]}, "example.org/nic", False, id="another-group"),
        pytest.param(
            {"ignoredResources": ["kubernetes.io/batch-cpu"]},
            "kubernetes.io/batch-cpu",
            False,
            id="never-kubernetes-own",
        ),
        pytest.param({"ignoredResources": ["hugepages-2Mi"]}, "hugepages-2Mi", False, id="never-huge-pages"),
    ],
)
def test_ignored_resources(ignored: dict[str, Any], name: str, fits: bool) -> None:
    assert (verdict(fit(**ignored), make_pod(more={name: "1"}), FOUR) is None) is fits


CPU_MEMORY = (("cpu", 1), ("memory", 1))


@pytest.mark.parametrize(
    ("plugin", "pod", "placed", "points"),
    [
        # cpu: (4000-1000)·100/4000 = 75, memory: (4096-1024)·100/4096 = 75
        pytest.param(fit(), make_pod(cpu="1", memory="1Gi"), [], 75, id="least"),
        # cpu 75; memory: the default of 200Mi leaves 3896·100/4096 = 95; (75+95)/2
        pytest.param(fit(), make_pod(cpu="1"), [], 85, id="unstated-memory-counts-200Mi"),
        # cpu: 100m of 4 leave 97; memory 95; (97+95)/2
        pytest.param(fit(), make_pod(), [], 96, id="unstated-cpu-counts-100m"),
        pytest.param(fit(), make_pod(cpu="0", memory="0"), [], 100, id="a-stated-zero-is-zero"),
        # pods on the node are counted with defaults too: cpu (4000-200)/40 = 95, memory (4096-400)·100/4096 = 90
        pytest.param(fit(), make_pod(), [taken()], 92, id="placed-pods-have-defaults-too"),
        # cpu is over-full and scores 0, memory 75
        pytest.param(fit(), make_pod(cpu="1", memory="1Gi"), [taken(cpu="4", memory="0")], 37, id="overfull-is-zero"),
        # (75·3 + 50·1) / 4
        pytest.param(
            strategy("LeastAllocated", ("cpu", 3), ("memory", 1)), make_pod(cpu="1", memory="2Gi"), [], 68, id="weights"
        ),
        pytest.param(
            strategy("LeastAllocated", *CPU_MEMORY, (GPU, 1)),
            make_pod(cpu="1", memory="1Gi"),
            [],
            75,
            id="extended-unasked",
        ),
        # (75 + 75 + 50) / 3
        pytest.param(
            strategy("LeastAllocated", *CPU_MEMORY, (GPU, 1)),
            make_pod(cpu="1", memory="1Gi", more={GPU: "1"}),
            [],
            66,
            id="extended-asked",
        ),
        # a resource that the node does not have stays out of the mean
        pytest.param(
            strategy("LeastAllocated", *CPU_MEMORY, ("example.com/nic", 9)),
            make_pod(cpu="1", memory="1Gi", more={"example.com/nic": "1"}),
            [],
            75,
            id="resource-absent-from-node",
        ),
        # the pod's own statement is left out of this one number: 100m and 200Mi
        pytest.param(
            fit(), make_pod(resources={"requests": {"cpu": "2"}}), [], 96, id="stated-for-the-pod-is-not-scored"
        ),
        # cpu (4000-2100)/40 = 47, memory (4096-400)·100/4096 = 90
        pytest.param(fit(), make_pod(), [taken(resources={"requests": {"cpu": "2"}})], 68, id="but-counts-once-placed"),
        pytest.param(strategy("MostAllocated", *CPU_MEMORY), make_pod(cpu="1", memory="1Gi"), [], 25, id="most"),
        pytest.param(
            strategy("MostAllocated", *CPU_MEMORY),
            make_pod(cpu="1", memory="1Gi"),
            [taken(cpu="9", memory="1Gi")],
            75,
            id="most-overfull-is-full",
        ),
    ],
)
def test_fit_scores(plugin: Plugin, pod: Pod, placed: list[Pod], points: int) -> None:
    assert score(plugin, pod, FOUR, *placed) == points


def curve(*points: tuple[int, int]) -> NodeResourcesFit:
    shape = [{"utilization": at, "score": worth} for at, worth in points]
    return strategy("RequestedToCapacityRatio", *CPU_MEMORY, requestedToCapacityRatio={"shape": shape})


@pytest.mark.parametrize(
    ("plugin", "cpu", "points"),
    [
        pytest.param(curve((0, 0), (100, 10)), "1", 25, id="straight-up"),
        pytest.param(curve((0, 10), (100, 0)), "1", 75, id="straight-down"),
        pytest.param(curve((50, 2), (80, 5)), "1", 20, id="level-before-the-first-point"),
        pytest.param(curve((10, 2), (20, 5)), "1", 50, id="level-after-the-last-point"),
        pytest.param(curve((0, 0), (30, 10)), "1", 83, id="fractions-are-cut"),  # 100·25/30 = 83.3
        pytest.param(curve((0, 10), (30, 0)), "1", 17, id="cut-towards-zero-going-down"),  # 100 - 83.3 is 100 - 83
    ],
)
def test_curves(plugin: Plugin, cpu: str, points: int) -> None:
    assert score(plugin, make_pod(cpu=cpu, memory="1Gi"), FOUR) == points


def test_a_resource_that_scores_nothing_on_the_curve_does_not_weigh() -> None:
    plugin = curve((0, 0), (50, 0), (100, 10))
    assert score(plugin, make_pod(cpu="3", memory="1Gi"), FOUR) == 50  # cpu 75 % scores 50; memory scores 0


def test_the_mean_on_a_curve_is_rounded() -> None:
    plugin = curve((0, 0), (100, 10))
    assert score(plugin, make_pod(cpu="1", memory="2Gi"), FOUR) == 38  # (25 + 50) / 2 = 37.5


@pytest.mark.parametrize(
    ("plugin", "pod", "points"),
    [
        pytest.param(balanced("cpu", "memory"), make_pod(cpu="1", memory="1Gi"), 100, id="even"),
        pytest.param(balanced("cpu", "memory"), make_pod(cpu="4", memory="0"), 50, id="all-of-one"),
        pytest.param(balanced("cpu", "memory"), make_pod(cpu="1", memory="3Gi"), 75, id="half-apart"),
        # fractions 0.25, 0.25, 0.5: mean 1/3, σ = 0.1178…
        pytest.param(balanced("cpu", "memory", GPU), make_pod(cpu="1", memory="1Gi", more={GPU: "1"}), 88, id="three"),
        pytest.param(balanced("cpu", "memory", GPU), make_pod(cpu="1", memory="3Gi"), 75, id="extended-unasked"),
        pytest.param(balanced("cpu"), make_pod(cpu="1"), 100, id="one-is-always-even"),
        pytest.param(balanced("cpu", "memory"), make_pod(cpu="9", memory="4Gi"), 100, id="overfull-is-full"),
        pytest.param(
            balanced("cpu", "memory"),
            make_pod(resources={"requests": {"cpu": "4"}}),
            50,
            id="stated-for-the-pod-is-scored",
        ),
    ],
)
def test_balance(plugin: Plugin, pod: Pod, points: int) -> None:
    assert score(plugin, pod, FOUR) == points


@pytest.mark.parametrize(
    ("pod", "skipped"),
    [
        pytest.param(make_pod(), True, id="best-effort"),
        pytest.param(make_pod(cpu="0", memory="0"), True, id="zeros"),
        pytest.param(make_pod(more={GPU: "1"}), True, id="only-what-is-not-balanced"),
        pytest.param(make_pod(memory="1"), False, id="one-byte"),
    ],
)
def test_balance_has_nothing_to_say_of_pods_that_change_none(pod: Pod, skipped: bool) -> None:
    state = make_state([FOUR])
    assert (balanced("cpu", "memory").pre_score(CycleState(state), state.pod_info(pod), []) is SKIP) is skipped


def image_score(state: ClusterState, pod: Pod, node: str) -> int:
    info = state.node(node)
    assert info is not None
    return ImageLocality(state).score(CycleState(state), state.pod_info(pod), info)


@pytest.mark.parametrize(
    ("images", "pod", "points"),
    [
        pytest.param({"app:latest": 500 * MI}, make_pod(images=["app"]), 48, id="no-tag-means-latest"),  # 477/977
        pytest.param({"app": 500 * MI}, make_pod(images=["app"]), 0, id="nodes-names-are-taken-as-they-are"),
        pytest.param({"reg:5000/app:latest": 500 * MI}, make_pod(images=["reg:5000/app"]), 48, id="a-port-is-no-tag"),
        pytest.param({"app@sha256:1": 500 * MI}, make_pod(images=["app@sha256:1"]), 48, id="digest"),
        pytest.param({"app:v1": 23 * MI}, make_pod(images=["app:v1"]), 0, id="too-small-to-count"),
        pytest.param({"app:v1": 5000 * MI}, make_pod(images=["app:v1"]), 100, id="large-enough"),
        pytest.param({"app:v1": 500 * MI}, make_pod(images=["app:v1", "b"]), 24, id="of-two-containers"),  # 477/1977
        pytest.param({"app:v1": 500 * MI}, make_pod(images=["app:v1", "app:v1"]), 49, id="twice"),  # 977/1977
        pytest.param({}, make_pod(images=["app:v1"]), 0, id="not-there"),
    ],
)
def test_images(images: dict[str, int], pod: Pod, points: int) -> None:
    assert image_score(make_state([make_node(images=images)]), pod, "n0") == points


def test_an_image_counts_for_the_part_of_nodes_that_have_it() -> None:
    state = make_state([make_node("n0", images={"app:v1": 1000 * MI}), *(make_node(f"n{i}") for i in (1, 2, 3))])
    assert image_score(state, make_pod(images=["app:v1"]), "n0") == 23  # 1000/4 = 250: 227/977
    assert image_score(state, make_pod(images=["app:v1"]), "n1") == 0


def test_the_first_node_by_name_tells_the_size() -> None:
    sizes = {"n2": 900 * MI, "n1": 500 * MI}
    state = make_state(make_node(name, images={"app:v1": size}) for name, size in sizes.items())
    assert {image_score(state, make_pod(images=["app:v1"]), name) for name in sizes} == {48}


def test_images_that_come_and_go_are_seen() -> None:
    state = make_state([make_node("n0"), make_node("n1")])
    plugin, pod = ImageLocality(state), state.pod_info(make_pod(images=["app:v1"]))
    cycle, node = CycleState(state), state.node("n0")
    assert node is not None
    seen = [plugin.epoch(cycle)]
    assert plugin.score(cycle, pod, node) == 0
    for images, points in (({"app:v1": 1000 * MI}, 48), ({"app:v1": 1000 * MI, "b": 1}, 48), ({"b": 1}, 0)):
        state.set_node(make_node("n0", images=images))
        seen.append(plugin.epoch(cycle))
        assert plugin.score(cycle, pod, node) == points
    first, came, unrelated, went = seen
    assert first != came == unrelated != went  # only images that some pod asked about matter
