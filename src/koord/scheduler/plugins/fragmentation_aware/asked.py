"""This module counts the pods of the cluster by what they request, to know which pods to expect.

The CPU and GPU shape of a pod, and where it may run, are all that fragmentation depends on.
"""

from __future__ import annotations

from koord.api import device as wire
from koord.api.resource_name import CPU, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.policy.device.fragmentation import CARD_MILLI, Shape
from koord.policy.device.inventory import WHOLE
from koord.policy.device.request import GpuNeed, asks_for_devices, gpu_need, normalised
from koord.scheduler.plugins.node_selector import required_of
from koord.scheduler.state import shape as state_shape
from koord.scheduler.state.wire import signature

NAME = "FragmentationAware"
_MEMORY_OF_A_CARD = 16 << 30  # for pods that ask for bytes, before any card is known


def shape_of(spec: state_shape.Shape) -> Shape:
    """Return the CPU and GPU shape of a pod template.

    `gpu_spec` stands for its node selector and required node affinity; it is empty without them.
    """
    known = spec.memo.get(NAME)
    if known is None:
        known = spec.memo[NAME] = _shape(_need(spec), spec.requests.get(CPU, 0), _where(spec))
    found: Shape = known
    return found


def _where(spec: state_shape.Shape) -> str:
    selector, affinity = spec.spec.node_selector, required_of(spec.spec)
    return signature((selector, affinity)).hex() if selector or affinity is not None else ""


def _need(spec: state_shape.Shape) -> GpuNeed | None:
    asked = asks_for_devices(spec.requests)
    found = normalised(dict(asked)) if asked else None
    return gpu_need(found[wire.GPU]) if isinstance(found, dict) and wire.GPU in found else None


def _shape(need: GpuNeed | None, cpu_milli: int, where: str) -> Shape:
    if need is None:
        return Shape(cpu_milli, 0, 0, where)
    ratio = need.each.get(GPU_MEMORY_RATIO)
    if ratio is None:
        ratio = min(need.each.get(GPU_MEMORY, 0) * WHOLE // _MEMORY_OF_A_CARD, WHOLE)
    return Shape(cpu_milli, max(ratio, 1) * CARD_MILLI // WHOLE, need.count, where)
