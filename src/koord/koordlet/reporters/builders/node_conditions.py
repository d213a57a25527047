"""Summarise what this node's kernel supports for the enabled strategies: rows for people, conditions for the Node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koord.api.config.slo import defaults
from koord.host.cgroup import knob
from koord.host.hardware import Capability, CapabilityState
from koord.koordlet.strategies.registry import STRATEGIES

PREFIX = "koordinator.sh/"
SUPPORTED, DEGRADED, UNSUPPORTED = "Supported", "Degraded", "Unsupported"
_LONGEST = 1000  # characters of a condition's message
# On fewer CPUs a set of them for BE leaves services too few: docs/concepts/cpu-tail.md has the measurements.
FEW_CPUS = 8


class CapabilityRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row tells whether one knob works on this node, how that is known, and which strategies write it."""

    knob: str
    state: str
    how: str
    errno: str = ""
    strategies: tuple[str, ...] = ()  # that write it


class StrategyCondition(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy's condition in the Node's status: True where all files of the strategy work."""

    type: str
    status: str
    reason: str
    message: str


def capability_rows(found: Iterable[Capability]) -> list[CapabilityRow]:
    return with_strategies(
        CapabilityRow(knob=one.knob, state=one.state.value, how=one.how, errno=one.errno) for one in found
    )


def with_strategies(found: Iterable[CapabilityRow]) -> list[CapabilityRow]:
    """Return the rows, each with the strategies that write its file."""
    users: dict[str, list[str]] = {}
    for strategy in STRATEGIES:
        for file in strategy.files:
            users.setdefault(file, []).append(strategy.name)
    return [msgspec.structs.replace(one, strategies=tuple(users.get(one.knob, ()))) for one in found]


def recommended_suppress_policy(rows: Iterable[CapabilityRow], cpus: int | None = None) -> str:
    """Return a sentence about the best cpuSuppressPolicy for a node with these files; `cpus` None is not known."""
    works = {one.knob for one in rows if one.state in (CapabilityState.SUPPORTED.value, CapabilityState.DEGRADED.value)}
    if knob.CPUSET not in works:
        return f"cpuSuppressPolicy: {defaults.CFS_QUOTA} is the only one that works here, as {knob.CPUSET} does not"
    if cpus is not None and cpus < FEW_CPUS and not works.isdisjoint((knob.CPU_BVT, knob.CPU_IDLE)):
        policy = f"cpuSuppressPolicy: {defaults.CFS_QUOTA} with cpuQOS of beClass"
        return f"{policy} keeps services fastest here, as {defaults.IDLE_CPUSET} leaves them too few of {cpus} CPUs"
    if knob.CPU_BVT in works:
        return f"cpuSuppressPolicy: {defaults.IDLE_CPUSET} with cpuQOS of beClass keeps services fastest here"
    if knob.CPU_IDLE in works:
        return f"cpuSuppressPolicy: {defaults.IDLE_CPUSET} keeps services fastest here"
    needs = f"{defaults.IDLE_CPUSET} needs {knob.CPU_IDLE} or {knob.CPU_BVT}"
    return f"cpuSuppressPolicy: {defaults.CPUSET} is the best here; {needs}"


def strategy_conditions(found: Iterable[Capability], enabled: Iterable[str]) -> list[StrategyCondition]:
    """Return one condition for each enabled strategy that writes files."""
    by_knob: Mapping[str, Capability] = {one.knob: one for one in found}
    wanted = set(enabled)
    made: list[StrategyCondition] = []
    for strategy in STRATEGIES:
        if strategy.name in wanted and strategy.files:
            known = [by_knob[file] for file in strategy.files if file in by_knob]
            made.append(_condition(strategy.name, known))
    return made


def conditions_patch(wanted: Iterable[StrategyCondition], present: Iterable[Any], now: str) -> dict[str, Any] | None:
    """Return the strategic merge patch of a Node's status, or None when the status already says all of it.

    A condition keeps its lastTransitionTime for as long as its status stays the same.
    """
    there = {one.type: one for one in present}
    changed: list[dict[str, Any]] = []
    for one in wanted:
        old = there.get(one.type)
        if old is not None and (old.status, old.reason, old.message) == (one.status, one.reason, one.message):
            continue
        body = {"type": one.type, "status": one.status, "reason": one.reason, "message": one.message}
        body["lastHeartbeatTime"] = now
        if old is None or old.status != one.status:
            body["lastTransitionTime"] = now
        changed.append(body)
    return {"status": {"conditions": changed}} if changed else None


def _condition(strategy: str, files: list[Capability]) -> StrategyCondition:
    bad = [one for one in files if one.state in (CapabilityState.OFF, CapabilityState.REJECTED)]
    weak = [one for one in files if one.state is CapabilityState.DEGRADED]
    told = "; ".join(f"{one.knob}: {one.state.value}{f' ({one.errno})' if one.errno else ''}" for one in (*bad, *weak))
    if bad and len(bad) == len(files):
        status, reason = "False", UNSUPPORTED
    elif bad or weak:
        status, reason = "True", DEGRADED
    else:
        status, reason, told = "True", SUPPORTED, f"{len(files)} files work"
    return StrategyCondition(type=f"{PREFIX}{strategy}", status=status, reason=reason, message=told[:_LONGEST])
