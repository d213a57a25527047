"""The NUMA topology manager: it merges the hints of all providers and admits a pod to NUMA nodes by policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

import msgspec

from koord.api.annotations.numa_topology_spec import REQUIRED
from koord.policy.topology.ledger import SHARED, SINGLE
from koord.values.bitmask import BitMask

# Beyond so many combinations a best-effort search is given up for its own fallback, all NUMA nodes: it is only reached
# with eight NUMA nodes, three or more resources and no set that suits them all.
MAX_COMBINATIONS = 50_000


class Hint(msgspec.Struct, frozen=True, gc=False):
    """One NUMA hint. `mask` None: any NUMA nodes will do. `unsatisfied`: none would."""

    mask: BitMask | None = None
    preferred: bool = False
    score: int = 0
    unsatisfied: bool = False


ANY = Hint(preferred=True)
NONE_WILL_DO = Hint(unsatisfied=True)

# By resource. None: no preference; an empty list: impossible.
Hints = Mapping[str, Sequence[Hint] | None]


class Zones(msgspec.Struct, frozen=True):
    """The NUMA nodes of a machine, how bound pods use them, and the exclusive policy of this pod."""

    numbers: tuple[int, ...]
    statuses: Mapping[int, str] = {}
    exclusive: str = ""

    @property
    def all(self) -> BitMask:
        return BitMask.of(*self.numbers)

    def bears(self, mask: BitMask) -> bool:
        """Return whether exclusivity admits the pod: pods of one NUMA node and pods of several do not mix."""
        if self.exclusive != REQUIRED:
            return True
        clash = SINGLE if len(mask) > 1 else SHARED
        return all(self.statuses.get(number) != clash for number in mask)


def merge_preferred(lists: Sequence[Sequence[Hint]], zones: Zones) -> Hint | None:
    """Return the best of the combinations in which every resource prefers the same NUMA nodes."""
    best: Hint | None = None
    for combined in _agreements(lists, zones.all):
        mask = combined.mask
        if mask is None or not mask.value or not zones.bears(mask):
            continue
        if best is None or _beats(combined, best):
            best = combined
    return best


def _agreements(lists: Sequence[Sequence[Hint]], everything: BitMask) -> Iterator[Hint]:
    """Yield combined hints in the order of the first list that names masks."""
    named = [[h for h in hints if h.mask is not None and h.preferred] for hints in lists]
    free = [any(h.mask is None and h.preferred and not h.unsatisfied for h in hints) for hints in lists]
    if all(free):
        yield Hint(everything, preferred=True)
    lead = next((place for place, hints in enumerate(named) if hints), None)
    if lead is None:
        return
    tables = [{h.mask: h for h in hints} for hints in named]
    for hint in named[lead]:
        mask = hint.mask
        if mask is None or mask.value & ~everything.value:
            continue  # a NUMA node that the machine lacks cannot be agreed on
        score = 0
        for place, table in enumerate(tables):
            other = hint if place == lead else table.get(mask)
            if other is not None:
                score += other.score
            elif not free[place]:
                break
        else:
            yield Hint(mask, preferred=True, score=score)


def merge_any(lists: Sequence[Sequence[Hint]], zones: Zones) -> Hint:
    """Return the best of all combinations; all NUMA nodes, not preferred, when nothing better is found."""
    everything = zones.all
    start = Hint(everything)
    agreed = merge_preferred(lists, zones)
    if agreed is not None:
        return agreed
    if prod(len(hints) for hints in lists) > MAX_COMBINATIONS:
        return start
    best = start
    for combination in product(*lists):
        value, widest = everything.value, 0
        unsatisfied = False
        for hint in combination:
            if hint.mask is not None:
                value &= hint.mask.value
                widest = max(widest, len(hint.mask))
            unsatisfied = unsatisfied or hint.unsatisfied
        if not value:
            continue
        mask = BitMask(value)
        score = sum(hint.score for hint in combination if hint.mask == mask)
        uneven = widest > 0 and widest != len(mask)
        combined = Hint(mask, score=score, unsatisfied=unsatisfied or uneven)
        if _beats(combined, best):
            best = combined
    return best


def _beats(new: Hint, best: Hint) -> bool:
    """Compare two hints that are both preferred or both not: fewer NUMA nodes win, then the higher score, then lower
    numbers.
    """
    if new.mask is None or best.mask is None:
        raise AssertionError(f"a merged hint names its NUMA nodes: {new}, {best}")
    if new.mask.is_narrower_than(best.mask):
        return True
    return len(new.mask) == len(best.mask) and new.score > best.score


def summary(resource: str, hints: Sequence[Hint]) -> str:
    """Describe the preferred and the possible sets of NUMA nodes for a refusal."""
    masks = [(str(hint.mask), hint.preferred) for hint in hints if hint.mask is not None]
    liked = " ".join(text for text, preferred in masks if preferred)
    return f"{resource} prefer [{liked}] among [{' '.join(text for text, _ in masks)}]"
