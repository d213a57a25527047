"""The groups of a machine as its CPU scheduler sees them: a tree with weights, bounds, CPU sets and ranks."""

from __future__ import annotations

from collections.abc import Iterator

DEFAULT_WEIGHT = 1024.0
UNBOUNDED = float("inf")


class Group:
    """One cgroup. Weight is cpu.shares; a bound is what a quota comes to in milli-cores.

    `mask` holds CPUs as bits. None is what the parent has. A rank that is None is the parent's.
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
        """Take it and all below out of the tree."""
        if self.parent is not None:
            del self.parent.children[self.name]
            self.parent = None

    def walk(self) -> Iterator[Group]:
        """Parents before children, in the order in which they came."""
        yield self
        for child in self.children.values():
            yield from child.walk()
