"""GPU requests that no card could ever satisfy. Only normal containers are looked at, as upstream does."""

from __future__ import annotations

from koord.api.container import Container
from koord.api.pod import PodSpec
from koord.api.resource_name import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED, NPU_CORE
from koord.manager.webhooks.pod_validating.complaint import forbidden, invalid
from koord.values.quantity import ZERO, Quantity

_PATH = "pod.spec.containers[*].resources.requests"
_CARD = 100  # percent
_NOT_ZERO = "the requested GPU must be greater than zero"


def complaints(spec: PodSpec) -> list[str]:
    """Return the GPU requests that no card could satisfy, of normal containers as upstream. Raise QuantityError."""
    return [found for container in spec.containers for found in _of(container)]


def _of(container: Container) -> list[str]:
    requests = {name: Quantity.parse(text) for name, text in container.resources.requests.items()}
    percent, shared = requests.get(GPU), requests.get(GPU_SHARED)
    if percent is not None and shared is not None:
        return [forbidden(_PATH, "Forbidden declare GPU and GPU share at same time")]
    if percent is not None:
        return _cards(percent)
    return _share(requests, shared) if shared is not None else []


def _cards(percent: Quantity) -> list[str]:
    if percent.is_zero():
        return [invalid(_PATH, str(percent), _NOT_ZERO)]
    if percent.value() > _CARD and percent.value() % _CARD:
        return [invalid(_PATH, str(percent), "the requested GPU must be percentage of 100")]
    return []


def _share(requests: dict[str, Quantity], shared: Quantity) -> list[str]:
    if shared.is_zero():
        return [invalid(_PATH, str(shared), _NOT_ZERO)]
    if not requests.get(NPU_CORE, ZERO).is_zero():
        return []
    memory, ratio = requests.get(GPU_MEMORY, ZERO), requests.get(GPU_MEMORY_RATIO, ZERO)
    core = requests.get(GPU_CORE, ZERO)
    found = []
    if memory.is_zero() and ratio.is_zero():
        found.append(forbidden(_PATH, "GPU memory and GPU memory ratio all is zero"))
    if not memory.is_zero() and not ratio.is_zero():
        found.append(forbidden(_PATH, "declare GPU memory and GPU memory ratio at same time"))
    if core.value() % shared.value():
        found.append(invalid(_PATH, str(core), "the requested gpuCore must multiple of shared"))
    if ratio.value() % shared.value():
        found.append(invalid(_PATH, str(ratio), "the requested gpuMemoryRatio must multiple of shared"))
    return found
