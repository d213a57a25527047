"""This module holds the documents of slo-controller-config that become a NodeSLO, and those of CPU normalization and
resource amplification. A per-node entry carries its strategy inline, beside a selector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.api.config.field_error import FieldError, range_errors
from koord.api.config.slo.colocation import ColocationConfig
from koord.api.config.slo.interference import InterferenceStrategy
from koord.api.koordinator import slo
from koord.api.kubernetes.meta import LabelSelector
from koord.api.model import Model

# The data keys.
COLOCATION = "colocation-config"
RESOURCE_THRESHOLD = "resource-threshold-config"
RESOURCE_QOS = "resource-qos-config"
CPU_BURST = "cpu-burst-config"
SYSTEM = "system-config"
HOST_APPLICATION = "host-application-config"
CPU_NORMALIZATION = "cpu-normalization-config"
RESOURCE_AMPLIFICATION = "resource-amplification-config"
INTERFERENCE = "interference-config"  # not Koordinator's
# The keys that the ConfigMap webhook checks, in its order.
VALIDATED_KEYS = (COLOCATION, RESOURCE_THRESHOLD, RESOURCE_QOS, SYSTEM, CPU_BURST)


class NodeThresholdStrategy(slo.ResourceThresholdStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class ThresholdConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: slo.ResourceThresholdStrategy | None = None
    node_strategies: tuple[NodeThresholdStrategy, ...] = ()


class NodeQOSStrategy(slo.ResourceQOSStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class QOSConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: slo.ResourceQOSStrategy | None = None
    node_strategies: tuple[NodeQOSStrategy, ...] = ()


class NodeCPUBurstStrategy(slo.CPUBurstStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class CPUBurstConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: slo.CPUBurstStrategy | None = None
    node_strategies: tuple[NodeCPUBurstStrategy, ...] = ()


class NodeSystemStrategy(slo.SystemStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class SystemConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: slo.SystemStrategy | None = None
    node_strategies: tuple[NodeSystemStrategy, ...] = ()


class NodeInterferenceStrategy(InterferenceStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class InterferenceConfig(Model, frozen=True, kw_only=True):
    cluster_strategy: InterferenceStrategy | None = None
    node_strategies: tuple[NodeInterferenceStrategy, ...] = ()


class NodeHostApplications(Model, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None
    applications: tuple[slo.HostApplicationSpec, ...] = ()


class HostApplicationConfig(Model, frozen=True, kw_only=True):
    """HostApplicationConfig is not merged: the first matching entry replaces the list, even with an empty one."""

    applications: tuple[slo.HostApplicationSpec, ...] = ()
    node_configs: tuple[NodeHostApplications, ...] = ()


MIN_CPU_NORMALIZATION_RATIO, MAX_CPU_NORMALIZATION_RATIO = 1.0, 5.0


class CPUModelRatios(Model, frozen=True, kw_only=True):
    """CPUModelRatios holds the ratios of one CPU model, by what is switched on."""

    base_ratio: float | None = None
    hyper_thread_enabled_ratio: float | None = None
    turbo_enabled_ratio: float | None = None
    hyper_thread_turbo_enabled_ratio: float | None = None


class CPUNormalizationStrategy(Model, frozen=True, kw_only=True):
    """CPUNormalizationStrategy holds the ratios that make CPUs of unequal machines comparable."""

    enable: bool | None = None
    default_ratio: float | None = None
    ratio_model: dict[str, CPUModelRatios] = {}


class NodeCPUNormalization(CPUNormalizationStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class CPUNormalizationConfig(CPUNormalizationStrategy, frozen=True, kw_only=True):
    node_configs: tuple[NodeCPUNormalization, ...] = ()


class ResourceAmplificationStrategy(Model, frozen=True, kw_only=True):
    enable: bool | None = None
    resource_amplification_ratio: dict[str, float] = {}


class NodeResourceAmplification(ResourceAmplificationStrategy, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


class ResourceAmplificationConfig(ResourceAmplificationStrategy, frozen=True, kw_only=True):
    node_configs: tuple[NodeResourceAmplification, ...] = ()


DEFAULT_CPU_NORMALIZATION = CPUNormalizationStrategy(enable=False)
DEFAULT_RESOURCE_AMPLIFICATION = ResourceAmplificationStrategy(enable=False)


def cpu_normalization_ratio(
    strategy: CPUNormalizationStrategy, cpu_model: str, *, hyper_thread: bool, turbo: bool
) -> float | FieldError:
    """Return the ratio of a node's CPU by model and switches, else the default; an error when neither is stated."""
    known = strategy.ratio_model.get(cpu_model, CPUModelRatios())
    chosen = {
        (True, True): known.hyper_thread_turbo_enabled_ratio,
        (True, False): known.hyper_thread_enabled_ratio,
        (False, True): known.turbo_enabled_ratio,
        (False, False): known.base_ratio,
    }[hyper_thread, turbo]
    if chosen is None:
        chosen = strategy.default_ratio
    if chosen is None:
        return FieldError(f"ratioModel[{cpu_model}]", None, "no ratio for this CPU and no defaultRatio")
    errors = range_errors(
        f"ratioModel[{cpu_model}]", chosen, low=MIN_CPU_NORMALIZATION_RATIO, high=MAX_CPU_NORMALIZATION_RATIO
    )
    return errors[0] if errors else chosen


# The model of the document under each key, in the order in which documents are looked at.
DOCUMENT_MODELS: Mapping[str, type[Any]] = {
    COLOCATION: ColocationConfig,
    RESOURCE_THRESHOLD: ThresholdConfig,
    RESOURCE_QOS: QOSConfig,
    CPU_BURST: CPUBurstConfig,
    SYSTEM: SystemConfig,
    HOST_APPLICATION: HostApplicationConfig,
    CPU_NORMALIZATION: CPUNormalizationConfig,
    RESOURCE_AMPLIFICATION: ResourceAmplificationConfig,
    INTERFERENCE: InterferenceConfig,
}
KEYS = tuple(DOCUMENT_MODELS)


def node_entries(config: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the name of a document's list of node entries, and the entries."""
    if hasattr(config, "node_strategies"):
        return "nodeStrategies", config.node_strategies
    return "nodeConfigs", config.node_configs
