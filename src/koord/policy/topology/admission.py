"""The NUMA topology manager: from the hints of all providers to the NUMA nodes a pod is admitted to, by policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from koord.api.annotations.numa_topology_spec import BEST_EFFORT, NONE, REQUIRED, RESTRICTED, SINGLE_NUMA_NODE
from koord.policy.topology.hint import ANY, NONE_WILL_DO, Hint, Hints, Zones, merge_any, merge_preferred, summary
from koord.policy.topology.ledger import Ledger
from koord.policy.topology.node import NodeTopology
from koord.policy.topology.refusal import NUMA_POLICY_MISMATCH, Short, unaligned, unsatisfied_numa
from koord.values.bitmask import BitMask


class Affinity(msgspec.Struct, frozen=True):
    """The NUMA nodes a pod is admitted to. With `mask` None no NUMA amounts are written."""

    mask: BitMask | None = None


# Hints of one provider for sets of at most so many NUMA nodes.
Provider: TypeAlias = Callable[[int], Hints | Short]


def resolve_policy(node_policy: str, pod_policy: str) -> str | Short:
    """Return the stated policy; the node's and the pod's must agree when both are stated."""
    if node_policy and pod_policy and node_policy != pod_policy:
        return Short.finally_(NUMA_POLICY_MISMATCH)
    return node_policy or pod_policy


def resolve_exclusive(pod_policy: str, exclusive: str) -> str:
    """Return the exclusive policy: a pod with a NUMA policy of its own does not mix unless it says so."""
    return REQUIRED if pod_policy and not exclusive else exclusive


def zones_for(node: NodeTopology, ledger: Ledger, exclusive: str) -> Zones:
    numbers = node.zone_numbers
    return Zones(numbers, {number: ledger.status(number) for number in numbers}, exclusive)


def admit(policy: str, zones: Zones, providers: Sequence[Provider]) -> Affinity | Short:
    """Admit the pod, asking for single NUMA nodes first.

    A set that all providers prefer cannot be beaten by a wider one, so mostly that is all that has to be
    examined.
    """
    widest = len(zones.numbers)
    for width in sorted({1, widest}):
        gathered = gather(providers, width)
        if isinstance(gathered, Short):
            if width == widest:
                return gathered
            continue
        if width < widest:
            narrow = _liked(policy, gathered, zones)
            if narrow is not None:
                return narrow
        else:
            return decide(policy, zones, gathered)
    return Affinity()


def gather(providers: Sequence[Provider], width: int) -> list[Hints] | Short:
    """Collect the hints of all providers, so that every reason is reported."""
    found: list[Hints] = []
    reasons: list[str] = []
    for provider in providers:
        hints = provider(width)
        if isinstance(hints, Short):
            reasons.extend(hints.reasons)
        else:
            found.append(hints)
    return Short(tuple(reasons)) if reasons else found


def decide(policy: str, zones: Zones, given: Sequence[Hints]) -> Affinity | Short:
    """Decide by the hints of all providers over every set of NUMA nodes."""
    if policy == NONE:
        return Affinity()
    lists, reasons = _lists(given)
    if policy == BEST_EFFORT:
        best = merge_any(lists, zones)
        return Affinity(zones.all if best.unsatisfied else best.mask)
    if reasons:
        return Short(tuple(reasons))
    if policy == RESTRICTED:
        chosen = merge_preferred(lists, zones)
        return Short.of(unaligned(" & ".join(_told(given)))) if chosen is None else Affinity(chosen.mask)
    if policy == SINGLE_NUMA_NODE:
        chosen = merge_preferred(_single(lists), zones)
        if chosen is None:
            return Short.of(unaligned(",".join(_told(given))))
        return Affinity(None if chosen.mask == zones.all else chosen.mask)
    raise ValueError(f"NUMA topology policy {policy} is not supported")


def _liked(policy: str, given: Sequence[Hints], zones: Zones) -> Affinity | None:
    """Return a single NUMA node that all providers prefer, when some resource has a preference."""
    lists, reasons = _lists(given)
    if policy == NONE or reasons:
        return None
    chosen = merge_preferred(lists, zones)
    if chosen is None or chosen.mask is None or len(chosen.mask) != 1:
        return None
    return Affinity(chosen.mask)


def _lists(given: Sequence[Hints]) -> tuple[list[Sequence[Hint]], list[str]]:
    """Return one list of hints for each resource, and the reasons of those that cannot be satisfied."""
    lists: list[Sequence[Hint]] = []
    reasons: list[str] = []
    for hints in given:
        if not hints:
            lists.append((ANY,))
        for resource, offered in _sorted(hints):
            if offered is None:
                lists.append((ANY,))
            elif not offered:
                lists.append((NONE_WILL_DO,))
                reasons.append(unsatisfied_numa(resource))
            else:
                lists.append(offered)
    return lists, reasons


def _told(given: Sequence[Hints]) -> list[str]:
    """Describe what each resource would have preferred, for a refusal."""
    return sorted(summary(resource, offered) for hints in given for resource, offered in hints.items() if offered)


def _single(lists: Sequence[Sequence[Hint]]) -> list[Sequence[Hint]]:
    return [[h for h in hints if h.preferred and (h.mask is None or len(h.mask) == 1)] for hints in lists]


def _sorted(hints: Mapping[str, Sequence[Hint] | None]) -> list[tuple[str, Sequence[Hint] | None]]:
    return sorted(hints.items())
