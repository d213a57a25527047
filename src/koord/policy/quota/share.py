"""What each of several siblings gets of one resource: guarantees first, then the rest by weight, to the last unit.

A guarantee is the larger of min and what is already guaranteed to running pods. A sibling that asks for less than its
guarantee lends the difference, unless it may not lend. When all mins together are more than there is, they shrink in
proportion. Arithmetic is exact; where upstream takes a float for the shrunk min, whole numbers keep the sum in bounds.
"""

from __future__ import annotations

from collections.abc import Iterable


def scaled_min(total: int, own: int, scalable: int, fixed: int = 0) -> int:
    """A min after shrinking: `scalable` and `fixed` are the sums of the mins that shrink and of those that do not."""
    if total >= scalable + fixed:
        return own
    available = total - fixed
    return available * own // scalable if available > 0 and scalable > 0 else 0


class Claim:
    """One sibling's claim on the resource. `request` is already cut to its max. Changed through its pool only."""

    __slots__ = ("base", "guaranteed", "lends", "min", "name", "pool", "request", "want", "weight")

    def __init__(
        self, name: str, *, min: int = 0, weight: int = 0, request: int = 0, lends: bool = True, guaranteed: int = 0
    ) -> None:
        self.name = name
        self.min = min
        self.weight = weight
        self.request = request
        self.lends = lends
        self.guaranteed = guaranteed
        self.pool: Pool
        self.base = 0  # before any sharing
        self.want = 0  # when there is enough for all
        self._settle()

    def _settle(self) -> None:
        promised = max(self.min, self.guaranteed)
        self.base = floor_of(self.request, promised, self.lends)
        self.want = max(self.base, self.request) if self.weight > 0 else self.base

    def update(self, *, request: int | None = None, guaranteed: int | None = None) -> None:
        pool = self.pool
        pool.base -= self.base
        pool.want -= self.want
        if request is not None:
            self.request = request
        if guaranteed is not None:
            self.guaranteed = guaranteed
        self._settle()
        pool.base += self.base
        pool.want += self.want
        pool.forget()


def floor_of(request: int, promised: int, lends: bool) -> int:
    return request if lends and request < promised else promised


class Pool:
    """The claims of all siblings. While there is plenty, or nothing to share, an answer takes constant time."""

    __slots__ = ("_split", "base", "claims", "mins", "scales", "total", "want")

    def __init__(self, claims: Iterable[Claim] = (), *, scales: bool = True) -> None:
        self.claims = sorted(claims, key=lambda claim: claim.name)
        self.scales = scales
        for claim in self.claims:
            claim.pool = self
        self.base = sum(claim.base for claim in self.claims)
        self.want = sum(claim.want for claim in self.claims)
        self.mins = sum(claim.min for claim in self.claims)
        self.total = 0
        self._split: dict[str, int] | None = None

    def forget(self) -> None:
        self._split = None

    def runtime(self, claim: Claim, total: int) -> int:
        if self.want <= total:
            return claim.want
        if total <= self.base and not self.is_short(total):
            return claim.base
        if self._split is None or self.total != total:
            self.total = total
            self._split = self._divided(total)
        return self._split[claim.name]

    def is_short(self, total: int) -> bool:
        """Whether mins have to shrink."""
        return self.scales and total < self.mins

    def min_of(self, claim: Claim, total: int) -> int:
        return scaled_min(total, claim.min, self.mins) if self.scales else claim.min

    def _divided(self, total: int) -> dict[str, int]:
        short = self.is_short(total)
        split: dict[str, int] = {}
        contenders: list[Claim] = []
        left = total
        for claim in self.claims:
            least = scaled_min(total, claim.min, self.mins) if short else claim.min
            promised = max(least, claim.guaranteed)
            split[claim.name] = got = floor_of(claim.request, promised, claim.lends)
            left -= got
            if claim.request > promised and claim.weight > 0:
                contenders.append(claim)
        if left > 0:
            _share(left, contenders, split)
        return split


def _share(rest: int, contenders: list[Claim], split: dict[str, int]) -> None:
    """By weight with largest remainders (ties by name); what somebody cannot use goes round again."""
    while rest > 0 and contenders:
        weights = sum(claim.weight for claim in contenders)
        parts = [divmod(claim.weight * rest, weights) for claim in contenders]
        residual = rest - sum(part for part, _ in parts)
        extra: set[int] = set()
        if residual:
            extra = set(sorted(range(len(parts)), key=lambda i: (-parts[i][1], i))[:residual])
        rest = 0
        still: list[Claim] = []
        for i, claim in enumerate(contenders):
            got = split[claim.name] + parts[i][0] + (i in extra)
            if got >= claim.request:
                rest += got - claim.request
                got = claim.request
            else:
                still.append(claim)
            split[claim.name] = got
        contenders = still
