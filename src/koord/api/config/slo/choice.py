"""This module checks fields that take one of a few values. Programs silently treat a value that they do not
know as the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from koord.api.config.field_error import FieldError, one_of
from koord.api.config.slo import colocation, defaults
from koord.api.qos_class import PRIORITY_CLASSES, QOS_CLASSES
from koord.api.slo import MEMORY_COLLECT_POLICIES

# By wire name, in whatever struct it appears.
CHOICES: dict[str, tuple[str, ...]] = {
    "cpuSuppressPolicy": (defaults.CPUSET, defaults.CFS_QUOTA),
    "cpuEvictPolicy": (defaults.EVICT_BY_REAL_LIMIT, defaults.EVICT_BY_ALLOCATABLE),
    "cpuPolicy": (defaults.GROUP_IDENTITY, defaults.CORE_SCHED),
    "netQOSPolicy": (defaults.TC, defaults.TERWAY_QOS),
    "policy": (defaults.BURST_NONE, defaults.BURST_CPU_ONLY, defaults.BURST_QUOTA_ONLY, defaults.BURST_AUTO),
    "cpuCalculatePolicy": (colocation.USAGE, colocation.MAX_USAGE_REQUEST),
    "memoryCalculatePolicy": (colocation.USAGE, colocation.REQUEST, colocation.MAX_USAGE_REQUEST),
    "metricMemoryCollectPolicy": MEMORY_COLLECT_POLICIES,
    "midReclaimMode": (colocation.STATIC,),
    "qos": QOS_CLASSES,
    "priority": PRIORITY_CLASSES,  # of a host application; that of memoryQOS is a number
    "base": ("CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort"),
}


def unknown_words(config: msgspec.Struct) -> list[FieldError]:
    """Return an error for every enumerated value in the document that is unknown, with the known ones."""
    return list(_walk(config, ""))


def _walk(value: Any, path: str) -> Iterator[FieldError]:
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            inner = getattr(value, field.name)
            here = f"{path}.{field.encode_name}" if path else field.encode_name
            allowed = CHOICES.get(field.encode_name)
            if allowed is not None and isinstance(inner, str) and inner:
                yield from one_of(here, inner, allowed)
            yield from _walk(inner, here)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]")
