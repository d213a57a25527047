"""The memory settings of one pod: its class's, its annotation's, or both; and the amounts they are percents of."""

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
    """None when nothing speaks of this pod."""
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
    """BE pods by their label ask for batch-memory; all others for memory."""
    return BATCH_MEMORY if pod.qos == BE else MEMORY


def amount(listed: Mapping[str, int], name: str) -> int | None:
    value = listed.get(name)
    return None if value is None or value < 0 else value


def pod_limit(pod: PodView) -> int | None:
    """None is no limit: one container without is enough for that, where Kubernetes does not add limits up itself."""
    name = resource_of(pod)
    if name == MEMORY:
        return amount(pod.limits, name)
    limits = [amount(container.limits, name) for container in pod.containers]
    known = [limit for limit in limits if limit is not None]
    return sum(known) if known and len(known) == len(limits) else None


def _plain(config: MemoryQOS) -> MemoryQOS:
    return MemoryQOS(**{name: getattr(config, name) for name in MemoryQOS.__struct_fields__})
