"""The rules of the node for hooks, from what the agent knows of the node at one moment."""

from __future__ import annotations

from typing import Protocol

from koord.api.annotations.cpu_codecs import CPUSharedPool
from koord.koordlet.hooks.hook import HookSettings, NodeRules
from koord.koordlet.inputs.machine import L3Cache
from koord.koordlet.inputs.node_inputs import NodeInputs


class SharedPools(Protocol):
    """The shared CPUs of LS and BE pods, as `koord.koordlet.inputs.cpu_pools` decides them."""

    @property
    def ls_pools(self) -> tuple[CPUSharedPool, ...]: ...

    @property
    def be_pools(self) -> tuple[CPUSharedPool, ...]: ...


def build_node_rules(
    gates: frozenset[str],
    settings: HookSettings,
    inputs: NodeInputs,
    pools: SharedPools | None,
    cache: L3Cache,
    *,
    has_group_identity: bool = False,
) -> NodeRules:
    """Build the rules. `pools` is None until they were decided once; equal inputs give equal rules."""
    node = inputs.node
    return NodeRules(
        gates=gates,
        slo=inputs.slo,
        ls_pools=None if pools is None else pools.ls_pools,
        be_pools=None if pools is None else pools.be_pools,
        kubelet_static=inputs.kubelet.is_static,
        system_cpus="" if node is None else str(node.system_cpus),
        normalization_ratio=node.normalization_ratio if node is not None and node.has_normalization_ratio else None,
        cache=cache,
        has_group_identity=has_group_identity,
        settings=settings,
        mps_daemons=inputs.mps_daemons,
    )
