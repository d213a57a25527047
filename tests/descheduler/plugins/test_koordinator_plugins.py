"""CustomPriority, FragmentationAware and ScaleDownBinPack on small clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from koord.api.config.descheduler import plugin_args
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.descheduler.framework.plugin import (
    AnnotateEffect,
    CordonEffect,
    DeschedulerPlugin,
    DeschedulingProfile,
    EvictionProposal,
    RoundLimits,
    RoundState,
)
from koord.descheduler.framework.pod_selection import DELETION_COST
from koord.descheduler.framework.round import RoundOutcome, run_round
from koord.descheduler.plugins.custom_priority import CustomPriority
from koord.descheduler.plugins.fragmentation_aware import FragmentationAwareBalance, imbalance
from koord.descheduler.plugins.scale_down_bin_pack import MAX_DELETION_COST, ScaleDownBinPack
from tests.descheduler.cluster_builders import make_pod, make_snapshot


class Guard(DeschedulerPlugin):
    name: ClassVar[str] = "Guard"

    def __init__(self, kept: Sequence[str] = (), not_now: Sequence[str] = ()) -> None:
        self._kept, self._not_now = kept, not_now

    def filter(self, pod: Pod, round_state: RoundState) -> str | None:
        return "kept" if pod.metadata.name in self._kept else None

    def pre_eviction_filter(self, pod: Pod, round_state: RoundState) -> str | None:
        return "not now" if pod.metadata.name in self._not_now else None


def node(name: str, cpu: str = "8", memory: str = "32Gi", pods: int = 110, **labels: str) -> Node:
    room = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    return convert({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": room}}, Node)


def pod(name: str, on: str, cpu: str = "0", memory: str = "0", **given: Any) -> Pod:
    requests = {"cpu": cpu, "memory": memory}
    spec = {"containers": [{"name": "c", "resources": {"requests": requests}}], **given.pop("spec", {})}
    return make_pod(name, on, spec=spec, **given)


def ran(
    plugin: DeschedulerPlugin, nodes: list[Node], pods: list[Pod], guard: Guard | None = None, **limits: int
) -> RoundOutcome:
    held = guard or Guard()
    profile = DeschedulingProfile(name="p", evict=held, filter=(held,), balance=(plugin,))
    return run_round([profile], make_snapshot(nodes, pods), RoundLimits(**limits))


def evicted(outcome: RoundOutcome) -> list[tuple[str, str]]:
    return [(e.pod.metadata.name, e.target) for e in outcome.effects if isinstance(e, EvictionProposal)]


# CustomPriority --------------------------------------------------------------------------------------------------


def priority(**args: Any) -> CustomPriority:
    order = [{"name": name, "nodeSelector": {"matchLabels": {"pool": name}}} for name in ("dear", "fair", "cheap")]
    made = plugin_args.defaulted_custom_priority(
        convert({"evictionOrder": order, **args}, plugin_args.CustomPriorityArgs)
    )
    assert plugin_args.validate_custom_priority(made) == []
    return CustomPriority(made)


DEAR, CHEAP = node("dear1", pool="dear"), node("cheap1", "4", pool="cheap")


def test_pods_go_from_dear_to_cheap_smallest_first() -> None:
    pods = [pod("big", "dear1", "2"), pod("small", "dear1", "1"), pod("there", "cheap1", "1")]
    outcome = ran(priority(), [DEAR, CHEAP], pods)
    assert evicted(outcome) == [("small", "cheap1"), ("big", "cheap1")]
    assert outcome.effects[0].reason == "evicting from dear priority resource to lower priority resource"


def test_one_populated_level_is_not_enough() -> None:
    assert ran(priority(), [DEAR, node("dear2", pool="dear")], [pod("a", "dear1", "1")]).effects == ()


def test_five_misses_in_a_row_end_the_node() -> None:
    pods = [pod(f"stuck{i}", "dear1", f"{i + 1}m", spec={"nodeSelector": {"x": "y"}}) for i in range(5)]
    pods.append(pod("free", "dear1", "1"))
    assert evicted(ran(priority(), [DEAR, CHEAP], pods)) == []
    assert evicted(ran(priority(), [DEAR, CHEAP], pods[1:])) == [("free", "cheap1")]


def test_a_node_is_drained_whole_or_not_at_all() -> None:
    drain = priority(mode="DrainNode", autoCordon=True)
    nodes = [DEAR, node("dear2", pool="dear"), CHEAP]
    pods = [pod("a", "dear1", "1"), pod("b", "dear1", "1"), pod("c", "dear2", "1"), pod("d", "dear2", "5")]
    outcome = ran(drain, nodes, pods)
    assert evicted(outcome) == [("a", "cheap1"), ("b", "cheap1")]
    assert [(e.node, e.unschedulable) for e in outcome.effects if isinstance(e, CordonEffect)] == [("dear1", True)]
    assert {e.reason for e in outcome.effects} == {"drain node dear1 (sourcePriority=dear)"}


def test_what_was_promised_to_one_drained_node_is_gone_for_the_next() -> None:
    nodes = [DEAR, node("dear2", pool="dear"), CHEAP]
    pods = [pod("a", "dear1", "3"), pod("b", "dear2", "3")]
    assert evicted(ran(priority(mode="DrainNode"), nodes, pods)) == [("a", "cheap1")]


def test_pods_of_the_node_itself_do_not_hinder_a_drain_and_protected_ones_do() -> None:
    drain = priority(mode="DrainNode")
    pods = [pod("a", "dear1", "1"), pod("agent", "dear1", owner="DaemonSet/agent")]
    guard = Guard(kept=("agent",))
    assert evicted(ran(drain, [DEAR, CHEAP], pods, guard)) == [("a", "cheap1")]
    pods.append(pod("precious", "dear1", "1"))
    assert ran(drain, [DEAR, CHEAP], pods, Guard(kept=("agent", "precious"))).effects == ()


def test_a_drain_that_is_cut_short_uncordons() -> None:
    drain = priority(mode="DrainNode", autoCordon=True)
    outcome = ran(drain, [DEAR, CHEAP], [pod("a", "dear1", "1"), pod("b", "dear1", "1")], total=1)
    assert [e.unschedulable for e in outcome.effects if isinstance(e, CordonEffect)] == [True, False]


def test_cordons_of_a_dry_run_are_dry() -> None:
    drain = priority(mode="DrainNode", autoCordon=True, dryRun=True)
    outcome = ran(drain, [DEAR, CHEAP], [pod("a", "dear1", "1")])
    assert [e.dry_run for e in outcome.effects] == [True, True]


# FragmentationAware ----------------------------------------------------------------------------------------------


def fragments(**args: Any) -> FragmentationAwareBalance:
    made = plugin_args.defaulted_fragmentation(convert(args, plugin_args.FragmentationAwareArgs))
    assert plugin_args.validate_fragmentation(made) == []
    return FragmentationAwareBalance(made)


UNEVEN = [node("n1", "10", "10Gi"), node("n2", "10", "10Gi")]
PODS = [
    pod("cpuhog", "n1", "5", "100Mi"),
    pod("cpusmall", "n1", "2", "100Mi"),
    pod("memory", "n1", "100m", "2Gi"),
    pod("there", "n2", "1", "1Gi"),
]


def test_the_pod_with_the_best_gain_leaves_its_node() -> None:
    outcome = ran(fragments(), UNEVEN, PODS)
    assert evicted(outcome) == [("cpuhog", "n2")]
    assert outcome.effects[0].reason == "fragmentation reduction: stdBefore=0.2452 stdAfter=0.0001 gain=0.2451"


@pytest.mark.parametrize(
    ("plugin", "guard"),
    [
        pytest.param(fragments(paused=True), Guard(), id="paused"),
        pytest.param(fragments(imbalanceThreshold=0.25), Guard(), id="even-enough"),
        pytest.param(fragments(minImprovementThreshold=0.3), Guard(), id="weak-gain"),
        pytest.param(fragments(), Guard(not_now=("cpuhog",)), id="not-now"),
    ],
)
def test_what_keeps_it_still(plugin: FragmentationAwareBalance, guard: Guard) -> None:
    assert ran(plugin, UNEVEN, PODS, guard).effects == ()


def test_a_protected_pod_counts_but_stays() -> None:
    assert evicted(ran(fragments(), UNEVEN, PODS, Guard(kept=("cpuhog",)))) == [("cpusmall", "n2")]


def test_imbalance_of_nothing_is_none() -> None:
    assert imbalance({}, {}, ("cpu",)) == 0.0
    assert imbalance({"cpu": 5, "memory": 5}, {"cpu": 10, "memory": 10}, ("cpu", "memory")) == 0.0


# ScaleDownBinPack ------------------------------------------------------------------------------------------------


def packing(**args: Any) -> ScaleDownBinPack:
    selectors = [{"name": "t", "selector": {"matchLabels": {"app": "web"}}}]
    made = plugin_args.defaulted_bin_pack(
        convert({"podSelectors": selectors, **args}, plugin_args.ScaleDownBinPackArgs)
    )
    assert plugin_args.validate_bin_pack(made) == []
    return ScaleDownBinPack(made)


def web(name: str, on: str, cpu: str = "0", memory: str = "0", app: str = "web", cost: str = "") -> Pod:
    annotations = {DELETION_COST: cost} if cost else {}
    return pod(name, on, cpu, memory, metadata={"labels": {"app": app}, "annotations": annotations})


def costs(outcome: RoundOutcome) -> dict[str, str]:
    return {e.pod.metadata.name: e.annotations[DELETION_COST] for e in outcome.effects if isinstance(e, AnnotateEffect)}


PACKED = [node("n1", "4", "8Gi"), node("n2", "4", "8Gi")]
WEB = [
    web("a", "n1", "2", "100Mi"),
    web("b", "n1", "100m", "3Gi"),
    web("c", "n2", "1", "1Gi"),
    web("other", "n2", "1", "1Gi", app="x"),
    web("local", "n2", "500m", "1Gi"),
]


def test_costs_empty_whole_nodes_first() -> None:
    outcome = ran(packing(), PACKED, WEB, Guard(kept=("local",)))
    assert costs(outcome) == {"a": "0", "b": "1", "c": "2", "local": str(MAX_DELETION_COST)}


def test_what_is_written_already_is_not_written_again() -> None:
    pods = [web("a", "n1", "2", "100Mi", cost="0"), web("b", "n1", "100m", "3Gi", cost="7")]
    assert costs(ran(packing(), PACKED, pods)) == {"b": "1"}


def test_nodes_where_nothing_would_be_left_come_first_and_hopeless_ones_last() -> None:
    nodes = [node(name, "4", "8Gi") for name in ("hopeless", "mixed", "pure")]
    pods = [
        web("h", "hopeless"),
        web("h-other", "hopeless", "1", app="x"),
        web("m", "mixed", "1"),
        web("m-other", "mixed", "1", app="x"),
        web("p", "pure", "1"),
    ]
    assert costs(ran(packing(), nodes, pods)) == {"p": "0", "m": "1", "h": "2"}


def test_evictions_stop_at_their_number_and_refused_ones_do_not_count() -> None:
    plugin = packing(strategy="EvictDirectly", maxPodsToEvict=2)
    assert [name for name, _ in evicted(ran(plugin, PACKED, WEB))] == ["a", "b"]
    assert [name for name, _ in evicted(ran(plugin, PACKED, WEB, per_node=1))] == ["a", "c"]
