"""The NUMA topology manager: it merges the hints of all providers and admits a pod to NUMA nodes by policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import TypeAlias

import msgspec

from koord.api.annotations import cpu_codecs
from koord.scheduler.framework.reservation import NumaTopologyHint, NumaTopologyHints
from koord.scheduler.plugins.node_numa_resource.ledger import SHARED, SINGLE, NumaLedger
from koord.scheduler.plugins.node_numa_resource.refusal import (
    NUMA_POLICY_MISMATCH,
    NumaRefusal,
    unaligned_hints,
    unsatisfied_numa,
)
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from koord.values.bitmask import BitMask

# Beyond so many combinations a best-effort search is given up for its own fallback, all NUMA nodes: it is only reached
# with eight NUMA nodes, three or more resources and no set that suits them all.
MAX_COMBINATIONS = 50_000


NO_PREFERENCE = NumaTopologyHint(preferred=True)
UNSATISFIABLE = NumaTopologyHint(unsatisfied=True)


class NumaZones(msgspec.Struct, frozen=True):
    """The NUMA nodes of a machine, how bound pods use them, and the exclusive policy of this pod."""

    numbers: tuple[int, ...]
    statuses: Mapping[int, str] = {}
    exclusive: str = ""

    @property
    def all_zones(self) -> BitMask:
        return BitMask.of(*self.numbers)

    def allows(self, mask: BitMask) -> bool:
        """Return whether exclusivity admits the pod: pods of one NUMA node and pods of several do not mix."""
        if self.exclusive != cpu_codecs.NUMA_EXCLUSIVE_REQUIRED:
            return True
        clash = SINGLE if len(mask) > 1 else SHARED
        return all(self.statuses.get(number) != clash for number in mask)


def merge_preferred(lists: Sequence[Sequence[NumaTopologyHint]], zones: NumaZones) -> NumaTopologyHint | None:
    """Return the best of the combinations in which every resource prefers the same NUMA nodes."""
    best: NumaTopologyHint | None = None
    for combined in _common_hints(lists, zones.all_zones):
        mask = combined.mask
        if mask is None or not mask.value or not zones.allows(mask):
            continue
        if best is None or _is_better(combined, best):
            best = combined
    return best


def _common_hints(lists: Sequence[Sequence[NumaTopologyHint]], everything: BitMask) -> Iterator[NumaTopologyHint]:
    """Yield combined hints in the order of the first list that names masks."""
    named = [[h for h in hints if h.mask is not None and h.preferred] for hints in lists]
    free = [any(h.mask is None and h.preferred and not h.unsatisfied for h in hints) for hints in lists]
    if all(free):
        yield NumaTopologyHint(everything, preferred=True)
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
            yield NumaTopologyHint(mask, preferred=True, score=score)


def merge_best_effort(lists: Sequence[Sequence[NumaTopologyHint]], zones: NumaZones) -> NumaTopologyHint:
    """Return the best of all combinations; all NUMA nodes, not preferred, when nothing better is found."""
    everything = zones.all_zones
    start = NumaTopologyHint(everything)
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
        combined = NumaTopologyHint(mask, score=score, unsatisfied=unsatisfied or uneven)
        if _is_better(combined, best):
            best = combined
    return best


def _is_better(new: NumaTopologyHint, best: NumaTopologyHint) -> bool:
    """Compare hints that are both preferred or both not: fewer NUMA nodes, the higher score, lower numbers."""
    if new.mask is None or best.mask is None:
        raise AssertionError(f"a merged hint names its NUMA nodes: {new}, {best}")
    if new.mask.is_narrower_than(best.mask):
        return True
    return len(new.mask) == len(best.mask) and new.score > best.score


def hint_summary(resource: str, hints: Sequence[NumaTopologyHint]) -> str:
    """Describe the preferred and the possible sets of NUMA nodes for a refusal."""
    masks = [(str(hint.mask), hint.preferred) for hint in hints if hint.mask is not None]
    liked = " ".join(text for text, preferred in masks if preferred)
    return f"{resource} prefer [{liked}] among [{' '.join(text for text, _ in masks)}]"


class NumaAffinity(msgspec.Struct, frozen=True):
    """The NUMA nodes a pod is admitted to. With `mask` None no NUMA amounts are written."""

    mask: BitMask | None = None


# Hints of one provider for sets of at most so many NUMA nodes.
HintProvider: TypeAlias = Callable[[int], NumaTopologyHints | NumaRefusal]


def resolve_numa_policy(node_policy: str, pod_policy: str) -> str | NumaRefusal:
    """Return the stated policy; the node's and the pod's must agree when both are stated."""
    if node_policy and pod_policy and node_policy != pod_policy:
        return NumaRefusal.unresolvable(NUMA_POLICY_MISMATCH)
    return node_policy or pod_policy


def resolve_exclusive_policy(pod_policy: str, exclusive: str) -> str:
    """Return the exclusive policy: a pod with a NUMA policy of its own does not mix unless it says so."""
    return cpu_codecs.NUMA_EXCLUSIVE_REQUIRED if pod_policy and not exclusive else exclusive


def numa_zones_of(node: TopologyOptions, ledger: NumaLedger, exclusive: str) -> NumaZones:
    numbers = node.zone_numbers
    return NumaZones(numbers, {number: ledger.zone_status(number) for number in numbers}, exclusive)


def admit_pod(policy: str, zones: NumaZones, providers: Sequence[HintProvider]) -> NumaAffinity | NumaRefusal:
    """Admit the pod, asking for single NUMA nodes first.

    A set that all providers prefer cannot be beaten by a wider one, so mostly that is all that has to be
    examined.
    """
    widest = len(zones.numbers)
    for width in sorted({1, widest}):
        gathered = collect_hints(providers, width)
        if isinstance(gathered, NumaRefusal):
            if width == widest:
                return gathered
            continue
        if width < widest:
            narrow = _preferred_single_zone(policy, gathered, zones)
            if narrow is not None:
                return narrow
        else:
            return decide_affinity(policy, zones, gathered)
    return NumaAffinity()


def collect_hints(providers: Sequence[HintProvider], width: int) -> list[NumaTopologyHints] | NumaRefusal:
    """Collect the hints of all providers, so that every reason is reported."""
    found: list[NumaTopologyHints] = []
    reasons: list[str] = []
    for provider in providers:
        hints = provider(width)
        if isinstance(hints, NumaRefusal):
            reasons.extend(hints.reasons)
        else:
            found.append(hints)
    return NumaRefusal(tuple(reasons)) if reasons else found


def decide_affinity(policy: str, zones: NumaZones, given: Sequence[NumaTopologyHints]) -> NumaAffinity | NumaRefusal:
    """Decide by the hints of all providers over every set of NUMA nodes."""
    if policy == cpu_codecs.NUMA_POLICY_NONE:
        return NumaAffinity()
    lists, reasons = _hint_lists(given)
    if policy == cpu_codecs.NUMA_POLICY_BEST_EFFORT:
        best = merge_best_effort(lists, zones)
        return NumaAffinity(zones.all_zones if best.unsatisfied else best.mask)
    if reasons:
        return NumaRefusal(tuple(reasons))
    if policy == cpu_codecs.NUMA_POLICY_RESTRICTED:
        chosen = merge_preferred(lists, zones)
        return (
            NumaRefusal.unschedulable(unaligned_hints(" & ".join(_hint_summaries(given))))
            if chosen is None
            else NumaAffinity(chosen.mask)
        )
    if policy == cpu_codecs.NUMA_POLICY_SINGLE_NUMA_NODE:
        chosen = merge_preferred(_single_zone_hints(lists), zones)
        if chosen is None:
            return NumaRefusal.unschedulable(unaligned_hints(",".join(_hint_summaries(given))))
        return NumaAffinity(None if chosen.mask == zones.all_zones else chosen.mask)
    raise ValueError(f"NUMA topology policy {policy} is not supported")


def _preferred_single_zone(policy: str, given: Sequence[NumaTopologyHints], zones: NumaZones) -> NumaAffinity | None:
    """Return a single NUMA node that all providers prefer, when some resource has a preference."""
    lists, reasons = _hint_lists(given)
    if policy == cpu_codecs.NUMA_POLICY_NONE or reasons:
        return None
    chosen = merge_preferred(lists, zones)
    if chosen is None or chosen.mask is None or len(chosen.mask) != 1:
        return None
    return NumaAffinity(chosen.mask)


def _hint_lists(given: Sequence[NumaTopologyHints]) -> tuple[list[Sequence[NumaTopologyHint]], list[str]]:
    """Return one list of hints for each resource, and the reasons of those that cannot be satisfied."""
    lists: list[Sequence[NumaTopologyHint]] = []
    reasons: list[str] = []
    for hints in given:
        if not hints:
            lists.append((NO_PREFERENCE,))
        for resource, offered in sorted(hints.items()):
            if offered is None:
                lists.append((NO_PREFERENCE,))
            elif not offered:
                lists.append((UNSATISFIABLE,))
                reasons.append(unsatisfied_numa(resource))
            else:
                lists.append(offered)
    return lists, reasons


def _hint_summaries(given: Sequence[NumaTopologyHints]) -> list[str]:
    """Describe what each resource would have preferred, for a refusal."""
    return sorted(hint_summary(resource, offered) for hints in given for resource, offered in hints.items() if offered)


def _single_zone_hints(lists: Sequence[Sequence[NumaTopologyHint]]) -> list[Sequence[NumaTopologyHint]]:
    return [[h for h in hints if h.preferred and (h.mask is None or len(h.mask) == 1)] for hints in lists]
