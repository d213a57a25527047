"""Pre-allocation: choose which running pods of a node become owners of a reservation that is about to be
placed there.

Their resources are then the reservation's, so it may come to a node that has no room for it beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.scheduler.plugins.reservation.nomination import MAX_RESERVATION_SCORE
from koord.values.amounts import Counts, add_amounts

UNSUPPORTED = "node(s) reservation pre allocation is unsupported with current attributes"
CLUSTER_MODE_OFF = "reservation requires cluster mode pre-allocation which is disabled"
NO_CANDIDATE = "node(s) no pod match reservation with pre allocation required"
NONE_FITS = "node(s) no pod(s) to meet the pre-allocation requirements"


class PreAllocationCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A running pod that may become an owner. The smaller `rank` is tried first."""

    uid: str
    requests: Counts
    rank: tuple[float, str] = (0.0, "")


class PreAllocationRequest(msgspec.Struct, frozen=True, kw_only=True):
    reserved: Counts
    allows_multiple: bool = False  # as many pods as it takes, and not only one
    ranked: bool = False  # by their rank; else those first that fill the reservation best
    prefers_free_capacity: bool = False  # no pod where the node has room without


def choose_pre_allocated(
    demand: PreAllocationRequest, candidates: Sequence[PreAllocationCandidate], free: Counts
) -> tuple[PreAllocationCandidate, ...] | None:
    """Choose the pods that become owners; `free` is unallocated. None when the reservation cannot come to the node."""
    fits_alone = fits_amounts(demand.reserved, free)
    if demand.prefers_free_capacity and fits_alone:
        return ()
    within = [
        c
        for c in candidates
        if _is_relevant(demand, c) and fits_amounts(c.requests, demand.reserved, only=demand.reserved)
    ]
    if demand.ranked:
        within.sort(key=lambda c: c.rank)
    else:
        within.sort(key=lambda c: (-score_pre_allocation(demand.reserved, c.requests), c.uid))
    if not demand.allows_multiple:
        return next(
            ((c,) for c in within if fits_amounts(demand.reserved, add_amounts(free, c.requests))),
            () if fits_alone else None,
        )
    chosen: list[PreAllocationCandidate] = []
    taken: dict[str, int] = {}
    room = dict(free)
    for candidate in within:
        if chosen and fits_amounts(demand.reserved, room):
            break
        more = add_amounts(taken, candidate.requests)
        if not fits_amounts(more, demand.reserved, only=demand.reserved):
            continue
        chosen.append(candidate)
        taken, room = more, add_amounts(room, candidate.requests)
    if fits_amounts(demand.reserved, room):
        return tuple(chosen)
    return None


def score_pre_allocation(reserved: Counts, requests: Counts) -> int:
    """Return how much of the reservation the pod would use, averaged over what it reserves."""
    shares = [
        MAX_RESERVATION_SCORE * min(requests.get(name, 0), there) // there
        for name, there in reserved.items()
        if there > 0
    ]
    return sum(shares) // len(shares) if shares else 0


def fits_amounts(wanted: Counts, room: Counts, only: Counts | None = None) -> bool:
    """Return whether the amounts fit. `only` names the resources that count."""
    names = wanted if only is None else [name for name in wanted if name in only]
    return all(wanted[name] <= room.get(name, 0) for name in names)


def _is_relevant(demand: PreAllocationRequest, candidate: PreAllocationCandidate) -> bool:
    return any(candidate.requests.get(name, 0) for name in demand.reserved)
