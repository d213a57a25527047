"""The GPUEnvInject hook: the environment that tells a container its GPUs, and the limits of its share of a card.

NVIDIA's container runtime reads NVIDIA_VISIBLE_DEVICES. A pod asks by label for who enforces its share: HAMi-core is a
library that is preloaded into the container's processes, MPS is the driver's own service, whose daemons the agent
keeps. Both read their limits from the environment, and only a pod with a part of a card needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.device_codecs import AllocatedDevice, parse_device_allocated
from koord.api.koordinator.protocol import (
    A_GPU_CORE_POLICY,
    GPU_ISOLATION_HAMI_CORE,
    GPU_ISOLATION_MPS,
    L_GPU_ISOLATION_PROVIDER,
)
from koord.gpu import isolation
from koord.gpu.isolation import GpuLimits, pipe_directory
from koord.koordlet.hooks.hook import NOTHING, ContainerContext, HookPlan, Mount, NodeRules

NAME = "gpu env inject"
MONITOR_GATE = "HamiCoreVGPUMonitor"
MPS_GATE = "MPSControlDaemon"
LOCK_DIR = "/tmp/vgpulock"
SHARED_MEMORY = "/dev/shm"
_CORE_POLICIES = ("default", "force", "disable")

Cards = tuple[AllocatedDevice, ...]
# From the container, its rules, its cards and the limits of its share to what its provider needs.
Provider = Callable[[ContainerContext, NodeRules, Cards, GpuLimits], HookPlan]


def decide_container(container: ContainerContext, rules: NodeRules) -> HookPlan:
    allocated = parse_device_allocated(container.pod.annotations)
    if isinstance(allocated, MalformedAnnotation):
        return HookPlan(problem=str(allocated))
    cards = tuple((allocated or {}).get(isolation.GPU, ()))
    if not cards or container.is_sandbox:
        return NOTHING
    visible = ((isolation.VISIBLE_DEVICES, ",".join(str(one.minor) for one in cards)),)
    name = container.pod.labels.get(L_GPU_ISOLATION_PROVIDER, "")
    provider = PROVIDERS.get(name)
    if provider is None:
        return HookPlan(env=visible)
    limits = isolation.share_of(cards[0], name)
    if isinstance(limits, str):
        # The card is not named either: without its limits the container would use all of it.
        return HookPlan(problem=limits)
    if not limits.is_share:
        return HookPlan(env=visible)
    plan = provider(container, rules, cards, limits)
    return plan if plan.problem else HookPlan(env=(*visible, *plan.env), mounts=plan.mounts)


def limit_by_hami(container: ContainerContext, rules: NodeRules, cards: Cards, limits: GpuLimits) -> HookPlan:
    """Preload HAMi-core's library with its limits."""
    if container.env.get(isolation.MPS_PIPE):
        return HookPlan(
            problem=f"the container sets {isolation.MPS_PIPE}: {GPU_ISOLATION_HAMI_CORE} and MPS exclude each other"
        )
    library = rules.settings.hami_library
    env = [
        *isolation.hami_env(limits),
        (isolation.PRELOAD, _preload(library, container.env.get(isolation.PRELOAD, ""))),
    ]
    policy = container.pod.annotations.get(A_GPU_CORE_POLICY, "")
    if policy and policy not in _CORE_POLICIES:
        return HookPlan(problem=f"{A_GPU_CORE_POLICY}: {policy!r} is none of {', '.join(_CORE_POLICIES)}")
    if policy:
        env.append((isolation.HAMI_POLICY, policy))
    mounts = (Mount(source=library, destination=library), Mount(source=LOCK_DIR, destination=LOCK_DIR))
    if MONITOR_GATE not in rules.gates:
        return HookPlan(env=tuple(env), mounts=mounts)
    name = f"{container.pod.uid}_{container.name}"
    if not container.pod.uid or not container.name or "/" in name:
        return HookPlan(problem=f"{name!r} names no directory for the cache of {GPU_ISOLATION_HAMI_CORE}")
    folder = library.rpartition("/")[0]
    # Before the library, which is mounted inside of it: a later mount of the directory would hide the library.
    cache = Mount(source=f"{folder}/containers/{name}", destination=folder, fresh_directory=True)
    env.append((isolation.HAMI_CACHE, f"{folder}/{name}.cache"))
    return HookPlan(env=tuple(env), mounts=(cache, *mounts))


def limit_by_mps(container: ContainerContext, rules: NodeRules, cards: Cards, limits: GpuLimits) -> HookPlan:
    """Make the container's processes clients of the card's daemon, with their limits.

    A client whose daemon does not run uses the whole card without a word, so a container whose daemon is not known to
    work gets no card.
    """
    minor = cards[0].minor
    if len(cards) > 1:
        return HookPlan(
            problem=f"shares of {len(cards)} GPUs: {GPU_ISOLATION_MPS} has a daemon for each, and one client"
            " speaks with one daemon"
        )
    if MPS_GATE not in rules.gates:
        return HookPlan(problem=f"the gate {MPS_GATE} is off, so no daemon limits shares of GPU {minor}")
    problem = rules.mps_daemons.get(minor, "it was not started yet")
    if problem:
        return HookPlan(problem=f"the daemon of GPU {minor} does not work: {problem}")
    if isolation.PRELOAD in container.env and rules.settings.hami_library in container.env[isolation.PRELOAD]:
        return HookPlan(
            problem=f"the container preloads {GPU_ISOLATION_HAMI_CORE}: it and {GPU_ISOLATION_MPS} exclude each other"
        )
    pipe = pipe_directory(rules.settings.mps_folder, minor)
    env = isolation.mps_env(limits, pipe)
    if isinstance(env, str):
        return HookPlan(problem=env)
    # Under the same path as on the machine: where a runtime proxy carries no mounts, a volume of the pod does as well.
    # Server and clients meet in shared memory too.
    shared = Mount(source=rules.settings.mps_shared_memory, destination=SHARED_MEMORY)
    return HookPlan(env=env, mounts=(Mount(source=pipe, destination=pipe), shared))


PROVIDERS: Mapping[str, Provider] = {GPU_ISOLATION_HAMI_CORE: limit_by_hami, GPU_ISOLATION_MPS: limit_by_mps}


def _preload(library: str, present: str) -> str:
    """Return the libraries to preload: HAMi-core's first, then those that the container names itself."""
    others = [one for one in present.replace(":", " ").split() if one != library]
    return ":".join((library, *others))
