"""CPU normalization (how fast a node's CPUs are beside others) and resource amplification of a node."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import cpu_codecs, node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.field_error import FieldError
from koord.api.config.slo.slo_documents import (
    CPUNormalizationStrategy,
    ResourceAmplificationStrategy,
    cpu_normalization_ratio,
)
from koord.api.koordinator.protocol import A_CPU_NORMALIZATION_RATIO
from koord.manager.colocation.strategy import LayeredStrategy
from koord.values.resources import CPU


class CpuNormalizationDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The normalization of a node. `text` is the ratio as written; None when it is unknown: nothing is written then."""

    enabled: bool = False
    text: str | None = None
    ratio: float | None = None
    cpu_model: str = ""
    error: str = ""


class AmplificationDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The amplification of a node. `text` is the annotation as written; None removes it."""

    text: str | None = None
    ratios: dict[str, float] = {}
    normalization: float | None = None  # the factor that the node's own annotation gave
    error: str = ""


def decide_normalization(
    layers: LayeredStrategy[CPUNormalizationStrategy], labels: Mapping[str, str], topology: Mapping[str, str] | None
) -> CpuNormalizationDecision:
    """Decide the ratio. `topology` are the annotations of the node's topology object, None when it has none."""
    strategy = layers.for_node(labels)
    switched = cpu_codecs.parse_cpu_normalization_enabled(labels)
    if isinstance(switched, MalformedAnnotation):
        return CpuNormalizationDecision(error=str(switched))
    if not (strategy.enable if switched is None else switched):
        return CpuNormalizationDecision(text=cpu_codecs.CPU_NORMALIZATION_NO_EFFECT, ratio=1.0)
    if topology is None:
        return CpuNormalizationDecision(enabled=True, error="there is no NodeResourceTopology of this node")
    info = cpu_codecs.parse_cpu_basic_info(topology)
    if info is None or isinstance(info, MalformedAnnotation):
        why = "the NodeResourceTopology does not name the CPU" if info is None else str(info)
        return CpuNormalizationDecision(enabled=True, error=why)
    ratio = cpu_normalization_ratio(
        strategy, info.cpu_model, hyper_thread=info.hyper_thread_enabled, turbo=info.turbo_enabled
    )
    if isinstance(ratio, FieldError):
        return CpuNormalizationDecision(enabled=True, cpu_model=info.cpu_model, error=str(ratio))
    text = cpu_codecs.dump_cpu_normalization_ratio(ratio)
    # What readers of the annotation will see, two decimals, is also what is computed with here.
    return CpuNormalizationDecision(enabled=True, text=text, ratio=float(text), cpu_model=info.cpu_model)


def unknown_normalization(annotations: Mapping[str, str]) -> CpuNormalizationDecision:
    """Keep the node's ratio while the configuration cannot be read; what it lends is stated in it as before."""
    kept = cpu_codecs.parse_cpu_normalization_ratio(annotations)
    return CpuNormalizationDecision(
        ratio=kept if isinstance(kept, float) else None, error="the configuration of CPU normalization is not readable"
    )


def decide_amplification(
    layers: LayeredStrategy[ResourceAmplificationStrategy], labels: Mapping[str, str], annotations: Mapping[str, str]
) -> AmplificationDecision:
    """Decide the ratios.

    The CPU ratio is multiplied by the normalization ratio that the node carries now, not the one about to be written:
    the write triggers another decision.
    """
    strategy = layers.for_node(labels)
    ratios = dict(strategy.resource_amplification_ratio) if strategy.enable else {}
    normalization = cpu_codecs.parse_cpu_normalization_ratio(annotations)
    if isinstance(normalization, MalformedAnnotation):
        return AmplificationDecision(error=str(normalization))
    stated = ratios.get(CPU, 0.0)
    cpu = (stated if stated > 0 else 1.0) * (1.0 if normalization is None else normalization)
    if cpu > 1:
        ratios[CPU] = cpu
    for name, ratio in ratios.items():
        if ratio < 1:
            return AmplificationDecision(
                normalization=normalization, error=f"the ratio of {name} is {ratio:g}, below 1"
            )
    if not ratios:
        return AmplificationDecision(normalization=normalization)
    return AmplificationDecision(
        text=node_codecs.dump_amplification_ratios(ratios), ratios=ratios, normalization=normalization
    )


def normalization_differs(old: str | None, new: str | None) -> bool:
    """Return whether the node's ratio must be changed. An unknown new value is no reason to write."""
    if new is None or old == new:
        return False
    if old is None:
        return True
    before = cpu_codecs.parse_cpu_normalization_ratio({A_CPU_NORMALIZATION_RATIO: old})
    if before is None or isinstance(before, MalformedAnnotation):
        return True
    return abs(before - float(new)) > cpu_codecs.CPU_NORMALIZATION_EPSILON
