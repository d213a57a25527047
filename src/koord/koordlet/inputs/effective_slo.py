"""Compute the effective NodeSLO: laid over the built-in defaults, with disabled blocks set to neutral values."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api.config.slo import defaults
from koord.api.config.slo.defaults import overlay
from koord.api.koordinator.qos_class import BE, LS, LSE, LSR, SYSTEM
from koord.api.koordinator.slo import NodeSLOSpec
from koord.api.koordinator.slo_strategy import ResourceQOS, ResourceQOSStrategy

_NEUTRAL: dict[str, msgspec.Struct] = {
    "cpu_qos": defaults.NO_CPU_QOS,
    "memory_qos": defaults.NO_MEMORY_QOS,
    "resctrl_qos": defaults.NO_RESCTRL_QOS,
}


def effective_slo(spec: NodeSLOSpec | None) -> NodeSLOSpec:
    """Return the effective spec. Writing neutral values is how a disabled block is undone; extensions stay untouched.

    None stands for a NodeSLO that was deleted. It counts as an empty one: everything is restored.
    """
    spec = NodeSLOSpec() if spec is None else spec
    qos = overlay(defaults.qos_strategy(), spec.resource_qos_strategy or ResourceQOSStrategy())
    return msgspec.structs.replace(
        spec,
        resource_used_threshold_with_be=_overlay_or_default(defaults.THRESHOLD, spec.resource_used_threshold_with_be),
        cpu_burst_strategy=_overlay_or_default(defaults.CPU_BURST, spec.cpu_burst_strategy),
        system_strategy=_overlay_or_default(defaults.SYSTEM_STRATEGY, spec.system_strategy),
        resource_qos_strategy=msgspec.structs.replace(
            qos,
            lsr_class=_neutralised(qos.lsr_class),
            ls_class=_neutralised(qos.ls_class),
            be_class=_neutralised(qos.be_class),
        ),
    )


def qos_class_settings(strategy: ResourceQOSStrategy, qos: str) -> ResourceQOS | None:
    """Return the settings of a QoS class; LSE pods have those of LSR, a pod without class has none."""
    blocks = {
        LSE: strategy.lsr_class,
        LSR: strategy.lsr_class,
        LS: strategy.ls_class,
        BE: strategy.be_class,
        SYSTEM: strategy.system_class,
    }
    return blocks.get(qos)


def _overlay_or_default(default: Any, said: Any) -> Any:
    return default if said is None else overlay(default, said)


def _neutralised(block: ResourceQOS | None) -> ResourceQOS | None:
    if block is None:
        return None
    changed: dict[str, Any] = {}
    for name, neutral in _NEUTRAL.items():
        config = getattr(block, name)
        if config is not None and config.enable is False:
            changed[name] = type(config)(
                enable=False, **{field: getattr(neutral, field) for field in neutral.__struct_fields__}
            )
    return msgspec.structs.replace(block, **changed)
