"""CPU normalization (how fast a node's CPUs are beside others) and resource amplification of a node."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import amplification, cpu_basic_info, cpu_normalization
from koord.api.annotations.codec import Malformed
from koord.api.config.field_error import FieldError
from koord.api.config.slo.ratios import CPUNormalizationStrategy, ResourceAmplificationStrategy, ratio_of
from koord.api.protocol import A_CPU_NORMALIZATION_RATIO
from koord.policy.layers import Layers
from koord.values.resources import CPU


class Normalization(msgspec.Struct, frozen=True, kw_only=True):
    """The normalization of a node. `text` is the ratio as written; None when it is unknown, and then nothing is
    written.
    """

    enabled: bool = False
    text: str | None = None
    ratio: float | None = None
    cpu_model: str = ""
    error: str = ""


class Amplification(msgspec.Struct, frozen=True, kw_only=True):
    """The amplification of a node. `text` is the annotation as written; None removes it."""

    text: str | None = None
    ratios: dict[str, float] = {}
    normalization: float | None = None  # the factor that the node's own annotation gave
    error: str = ""


def decide_normalization(
    layers: Layers[CPUNormalizationStrategy], labels: Mapping[str, str], topology: Mapping[str, str] | None
) -> Normalization:
    """Decide the ratio. `topology` are the annotations of the node's topology object, None when it has none."""
    strategy = layers.of(labels)
    switched = cpu_normalization.parse_enabled(labels)
    if isinstance(switched, Malformed):
        return Normalization(error=str(switched))
    if not (strategy.enable if switched is None else switched):
        return Normalization(text=cpu_normalization.NO_EFFECT, ratio=1.0)
    if topology is None:
        return Normalization(enabled=True, error="there is no NodeResourceTopology of this node")
    info = cpu_basic_info.parse(topology)
    if info is None or isinstance(info, Malformed):
        why = "the NodeResourceTopology does not name the CPU" if info is None else str(info)
        return Normalization(enabled=True, error=why)
    ratio = ratio_of(strategy, info.cpu_model, hyper_thread=info.hyper_thread_enabled, turbo=info.turbo_enabled)
    if isinstance(ratio, FieldError):
        return Normalization(enabled=True, cpu_model=info.cpu_model, error=str(ratio))
    text = cpu_normalization.dump_ratio(ratio)
    # What readers of the annotation will see, two decimals, is also what is computed with here.
    return Normalization(enabled=True, text=text, ratio=float(text), cpu_model=info.cpu_model)


def unknown_normalization(annotations: Mapping[str, str]) -> Normalization:
    """Keep the node's ratio while the configuration cannot be read; what it lends is stated in it as before."""
    kept = cpu_normalization.parse_ratio(annotations)
    return Normalization(
        ratio=kept if isinstance(kept, float) else None, error="the configuration of CPU normalization is not readable"
    )


def decide_amplification(
    layers: Layers[ResourceAmplificationStrategy], labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Amplification:
    """Decide the ratios.

    The CPU ratio is multiplied by the normalization ratio that the node carries now, not the one about to be
    written: the write triggers another decision.
    """
    strategy = layers.of(labels)
    ratios = dict(strategy.resource_amplification_ratio) if strategy.enable else {}
    normalization = cpu_normalization.parse_ratio(annotations)
    if isinstance(normalization, Malformed):
        return Amplification(error=str(normalization))
    stated = ratios.get(CPU, 0.0)
    cpu = (stated if stated > 0 else 1.0) * (1.0 if normalization is None else normalization)
    if cpu > 1:
        ratios[CPU] = cpu
    for name, ratio in ratios.items():
        if ratio < 1:
            return Amplification(normalization=normalization, error=f"the ratio of {name} is {ratio:g}, below 1")
    if not ratios:
        return Amplification(normalization=normalization)
    return Amplification(text=amplification.dump_ratios(ratios), ratios=ratios, normalization=normalization)


def normalization_differs(old: str | None, new: str | None) -> bool:
    """Return whether the node's ratio must be changed. An unknown new value is no reason to write."""
    if new is None or old == new:
        return False
    if old is None:
        return True
    before = cpu_normalization.parse_ratio({A_CPU_NORMALIZATION_RATIO: old})
    if before is None or isinstance(before, Malformed):
        return True
    return abs(before - float(new)) > cpu_normalization.EPSILON
