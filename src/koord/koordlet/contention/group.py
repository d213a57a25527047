"""The CFS model: groups with weights, quotas, cpusets and ranks, and how they divide the CPUs.

Every group's share rises in proportion to its weight until its demand is met, its quota is used or its CPUs are full;
what one leaves, the others of its group share. Higher ranks are served before lower ones. A burst buffer saves unused
quota for later periods; its content lives from step to step with the caller.
"""

from __future__ import annotations

from collections.abc import Iterator

DEFAULT_WEIGHT = 1024.0
UNBOUNDED = float("inf")


class Group:
    """One cgroup in the CFS tree. Weight is cpu.shares; a bound is a quota in milli-cores.

    `mask` holds CPUs as bits; None is the parent's. A rank that is None is the parent's.
    """

    __slots__ = ("bound_milli", "children", "mask", "name", "parent", "rank", "weight")

    def __init__(
        self,
        name: str,
        parent: Group | None = None,
        *,
        weight: float = DEFAULT_WEIGHT,
        bound_milli: float = UNBOUNDED,
        mask: int | None = None,
        rank: int | None = None,
    ) -> None:
        self.name = name
        self.parent = parent
        self.children: dict[str, Group] = {}
        self.weight = weight
        self.bound_milli = bound_milli
        self.mask = mask
        self.rank = rank
        if parent is not None:
            parent.children[name] = self

    def cut(self) -> None:
        """Remove the group and all below it from the tree."""
        if self.parent is not None:
            del self.parent.children[self.name]
            self.parent = None

    def walk(self) -> Iterator[Group]:
        """Yield the group and all below it, parents before children, in the order in which they were added."""
        yield self
        for child in self.children.values():
            yield from child.walk()
