"""Pre-allocation: choose which running pods of a node become owners of a reservation that is about to be
placed there.

Their resources are then the reservation's, so it may come to a node that has no room for it beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.policy.reservation.nomination import FULL
from koord.policy.reservation.seeker import Counts

UNSUPPORTED = "node(s) reservation pre allocation is unsupported with current attributes"
CLUSTER_MODE_OFF = "reservation requires cluster mode pre-allocation which is disabled"
NO_CANDIDATE = "node(s) no pod match reservation with pre allocation required"
NONE_FITS = "node(s) no pod(s) to meet the pre-allocation requirements"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A running pod that may become an owner. The smaller `rank` is tried first."""

    uid: str
    requests: Counts
    rank: tuple[float, str] = (0.0, "")


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    reserved: Counts
    several: bool = False  # as many pods as it takes, and not only one
    ranked: bool = False  # by their rank; else those first that fill the reservation best
    rather_none: bool = False  # no pod where the node has room without


def choose(demand: Demand, candidates: Sequence[Candidate], free: Counts) -> tuple[Candidate, ...] | None:
    """Choose the pods that become owners; `free` is unallocated. None when the reservation cannot come to the node."""
    fits_alone = fits(demand.reserved, free)
    if demand.rather_none and fits_alone:
        return ()
    within = [c for c in candidates if _concerns(demand, c) and fits(c.requests, demand.reserved, only=demand.reserved)]
    if demand.ranked:
        within.sort(key=lambda c: c.rank)
    else:
        within.sort(key=lambda c: (-score(demand.reserved, c.requests), c.uid))
    if not demand.several:
        return next(((c,) for c in within if fits(demand.reserved, _sum(free, c.requests))), () if fits_alone else None)
    chosen: list[Candidate] = []
    taken: dict[str, int] = {}
    room = dict(free)
    for candidate in within:
        if chosen and fits(demand.reserved, room):
            break
        more = _sum(taken, candidate.requests)
        if not fits(more, demand.reserved, only=demand.reserved):
            continue
        chosen.append(candidate)
        taken, room = more, _sum(room, candidate.requests)
    if fits(demand.reserved, room):
        return tuple(chosen)
    return None


def score(reserved: Counts, requests: Counts) -> int:
    """Return how much of the reservation the pod would use, averaged over what it reserves."""
    shares = [FULL * min(requests.get(name, 0), there) // there for name, there in reserved.items() if there > 0]
    return sum(shares) // len(shares) if shares else 0


def fits(wanted: Counts, room: Counts, only: Counts | None = None) -> bool:
    """Return whether the amounts fit. `only` names the resources that count."""
    names = wanted if only is None else [name for name in wanted if name in only]
    return all(wanted[name] <= room.get(name, 0) for name in names)


def _concerns(demand: Demand, candidate: Candidate) -> bool:
    return any(candidate.requests.get(name, 0) for name in demand.reserved)


def _sum(one: Counts, other: Counts) -> dict[str, int]:
    total = dict(one)
    for name, amount in other.items():
        total[name] = total.get(name, 0) + amount
    return total
