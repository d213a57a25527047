"""The GPUEnvInject hook: the environment that tells a container its GPUs, and the limits that HAMi-core enforces.

NVIDIA's container runtime reads NVIDIA_VISIBLE_DEVICES. HAMi-core is a library that is preloaded into the container's
processes and reads its limits from the environment; a pod asks for it by label, and only a pod with a part of a card
needs it.
"""

from __future__ import annotations

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.device_codecs import AllocatedDevice, parse_device_allocated
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, GPU_ISOLATION_HAMI_CORE, L_GPU_ISOLATION_PROVIDER
from koord.api.koordinator.resource_name import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.koordlet.hooks.hook import NOTHING, ContainerContext, HookPlan, Mount, NodeRules
from koord.values.quantity import Quantity

NAME = "gpu env inject"
MONITOR_GATE = "HamiCoreVGPUMonitor"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
MEMORY_LIMIT_ENV, SM_LIMIT_ENV = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"
SHARED_CACHE_ENV = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
PRELOAD = "LD_PRELOAD"
LOCK_DIR = "/tmp/vgpulock"
_GPU, _WHOLE_CARD = "gpu", 100


def decide_container(container: ContainerContext, rules: NodeRules) -> HookPlan:
    allocated = parse_device_allocated(container.pod.annotations)
    if isinstance(allocated, MalformedAnnotation):
        return HookPlan(problem=str(allocated))
    cards = (allocated or {}).get(_GPU, ())
    if not cards or container.is_sandbox:
        return NOTHING
    visible = ((VISIBLE_DEVICES, ",".join(str(one.minor) for one in cards)),)
    if container.pod.labels.get(L_GPU_ISOLATION_PROVIDER) != GPU_ISOLATION_HAMI_CORE:
        return HookPlan(env=visible)
    limits = _limits(cards[0])
    if isinstance(limits, str):
        # The card is not named either: without its limits the container would use all of it.
        return HookPlan(problem=limits)
    if not limits:
        return HookPlan(env=visible)
    return _with_library(container, rules, (*visible, *limits))


def _limits(card: AllocatedDevice) -> tuple[tuple[str, str], ...] | str:
    """Return the environment with the limits; none for a whole card, and text that says what is missing."""
    amounts = {name: Quantity.parse(text).value() for name, text in card.resources.items()}
    if GPU_MEMORY_RATIO not in amounts:
        return (
            f"{A_DEVICE_ALLOCATED}: GPU {card.minor} has no {GPU_MEMORY_RATIO}, which {GPU_ISOLATION_HAMI_CORE} needs"
        )
    if amounts[GPU_MEMORY_RATIO] >= _WHOLE_CARD:
        return ()
    if amounts.get(GPU_MEMORY, 0) <= 0:  # the library takes 0 for no limit
        return f"{A_DEVICE_ALLOCATED}: GPU {card.minor} has no {GPU_MEMORY}, which {GPU_ISOLATION_HAMI_CORE} needs"
    memory = (MEMORY_LIMIT_ENV, str(amounts[GPU_MEMORY]))
    return (memory, (SM_LIMIT_ENV, str(amounts[GPU_CORE]))) if GPU_CORE in amounts else (memory,)


def _with_library(container: ContainerContext, rules: NodeRules, env: tuple[tuple[str, str], ...]) -> HookPlan:
    library = rules.settings.hami_library
    env = (*env, (PRELOAD, _preload(library, container.env.get(PRELOAD, ""))))
    mounts = (Mount(source=library, destination=library), Mount(source=LOCK_DIR, destination=LOCK_DIR))
    if MONITOR_GATE not in rules.gates:
        return HookPlan(env=env, mounts=mounts)
    name = f"{container.pod.uid}_{container.name}"
    if not container.pod.uid or not container.name or "/" in name:
        return HookPlan(problem=f"{name!r} names no directory for the cache of {GPU_ISOLATION_HAMI_CORE}")
    folder = library.rpartition("/")[0]
    # Before the library, which is mounted inside of it: a later mount of the directory would hide the library.
    cache = Mount(source=f"{folder}/containers/{name}", destination=folder, fresh_directory=True)
    return HookPlan(env=(*env, (SHARED_CACHE_ENV, f"{folder}/{name}.cache")), mounts=(cache, *mounts))


def _preload(library: str, present: str) -> str:
    """Return the libraries to preload: HAMi-core's first, then those that the container names itself."""
    others = [one for one in present.replace(":", " ").split() if one != library]
    return ":".join((library, *others))
