"""GPU requests in the one form that the scheduler places: percent of core and memory, and the number of cards."""

from __future__ import annotations

from koord.api.resource_name import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED
from koord.manager.webhooks.draft import Obj, owned, part
from koord.values.quantity import Quantity

_CARD = 100  # percent
_FAMILY = frozenset({GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED})


def with_device_shapes(obj: Obj) -> Obj:
    """Normalize GPU requests to percent of core and memory, and the number of cards.

    Normal containers only, as upstream; an init container's GPU request stays as it is.
    """
    containers = part(obj, "spec").get("containers") or []
    shaped = [_shaped(container) for container in containers]
    if any(new is not old for new, old in zip(shaped, containers, strict=True)):
        owned(obj, "spec")["containers"] = shaped
    return obj


def _shaped(container: Obj) -> Obj:
    resources = part(container, "resources")
    requests, limits = part(resources, "requests"), part(resources, "limits")
    if _FAMILY.isdisjoint(requests) and _FAMILY.isdisjoint(limits):
        return container
    if GPU not in requests and GPU_SHARED in requests:
        return container
    requests, limits = dict(requests), dict(limits)
    if GPU in requests:
        percent = str(Quantity.parse(requests[GPU]))
        for side in (requests, limits):
            side.pop(GPU, None)
            side[GPU_CORE] = side[GPU_MEMORY_RATIO] = percent
    if GPU_SHARED not in requests:
        requests[GPU_SHARED] = limits[GPU_SHARED] = str(_cards(requests))
    return {**container, "resources": {**resources, "requests": requests, "limits": limits}}


def _cards(requests: Obj) -> int:
    """Return whole cards when the share is a multiple of one; the memory share is read before the core share."""
    name = GPU_MEMORY_RATIO if GPU_MEMORY_RATIO in requests else GPU_CORE
    percent = Quantity.parse(requests.get(name, 0)).value()
    return percent // _CARD if percent > _CARD and percent % _CARD == 0 else 1
