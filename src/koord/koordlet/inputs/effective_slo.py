"""Compute the effective NodeSLO: laid over the built-in defaults, with disabled blocks set to neutral values.

A value that no node can use (a threshold of 0, an unknown policy, a negative period) switches off what it belongs to,
and nothing else: as a number it would suppress, evict or limit pods that nobody meant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from koord.api.config.slo import defaults
from koord.api.config.slo.defaults import overlay
from koord.api.config.slo.slo_validation import strategy_errors
from koord.api.koordinator.protocol import BE, LS, LSE, LSR, SYSTEM
from koord.api.koordinator.slo import (
    NodeSLOSpec,
    ResourceQOS,
    ResourceQOSStrategy,
    ResourceThresholdStrategy,
    SystemStrategy,
)

_NEUTRAL: dict[str, msgspec.Struct] = {
    "cpu_qos": defaults.NO_CPU_QOS,
    "memory_qos": defaults.NO_MEMORY_QOS,
    "resctrl_qos": defaults.NO_RESCTRL_QOS,
}


# Fields of the threshold strategy that one rule reads, and the field without which the rule is off.
_THRESHOLD_RULES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("cpuSuppressThresholdPercent", "cpuSuppressMinPercent", "cpuSuppressPolicy"),
        "cpu_suppress_threshold_percent",
    ),
    (("memoryEvictThresholdPercent", "memoryEvictLowerPercent"), "memory_evict_threshold_percent"),
    (
        ("memoryAllocatableEvictThresholdPercent", "memoryAllocatableEvictLowerPercent"),
        "memory_allocatable_evict_threshold_percent",
    ),
    (
        (
            *("cpuEvictBESatisfactionUpperPercent", "cpuEvictBESatisfactionLowerPercent"),
            *("cpuEvictBEUsageThresholdPercent", "cpuEvictPolicy", "cpuEvictTimeWindowSeconds"),
        ),
        "cpu_evict_be_satisfaction_upper_percent",
    ),
    (
        ("cpuEvictThresholdPercent", "cpuEvictLowerPercent", "cpuEvictTimeWindowSeconds"),
        "cpu_evict_threshold_percent",
    ),
    (
        ("cpuAllocatableEvictThresholdPercent", "cpuAllocatableEvictLowerPercent"),
        "cpu_allocatable_evict_threshold_percent",
    ),
    (("evictEnabledPriorityThreshold",), "evict_enabled_priority_threshold"),
    (("allocatableEvictPriorityThreshold",), "allocatable_evict_priority_threshold"),
)


def effective_slo(spec: NodeSLOSpec | None) -> NodeSLOSpec:
    """Return the effective spec. Writing neutral values is how a disabled block is undone; extensions stay untouched.

    None stands for a NodeSLO that was deleted. It counts as an empty one: everything is restored.
    """
    spec = NodeSLOSpec() if spec is None else spec
    bad = [error.field.split(".") for error in strategy_errors(spec)]
    qos = overlay(defaults.qos_strategy(), spec.resource_qos_strategy or ResourceQOSStrategy())
    qos = _without_bad_blocks(qos, [path[1:] for path in bad if path[0] == "resourceQOSStrategy"])
    # The default of a field is no substitute for a bad value of it, so values go after the overlay.
    return msgspec.structs.replace(
        spec,
        resource_used_threshold_with_be=_without_bad_rules(
            _overlay_or_default(defaults.THRESHOLD, spec.resource_used_threshold_with_be),
            {path[1] for path in bad if path[0] == "resourceUsedThresholdWithBE"},
        ),
        cpu_burst_strategy=defaults.CPU_BURST
        if any(path[0] == "cpuBurstStrategy" for path in bad)
        else _overlay_or_default(defaults.CPU_BURST, spec.cpu_burst_strategy),
        system_strategy=_without_bad_fields(
            _overlay_or_default(defaults.SYSTEM_STRATEGY, spec.system_strategy),
            {path[1] for path in bad if path[0] == "systemStrategy"},
        ),
        resource_qos_strategy=msgspec.structs.replace(
            qos,
            lsr_class=_neutralised(qos.lsr_class),
            ls_class=_neutralised(qos.ls_class),
            be_class=_neutralised(qos.be_class),
        ),
        host_applications=tuple(
            one
            for index, one in enumerate(spec.host_applications)
            if not any(path[0] == f"hostApplications[{index}]" for path in bad)
        ),
    )


def _without_bad_rules(strategy: ResourceThresholdStrategy, bad: set[str]) -> ResourceThresholdStrategy:
    off = {needed: None for fields, needed in _THRESHOLD_RULES if bad & set(fields)}
    return msgspec.structs.replace(strategy, **off)


def _without_bad_fields(strategy: SystemStrategy, bad: set[str]) -> SystemStrategy:
    names = [field.name for field in msgspec.structs.fields(SystemStrategy) if field.encode_name in bad]
    return msgspec.structs.replace(strategy, **{name: getattr(defaults.SYSTEM_STRATEGY, name) for name in names})


def _without_bad_blocks(strategy: ResourceQOSStrategy, bad: Iterable[list[str]]) -> ResourceQOSStrategy:
    """Disable every block of a class in which a value is bad."""
    for class_name, *block_path in bad:
        field = _field_named(ResourceQOSStrategy, class_name)
        block = getattr(strategy, field)
        inner = _field_named(ResourceQOS, block_path[0]) if isinstance(block, ResourceQOS) and block_path else ""
        if inner:
            disabled = msgspec.structs.replace(getattr(block, inner), enable=False)
            block = msgspec.structs.replace(block, **{inner: disabled})
            strategy = msgspec.structs.replace(strategy, **{field: block})
    return strategy


def _field_named(kind: type[msgspec.Struct], encoded: str) -> str:
    return next((field.name for field in msgspec.structs.fields(kind) if field.encode_name == encoded), "")


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
