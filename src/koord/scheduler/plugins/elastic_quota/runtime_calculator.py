"""Compute the runtime quota of siblings for one resource: guarantees first, then the rest by weight, to the last unit.

A guarantee is the larger of min and what is already guaranteed to running pods. A sibling that requests less than its
guarantee lends the difference, unless it may not lend. When all mins together exceed the total, they are scaled in
proportion. Arithmetic is exact; where upstream takes a float for the scaled min, integers keep the sum in bounds.
"""

from __future__ import annotations

from collections.abc import Iterable

UNKNOWN_SHARE = 1 << 200


def scaled_min(total: int, own: int, scalable: int, fixed: int = 0) -> int:
    """Return a min after scaling; `scalable` and `fixed` are the sums of the mins that scale and of the others."""
    if total >= scalable + fixed:
        return own
    available = total - fixed
    return available * own // scalable if available > 0 and scalable > 0 else 0


class SiblingClaim:
    """One sibling's claim on the resource. `request` is already cut to its max. It is only changed through its pool."""

    __slots__ = ("floor", "guaranteed", "lends", "min", "name", "pool", "request", "want", "weight")

    def __init__(
        self, name: str, *, min: int = 0, weight: int = 0, request: int = 0, lends: bool = True, guaranteed: int = 0
    ) -> None:
        self.name = name
        self.min = min
        self.weight = weight
        self.request = request
        self.lends = lends
        self.guaranteed = guaranteed
        self.pool: SiblingPool
        self.floor = 0  # before any sharing
        self.want = 0  # when there is enough for all
        self._recompute()

    def _recompute(self) -> None:
        promised = max(self.min, self.guaranteed)
        self.floor = guaranteed_floor(self.request, promised, self.lends)
        self.want = max(self.floor, self.request) if self.weight > 0 else self.floor

    def update(self, *, request: int | None = None, guaranteed: int | None = None) -> None:
        pool, asked = self.pool, self.request
        pool.floor -= self.floor
        pool.want -= self.want
        if request is not None:
            self.request = request
        if guaranteed is not None:
            self.guaranteed = guaranteed
        self._recompute()
        pool.floor += self.floor
        pool.want += self.want
        # A sibling that gets less than it requests gets the same whatever it requests beyond that; so do the others.
        if guaranteed is not None or pool.last_share(self) >= min(asked, self.request):
            pool.invalidate()


def guaranteed_floor(request: int, promised: int, lends: bool) -> int:
    return request if lends and request < promised else promised


class SiblingPool:
    """The claims of all siblings. While there is plenty, or nothing to share, an answer takes constant time."""

    __slots__ = ("_last_division", "claims", "floor", "mins", "scales", "total", "want")

    def __init__(self, claims: Iterable[SiblingClaim] = (), *, scales: bool = True) -> None:
        self.claims = sorted(claims, key=lambda claim: claim.name)
        self.scales = scales
        for claim in self.claims:
            claim.pool = self
        self.floor = sum(claim.floor for claim in self.claims)
        self.want = sum(claim.want for claim in self.claims)
        self.mins = sum(claim.min for claim in self.claims)
        self.total = 0
        self._last_division: dict[str, int] | None = None

    def invalidate(self) -> None:
        self._last_division = None

    def runtime(self, claim: SiblingClaim, total: int) -> int:
        if self.want <= total:
            return claim.want
        if total <= self.floor and not self.must_scale_mins(total):
            return claim.floor
        if self._last_division is None or self.total != total:
            self.total = total
            self._last_division = self._divide_scaled(total) if self.must_scale_mins(total) else self._divide(total)
        return self._last_division.get(claim.name, claim.floor)

    def last_share(self, claim: SiblingClaim) -> int:
        """Return what the last division gave; without one, more than anybody requests."""
        return self._last_division.get(claim.name, UNKNOWN_SHARE) if self._last_division is not None else UNKNOWN_SHARE

    def must_scale_mins(self, total: int) -> bool:
        """Return whether mins have to be scaled."""
        return self.scales and total < self.mins

    def scaled_min_of(self, claim: SiblingClaim, total: int) -> int:
        return scaled_min(total, claim.min, self.mins) if self.scales else claim.min

    def _divide(self, total: int) -> dict[str, int]:
        """Divide among those who share in what is left; all others keep their floor."""
        contenders = [claim for claim in self.claims if claim.want > claim.floor]
        split = {claim.name: claim.floor for claim in contenders}
        _share_by_weight(total - self.floor, contenders, split)
        return split

    def _divide_scaled(self, total: int) -> dict[str, int]:
        """Divide among all, with scaled mins."""
        split: dict[str, int] = {}
        contenders: list[SiblingClaim] = []
        left = total
        for claim in self.claims:
            promised = max(scaled_min(total, claim.min, self.mins), claim.guaranteed)
            split[claim.name] = got = guaranteed_floor(claim.request, promised, claim.lends)
            left -= got
            if claim.request > got and claim.weight > 0:
                contenders.append(claim)
        _share_by_weight(left, contenders, split)
        return split


def _share_by_weight(rest: int, contenders: list[SiblingClaim], split: dict[str, int]) -> None:
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
        still: list[SiblingClaim] = []
        for claim, part in zip(contenders, whole, strict=True):
            got = split[claim.name] + part
            if got >= claim.request:
                rest += got - claim.request
                got = claim.request
            else:
                still.append(claim)
            split[claim.name] = got
        contenders = still
