"""GPUs grouped by NUMA node and PCIe switch: the tree in which a pod's cards are kept close together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.annotations.device_codecs import DEVICE_TOPOLOGY_SCOPES

NODE = DEVICE_TOPOLOGY_SCOPES["Node"]
NUMA_NODE = DEVICE_TOPOLOGY_SCOPES["NUMANode"]
PCIE = DEVICE_TOPOLOGY_SCOPES["PCIe"]


class GpuTreeNode(msgspec.Struct, frozen=True):
    level: int
    minors: tuple[int, ...]
    mask: int
    children: tuple[GpuTreeNode, ...] = ()


class GpuLocation(msgspec.Struct, frozen=True):
    minor: int
    numa: int | None  # None: unknown
    pcie: str


def build_gpu_tree(places: Iterable[GpuLocation]) -> GpuTreeNode:
    """Build the GPU tree. Children are ordered by id; an unknown NUMA node comes first."""
    zones: dict[int, dict[str, list[int]]] = {}
    for place in places:
        zone = -1 if place.numa is None else place.numa
        zones.setdefault(zone, {}).setdefault(place.pcie, []).append(place.minor)
    children = tuple(
        _tree_node(NUMA_NODE, tuple(_tree_node(PCIE, (), switches[pcie]) for pcie in sorted(switches)))
        for _, switches in sorted(zones.items())
    )
    return _tree_node(NODE, children)


def _tree_node(level: int, children: tuple[GpuTreeNode, ...], minors: Iterable[int] = ()) -> GpuTreeNode:
    found = sorted(minors) if not children else sorted(m for child in children for m in child.minors)
    mask = 0
    for minor in found:
        mask |= 1 << minor
    return GpuTreeNode(level, tuple(found), mask, children)


class GpuSearchResult(msgspec.Struct, frozen=True):
    minors: tuple[int, ...]
    depth: int
    used_scopes: int  # scopes on the way down that hold used cards: fuller ones are preferred
    score: int


class GpuSearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A search for GPUs. `fitting`: the cards that could each serve one instance with scores, 0 for whole cards."""

    count: int
    fitting: Mapping[int, int]
    used: int  # mask of the cards in use
    required: int = 0  # the level at which the cards must still be together
    included: int = 0  # mask of the cards that must be among them


def search_gpu_tree(scope: GpuTreeNode, sought: GpuSearchQuery) -> GpuSearchResult | None:
    """Find GPUs: the deepest subtree wins, then the one whose surroundings are used most, then the best score."""
    return _search(scope, sought, 0, 0)


def _search(scope: GpuTreeNode, sought: GpuSearchQuery, depth: int, not_empty: int) -> GpuSearchResult | None:
    if len(scope.minors) < sought.count or sought.included & ~scope.mask:
        return None
    depth += 1
    if scope.mask & sought.used:
        not_empty += 1
    best: GpuSearchResult | None = None
    for child in scope.children:
        found = _search(child, sought, depth, not_empty)
        if found is not None and (best is None or _rank(found) > _rank(best)):
            best = found
    if best is not None or sought.required > scope.level:
        return best
    fitting = sought.fitting
    here = [minor for minor in scope.minors if minor in fitting]
    if sought.included:
        bound = [minor for minor in scope.minors if sought.included >> minor & 1]
        if len(bound) > sought.count or any(minor not in fitting for minor in bound):
            return None
        here = bound + [minor for minor in here if minor not in bound]
    if len(here) < sought.count:
        return None
    if sought.count == 1:
        chosen = here[0] if sought.included else max(here, key=lambda minor: (fitting[minor], -minor))
        return GpuSearchResult((chosen,), depth, not_empty, fitting[chosen])
    return GpuSearchResult(tuple(sorted(here[: sought.count])), depth, not_empty, 0)


def _rank(found: GpuSearchResult) -> tuple[int, int, int]:
    return found.depth, found.used_scopes, found.score


def largest_fitting_group(scope: GpuTreeNode, fitting: Mapping[int, int], level: int) -> int:
    """Return the largest number of fitting cards that one group of the level holds."""
    if scope.level >= level:
        return sum(minor in fitting for minor in scope.minors)
    return max((largest_fitting_group(child, fitting, level) for child in scope.children), default=0)
