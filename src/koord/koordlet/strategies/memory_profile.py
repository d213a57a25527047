"""The CgroupReconcile strategy: memory protection (min, low), throttling (high) and page cache limits.

Amounts come from requests, limits and percents alone. A setting that is absent leaves its file untouched.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations import memory_qos
from koord.api.annotations.codec import Malformed
from koord.api.config.slo import defaults
from koord.api.config.slo.overlay import overlay
from koord.api.qos_class import BE
from koord.api.resource_name import BATCH_MEMORY, MEMORY
from koord.api.slo_strategy import MemoryQOS, ResourceQOSStrategy
from koord.koordlet.pod import PodView
from koord.koordlet.strategies.slo import class_of


def profile(strategy: ResourceQOSStrategy, pod: PodView) -> MemoryQOS | None:
    """Return the memory QoS of a pod from its class, its annotation or both; None when neither mentions it."""
    block = class_of(strategy, pod.qos_with_default)
    config = None if block is None or block.memory_qos is None else _plain(block.memory_qos)
    own = memory_qos.parse(pod.annotations)
    if own is None or isinstance(own, Malformed):
        return config
    if own.effective_policy == memory_qos.NONE:
        return defaults.NO_MEMORY_QOS
    if own.effective_policy == memory_qos.AUTO and pod.qos_with_default:
        config = defaults.memory_qos(pod.qos_with_default)
    return overlay(config or MemoryQOS(), own)


def resource_of(pod: PodView) -> str:
    """Return the memory resource of a pod: batch-memory for BE pods by label, memory for all others."""
    return BATCH_MEMORY if pod.qos == BE else MEMORY


def amount(listed: Mapping[str, int], name: str) -> int | None:
    """Return a listed amount; None when it is absent or negative."""
    value = listed.get(name)
    return None if value is None or value < 0 else value


def pod_limit(pod: PodView) -> int | None:
    """Return the memory limit of a pod. One container without a limit makes it None, where Kubernetes
    does not add up itself.
    """
    name = resource_of(pod)
    if name == MEMORY:
        return amount(pod.limits, name)
    limits = [amount(container.limits, name) for container in pod.containers]
    known = [limit for limit in limits if limit is not None]
    return sum(known) if known and len(known) == len(limits) else None


def _plain(config: MemoryQOS) -> MemoryQOS:
    return MemoryQOS(**{name: getattr(config, name) for name in MemoryQOS.__struct_fields__})
