"""The rules of the node from what the agent knows of it."""

from __future__ import annotations

from koord.api.annotations.cpu_codecs import CPUSharedPool
from koord.api.koordinator.slo import NodeSLOSpec
from koord.koordlet.hooks.hook import HookSettings, NodeRules, build_node_rules, with_node
from koord.koordlet.inputs.machine import CpuPools, L3Cache
from koord.koordlet.inputs.node_inputs import KubeletCpuManager, NodeInputs, NodeProperties
from koord.values.cpuset import EMPTY, CPUSet

LS, BE = (CPUSharedPool(cpuset="0-2"),), (CPUSharedPool(cpuset="0-1"),)
POOLS = CpuPools(ls_pools=LS, be_pools=BE, allocs=(), kubelet_reserved=EMPTY)


def test_nothing_is_known_at_the_start() -> None:
    assert build_node_rules(frozenset(), HookSettings(), NodeInputs(), None, L3Cache()) == NodeRules()


def test_everything_is_known() -> None:
    node = NodeProperties(
        name="n", system_cpus=CPUSet.parse("3"), normalization_ratio=1.2, has_normalization_ratio=True
    )
    slo, cache, settings = NodeSLOSpec(), L3Cache(mask=0xFF, ids=(0,)), HookSettings(unset_cpu_quota=False)
    inputs = NodeInputs(node=node, slo=slo, kubelet=KubeletCpuManager(cpu_manager_policy="static"), mps_daemons={0: ""})
    assert build_node_rules(frozenset({"A"}), settings, inputs, POOLS, cache) == NodeRules(
        gates=frozenset({"A"}),
        slo=slo,
        ls_pools=LS,
        be_pools=BE,
        kubelet_static=True,
        system_cpus="3",
        normalization_ratio=1.2,
        cache=cache,
        settings=settings,
        mps_daemons={0: ""},
    )


def test_a_node_without_a_ratio_has_none() -> None:
    inputs = NodeInputs(node=NodeProperties(name="n"))
    rules = build_node_rules(frozenset(), HookSettings(), inputs, POOLS, L3Cache())
    assert (rules.normalization_ratio, rules.system_cpus) == (None, "")


def test_a_node_that_changed_since_is_in_the_rules_of_the_last_run() -> None:
    """A container that starts a moment after the Node's annotation changed has the new quota at once."""
    rules = build_node_rules(frozenset(), HookSettings(), NodeInputs(node=NodeProperties(name="n")), POOLS, L3Cache())
    assert with_node(rules, NodeProperties(name="n")) is rules
    node = NodeProperties(name="n", normalization_ratio=1.2, has_normalization_ratio=True)
    now = with_node(rules, node)
    assert (now.normalization_ratio, now.ls_pools) == (1.2, rules.ls_pools)
    assert with_node(now, NodeProperties(name="n")) == rules
