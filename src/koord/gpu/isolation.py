"""A share of a card, and the limits that its providers enforce: HAMi-core by a preloaded library, MPS by the driver.

Both read their limits from the environment of a process, so a process that changes its environment before it uses the
card changes its limits: they keep honest tenants apart.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.device_codecs import AllocatedDevice, parse_device_allocated
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, GPU_ISOLATION_HAMI_CORE, GPU_ISOLATION_MPS
from koord.api.koordinator.resource_name import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.values.quantity import Quantity

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
HAMI_MEMORY, HAMI_CORES = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"
HAMI_CACHE, HAMI_POLICY = "CUDA_DEVICE_MEMORY_SHARED_CACHE", "GPU_CORE_UTILIZATION_POLICY"
PRELOAD = "LD_PRELOAD"
MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
MPS_MEMORY, MPS_CORES = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

GPU = "gpu"
WHOLE_CARD = 100
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MEBI = 1 << 20

Env = tuple[tuple[str, str], ...]


class GpuLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a process on a card: memory in bytes, cores in percent; None is no limit.

    `provider` is who enforces them, "" where nobody does.
    """

    provider: str = ""
    memory_bytes: int | None = None
    core_percent: int | None = None

    @property
    def is_share(self) -> bool:
        return self.memory_bytes is not None or self.core_percent is not None


NO_LIMITS = GpuLimits()


def share_of(card: AllocatedDevice, provider: str) -> GpuLimits | str:
    """Return the limits of a card that the scheduler allocated; none for a whole card. Text says what is missing."""
    amounts = {name: Quantity.parse(text).value() for name, text in card.resources.items()}
    if GPU_MEMORY_RATIO not in amounts:
        return f"{A_DEVICE_ALLOCATED}: GPU {card.minor} has no {GPU_MEMORY_RATIO}, which {provider} needs"
    if amounts[GPU_MEMORY_RATIO] >= WHOLE_CARD:
        return NO_LIMITS
    if amounts.get(GPU_MEMORY, 0) <= 0:  # the providers take 0 for no limit
        return f"{A_DEVICE_ALLOCATED}: GPU {card.minor} has no {GPU_MEMORY}, which {provider} needs"
    return GpuLimits(provider=provider, memory_bytes=amounts[GPU_MEMORY], core_percent=amounts.get(GPU_CORE))


def allocated_share(annotation: str) -> GpuLimits | str:
    """Return the limits in the value of the device-allocated annotation, of its first card, as providers take it."""
    found = parse_device_allocated({A_DEVICE_ALLOCATED: annotation})
    if isinstance(found, MalformedAnnotation):
        return str(found)
    cards = (found or {}).get(GPU, ())
    return share_of(cards[0], "a share") if cards else NO_LIMITS


def hami_env(limits: GpuLimits) -> Env:
    """Return HAMi-core's limits. Cores of 0 are left out as upstream does: the library takes them for no limit."""
    env: list[tuple[str, str]] = []
    if limits.memory_bytes is not None:
        env.append((HAMI_MEMORY, str(limits.memory_bytes)))
    if limits.core_percent is not None:
        env.append((HAMI_CORES, str(limits.core_percent)))
    return tuple(env)


def mps_env(limits: GpuLimits, pipe_directory: str) -> Env | str:
    """Return the limits of an MPS client; text says why there are none.

    Its daemon serves one card, so that the card is device 0 there whatever its minor is. Memory is in whole MiB, which
    the driver rounds no further.
    """
    env = [(MPS_PIPE, pipe_directory)]
    if limits.memory_bytes is not None:
        if limits.memory_bytes < _MEBI:
            return f"{limits.memory_bytes} bytes of GPU memory are less than {GPU_ISOLATION_MPS} can limit"
        env.append((MPS_MEMORY, f"0={limits.memory_bytes // _MEBI}M"))
    if limits.core_percent is not None:
        if not 0 < limits.core_percent <= WHOLE_CARD:
            return f"{limits.core_percent} % of the cores are no share that {GPU_ISOLATION_MPS} can limit"
        env.append((MPS_CORES, str(limits.core_percent)))
    return tuple(env)


def pipe_directory(folder: str, minor: int) -> str:
    """Return where the daemon of a card meets its clients; all daemons lie in one folder."""
    return f"{folder}/{minor}/pipe"


def limits_in(environment: Mapping[str, str]) -> GpuLimits:
    """Return the limits that a process has by its environment, on its first card."""
    if any(environment.get(name) for name in (MPS_MEMORY, MPS_CORES)):
        return GpuLimits(
            provider=GPU_ISOLATION_MPS,
            memory_bytes=_mps_memory(environment.get(MPS_MEMORY, "")),
            core_percent=_percent(environment.get(MPS_CORES, "")),
        )
    memory = environment.get(f"{HAMI_MEMORY}_0") or environment.get(HAMI_MEMORY, "")
    cores = environment.get(f"{HAMI_CORES}_0") or environment.get(HAMI_CORES, "")
    if not memory and not cores:
        return NO_LIMITS
    return GpuLimits(provider=GPU_ISOLATION_HAMI_CORE, memory_bytes=_size(memory) or None, core_percent=_percent(cores))


def without_limits(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without any provider's limits, as a process that wants none would make it."""
    names = (HAMI_MEMORY, HAMI_CORES, HAMI_CACHE, HAMI_POLICY, PRELOAD, MPS_MEMORY, MPS_CORES)
    numbered = (f"{HAMI_MEMORY}_", f"{HAMI_CORES}_")
    return {key: text for key, text in environment.items() if key not in names and not key.startswith(numbered)}


def _mps_memory(text: str) -> int | None:
    """Return the limit of device 0 in a list such as 0=1G,1=512M; a list of others limits nothing here."""
    for entry in text.split(","):
        device, _, size = entry.partition("=")
        if device.strip() == "0":
            return _size(size.strip()) or None
    return None


def _size(text: str) -> int:
    """Return bytes of a number with the suffix k, m or g; 0 where it is no number. A leading 0 is octal, as in C."""
    factor = _SUFFIXES.get(text[-1:].lower(), 1)
    number = text[:-1] if factor > 1 else text
    try:
        octal = len(number) > 1 and number.startswith("0") and number.isdecimal()
        return factor * int(number, 8 if octal else 0)
    except ValueError:
        return 0


def _percent(text: str) -> int | None:
    try:
        found = int(float(text))
    except ValueError:
        return None
    return found if 0 < found < WHOLE_CARD else None
