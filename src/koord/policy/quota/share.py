"""Compute the runtime quota of siblings for one resource: guarantees first, then the rest by weight, to the
last unit.

A guarantee is the larger of min and what is already guaranteed to running pods. A sibling that requests
less than its guarantee lends the difference, unless it may not lend. When all mins together exceed the
total, they are scaled in proportion. Arithmetic is exact; where upstream takes a float for the scaled
min, integers keep the sum in bounds.
"""

from __future__ import annotations

from collections.abc import Iterable

NEVER_LESS = 1 << 200


def scaled_min(total: int, own: int, scalable: int, fixed: int = 0) -> int:
    """Return a min after scaling; `scalable` and `fixed` are the sums of the mins that scale and of those that do not.

    """
    if total >= scalable + fixed:
        return own
    available = total - fixed
    return available * own // scalable if available > 0 and scalable > 0 else 0


class Claim:
    """One sibling's claim on the resource. `request` is already cut to its max. It is only changed through its pool."""

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
        pool, asked = self.pool, self.request
        pool.base -= self.base
        pool.want -= self.want
        if request is not None:
            self.request = request
        if guaranteed is not None:
            self.guaranteed = guaranteed
        self._settle()
        pool.base += self.base
        pool.want += self.want
        # A sibling that gets less than it requests gets the same whatever it requests beyond that; so do the others.
        if guaranteed is not None or pool.last_of(self) >= min(asked, self.request):
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
            self._split = self._divided_short(total) if self.is_short(total) else self._divided(total)
        return self._split.get(claim.name, claim.base)

    def last_of(self, claim: Claim) -> int:
        """Return what the last division gave; without one, more than anybody requests."""
        return self._split.get(claim.name, NEVER_LESS) if self._split is not None else NEVER_LESS

    def is_short(self, total: int) -> bool:
        """Return whether mins have to be scaled."""
        return self.scales and total < self.mins

    def min_of(self, claim: Claim, total: int) -> int:
        return scaled_min(total, claim.min, self.mins) if self.scales else claim.min

    def _divided(self, total: int) -> dict[str, int]:
        """Divide among those who share in what is left; all others keep their floor."""
        contenders = [claim for claim in self.claims if claim.want > claim.base]
        split = {claim.name: claim.base for claim in contenders}
        _share(total - self.base, contenders, split)
        return split

    def _divided_short(self, total: int) -> dict[str, int]:
        """Divide among all, with scaled mins."""
        split: dict[str, int] = {}
        contenders: list[Claim] = []
        left = total
        for claim in self.claims:
            promised = max(scaled_min(total, claim.min, self.mins), claim.guaranteed)
            split[claim.name] = got = floor_of(claim.request, promised, claim.lends)
            left -= got
            if claim.request > got and claim.weight > 0:
                contenders.append(claim)
        _share(left, contenders, split)
        return split


def _share(rest: int, contenders: list[Claim], split: dict[str, int]) -> None:
    """Share by weight with largest remainders (ties by name); what a sibling cannot use is shared again."""
    while rest > 0 and contenders:
        weights = sum(claim.weight for claim in contenders)
        whole = [claim.weight * rest // weights for claim in contenders]
        residual = rest - sum(whole)
        if residual:
            left = [claim.weight * rest % weights for claim in contenders]
            # Sorting keeps equals in their order, which is that of the names.
            for i in sorted(range(len(left)), key=left.__getitem__, reverse=True)[:residual]:
                whole[i] += 1
        rest = 0
        still: list[Claim] = []
        for claim, part in zip(contenders, whole, strict=True):
            got = split[claim.name] + part
            if got >= claim.request:
                rest += got - claim.request
                got = claim.request
            else:
                still.append(claim)
            split[claim.name] = got
        contenders = still
