"""This module holds the documents of slo-controller-config that become a NodeSLO, and those of CPU
normalization and resource amplification. A per-node entry carries its strategy inline, beside a selector.
"""

from __future__ import annotations

from koord.api.meta import LabelSelector
from koord.api.model import Model
from koord.api.slo_strategy import (
    CPUBurstStrategy,
    HostApplicationSpec,
    ResourceQOSStrategy,
    ResourceThresholdStrategy,
    SystemStrategy,
)


class NodeThresholdStrategy(ResourceThresholdStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class ThresholdConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: ResourceThresholdStrategy | None = None
    node_strategies: tuple[NodeThresholdStrategy, ...] = ()


class NodeQOSStrategy(ResourceQOSStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class QOSConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: ResourceQOSStrategy | None = None
    node_strategies: tuple[NodeQOSStrategy, ...] = ()


class NodeCPUBurstStrategy(CPUBurstStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class CPUBurstConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: CPUBurstStrategy | None = None
    node_strategies: tuple[NodeCPUBurstStrategy, ...] = ()


class NodeSystemStrategy(SystemStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class SystemConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: SystemStrategy | None = None
    node_strategies: tuple[NodeSystemStrategy, ...] = ()


class NodeHostApplications(Model, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None
    applications: tuple[HostApplicationSpec, ...] = ()


class HostApplicationConfig(Model, frozen=True, kw_only=True):
    """HostApplicationConfig has no defaults and is not merged: the first matching entry replaces the list, even
    with an empty one.
    """

    applications: tuple[HostApplicationSpec, ...] = ()
    node_configs: tuple[NodeHostApplications, ...] = ()
