"""cpu-normalization-config and resource-amplification-config: ratios that make unequal machines comparable."""

from __future__ import annotations

from koord.api.config.field_error import FieldError, within
from koord.api.meta import LabelSelector
from koord.api.model import Model

LOWEST_RATIO, HIGHEST_RATIO = 1.0, 5.0


class ModelRatios(Model, frozen=True, kw_only=True):
    """CPUModelRatios holds the ratios of one CPU model, by what is switched on."""

    base_ratio: float | None = None
    hyper_thread_enabled_ratio: float | None = None
    turbo_enabled_ratio: float | None = None
    hyper_thread_turbo_enabled_ratio: float | None = None


class CPUNormalizationStrategy(Model, frozen=True, kw_only=True):
    """CPUNormalizationStrategy holds the ratios that make CPUs of unequal machines comparable."""
    enable: bool | None = None
    default_ratio: float | None = None
    ratio_model: dict[str, ModelRatios] = {}


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


def ratio_of(
    strategy: CPUNormalizationStrategy, cpu_model: str, *, hyper_thread: bool, turbo: bool
) -> float | FieldError:
    """Return the ratio of a node's CPU: of its model and switches, else the default; an error when neither is
    stated.
    """
    known = strategy.ratio_model.get(cpu_model, ModelRatios())
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
    errors = within(f"ratioModel[{cpu_model}]", chosen, low=LOWEST_RATIO, high=HIGHEST_RATIO)
    return errors[0] if errors else chosen
