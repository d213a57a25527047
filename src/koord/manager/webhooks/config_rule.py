"""The value rules of slo-controller-config in upstream's words: the Go field path and validator's English
sentence.

The numbers are koord.api.config.slo's; only names and sentences are made here. Network shares must be
readable, of
one kind, and together no more than the whole; a share is a percentage (a number) or bits per second (a
quantity).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from koord.api.config.slo import admission, colocation, keys
from koord.api.config.slo.limit import Limit, Ordered
from koord.api.slo_strategy import ResourceQOSStrategy

# Go spells these in capitals where a name begins with them.
_INITIALISM = re.compile(r"(cpu|cfs|cat|mba|lsr|ls|be)(?=[A-Z])")
_CLASSES = ("lsr_class", "ls_class", "be_class", "system_class", "cgroup_root")
_BURST_BODY = frozenset({"cpu_burst_percent", "cfs_quota_burst_percent", "cfs_quota_burst_period_seconds"})

Checked = tuple[str, msgspec.Struct, Sequence[Limit], Sequence[Ordered]]  # the Go path of a struct and its rules


def broken_values(key: str, config: Any) -> dict[str, str]:
    """Return the Go path of each wrong field with its sentence, sorted as Go writes maps."""
    found = {path: text for part in _parts(key, config) for path, text in _broken(*part)}
    return dict(sorted(found.items()))


def go_name(wire: str) -> str:
    known = _INITIALISM.match(wire)
    return wire[0].upper() + wire[1:] if known is None else known.group().upper() + wire[known.end() :]


def _parts(key: str, config: Any) -> Iterator[Checked]:
    if key == keys.COLOCATION:
        yield "ColocationCfg.ColocationStrategy.", config, colocation.ADMISSION, ()
        for index, node in enumerate(config.node_configs):
            yield f"ColocationCfg.NodeConfigs[{index}].ColocationStrategy.", node, colocation.ADMISSION, ()
        return
    name, strategy = {
        keys.RESOURCE_THRESHOLD: ("ResourceThresholdCfg", "ResourceThresholdStrategy"),
        keys.RESOURCE_QOS: ("ResourceQOSCfg", "ResourceQOSStrategy"),
        keys.SYSTEM: ("SystemCfg", "SystemStrategy"),
        keys.CPU_BURST: ("CPUBurstCfg", "CPUBurstStrategy"),
    }[key]
    if config.cluster_strategy is not None:
        yield from _strategy(key, f"{name}.ClusterStrategy.", config.cluster_strategy)
    for index, node in enumerate(config.node_strategies):
        yield from _strategy(key, f"{name}.NodeStrategies[{index}].{strategy}.", node)


def _strategy(key: str, path: str, strategy: Any) -> Iterator[Checked]:
    if key == keys.RESOURCE_THRESHOLD:
        yield path, strategy, admission.THRESHOLD_LIMITS, admission.THRESHOLD_PAIRS
    elif key == keys.SYSTEM:
        yield path, strategy, admission.SYSTEM_LIMITS, ()
    elif key == keys.CPU_BURST:
        body = [limit for limit in admission.CPU_BURST_LIMITS if set(limit.fields) <= _BURST_BODY]
        yield f"{path}CPUBurstConfig.", strategy, body, ()
        yield path, strategy, [limit for limit in admission.CPU_BURST_LIMITS if limit not in body], ()
    else:
        yield from _qos(path, strategy)


def _qos(path: str, strategy: ResourceQOSStrategy) -> Iterator[Checked]:
    """Yield the checked structs of a QoS strategy. Go structs carry an inlined body of the same name in the path."""
    names = {f.name: go_name(f.encode_name) for f in msgspec.structs.fields(strategy)}
    for name in _CLASSES:
        block = getattr(strategy, name)
        if block is None:
            continue
        here = f"{path}{names[name]}."
        if block.cpu_qos is not None:
            yield f"{here}CPUQOS.CPUQOS.", block.cpu_qos, admission.CPU_QOS_LIMITS, ()
        if block.memory_qos is not None:
            yield f"{here}MemoryQOS.MemoryQOS.", block.memory_qos, admission.MEMORY_QOS_LIMITS, ()
        if block.resctrl_qos is not None:
            where = f"{here}ResctrlQOS.ResctrlQOS."
            yield where, block.resctrl_qos, admission.RESCTRL_QOS_LIMITS, admission.RESCTRL_QOS_PAIRS


def _broken(
    path: str, strategy: msgspec.Struct, limits: Sequence[Limit], pairs: Sequence[Ordered]
) -> Iterator[tuple[str, str]]:
    """Yield one sentence for each wrong field: its range comes before its pair."""
    names = {f.name: go_name(f.encode_name) for f in msgspec.structs.fields(strategy)}
    wrong: dict[str, str] = {}
    for limit in limits:
        for field in limit.fields:
            if text := _out_of_range(getattr(strategy, field), limit):
                wrong[field] = text
    for pair in pairs:
        lower, upper = getattr(strategy, pair.lower), getattr(strategy, pair.upper)
        if lower is not None and upper is not None and lower < upper:
            continue
        # One of two is refused as well: upstream compares the given one with nothing.
        if upper is not None:
            wrong.setdefault(pair.upper, f"must be greater than {names[pair.lower]}")
        if lower is not None:
            wrong.setdefault(pair.lower, f"must be less than {names[pair.upper]}")
    for field, text in wrong.items():
        yield f"{path}{names[field]}", f"{names[field]} {text}"


def _out_of_range(value: float | None, limit: Limit) -> str:
    if value is None:
        return ""
    if limit.above is not None and not value > limit.above:
        return f"must be greater than {_number(limit.above)}"
    if limit.low is not None and value < limit.low:
        return f"must be {_number(limit.low)} or greater"
    if limit.high is not None and value > limit.high:
        return f"must be {_number(limit.high)} or less"
    return ""


def _number(value: float) -> str:
    """Format a number as validator prints it in English: 10,000."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,}"
