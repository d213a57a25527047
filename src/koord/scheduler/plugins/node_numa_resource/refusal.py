"""Reasons for refusing CPU and NUMA allocations, in Koordinator's wording."""

from __future__ import annotations

import msgspec

NOT_ENOUGH_CPUS = "not enough cpus available to satisfy request"
CPUS_NOT_WHOLE = "the requested CPUs must be integer"
INVALID_CPU_TOPOLOGY = "node(s) invalid CPU Topology"
NOT_WHOLE_CORES = "node(s) requested cpus not multiple cpus per core"
BIND_POLICY_CONFLICT = "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
INVALID_RATIO = "node(s) invalid CPU amplification ratio"
INSUFFICIENT_AMPLIFIED_CPU = "Insufficient amplified cpu"
NO_NUMA_ON_MASK = "insufficient resources on NUMA Node"
MISSING_NUMA = "node(s) missing NUMA resources"
INSUFFICIENT_NUMA_NODE = "node(s) Insufficient NUMA Node resources"
NUMA_POLICY_MISMATCH = "node(s) NUMA Topology policy not match"

_RESERVATION_PREFIX = "Reservation(s) "


class NumaRefusal(msgspec.Struct, frozen=True):
    """The reasons why nothing was allocated. `is_unresolvable`: preemption would not help on this node."""

    reasons: tuple[str, ...]
    is_unresolvable: bool = False

    @staticmethod
    def unschedulable(*reasons: str) -> NumaRefusal:
        return NumaRefusal(reasons)

    @staticmethod
    def unresolvable(*reasons: str) -> NumaRefusal:
        return NumaRefusal(reasons, is_unresolvable=True)

    def for_reservations(self) -> NumaRefusal:
        """Return the same refusal, worded about reservations rather than the node."""
        return NumaRefusal(tuple(_RESERVATION_PREFIX + reason for reason in self.reasons))

    def __str__(self) -> str:
        return ", ".join(self.reasons)


def insufficient_numa(resource: str) -> str:
    return f"Insufficient NUMA {resource}"


def unsatisfied_numa(resource: str) -> str:
    return f"Unsatisfied NUMA {resource}"


def unaligned_hints(summary: str) -> str:
    return f"Unaligned NUMA Hint cause {summary}"


def policy_not_met(policy: str) -> str:
    return f"insufficient CPUs to satisfy required cpu bind policy {policy}"
