"""The TimeSlice strategy: threads of idle BE pods have the longest slice that the kernel takes, while the CPU
suppression policy is idleCpuset.

A service's thread that wakes up where BE runs is compared with it where their groups meet: the BestEffort group, which
is not idle, against the service's. Among groups like that the kernel lets whoever runs finish its slice, unless the one
that wakes up has a shorter slice. So it is the length of BE's slices that makes BE give way at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.config.slo.defaults import IDLE_CPUSET
from koord.api.koordinator.protocol import BE
from koord.koordlet.cgroup_writer.effects import SetTimeSlice
from koord.koordlet.strategies import group_identity
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan

OWNER = "TimeSlice"
CAUSE = "TimeSliceOfBE"
PERIOD_S = 2.0
DEFAULT = 0  # gives a thread the scheduler's own slice again
# The kernel takes 100 ms. A little less, so that it is known whose it is when it is taken back.
LONG_NS = 99_000_000


class TimeSliceView(msgspec.Struct, frozen=True, kw_only=True):
    """The slices of threads in the BE root, by thread; those of `yielding` are threads of pods that give way."""

    wanted: bool | None = None  # None until a NodeSLO was seen
    default_ns: int = 0  # of threads without a setting; 0 where the kernel has no slices to set
    yielding: Mapping[int, int] = {}
    others: Mapping[int, int] = {}


def decide_time_slice(view: TimeSliceView) -> StrategyPlan:
    if view.wanted is None:
        return StrategyPlan(why="no NodeSLO was seen yet")
    if not view.default_ns:
        return StrategyPlan(why="this kernel has no time slices to set (6.12 has)")
    why = f"cpuSuppressPolicy is {'' if view.wanted else 'not '}{IDLE_CPUSET}"
    short = [thread for thread, ns in view.yielding.items() if ns == view.default_ns] if view.wanted else []
    ours = [thread for thread, ns in view.others.items() if ns == LONG_NS]
    ours += [] if view.wanted else [thread for thread, ns in view.yielding.items() if ns == LONG_NS]
    effects = [
        SetTimeSlice(tasks=tuple(sorted(threads)), slice_ns=slice_ns, owner=OWNER, cause=CAUSE, why=why)
        for threads, slice_ns in ((short, LONG_NS), (ours, DEFAULT))
        if threads
    ]
    # Threads are looked at until all that had a long slice have the scheduler's own again.
    return StrategyPlan(effects=tuple(effects), why=why, state=view.wanted or bool(effects))


def depends_on(inputs: StrategyInputs) -> tuple[object, ...]:
    return (inputs.pods, inputs.slo)


def observe_time_slice(inputs: StrategyInputs) -> TimeSliceView:
    """Observe the slices of all threads in the BE root, also those of unknown pods."""
    machine, threshold = inputs.machine, inputs.threshold
    default_ns = machine.shape.time_slice_ns
    if not default_ns or inputs.slo is None:
        return TimeSliceView(wanted=None if inputs.slo is None else False, default_ns=default_ns)
    suppressed = bool(inputs.threshold_enabled) and "BECPUSuppress" in inputs.gates
    wanted = suppressed and threshold.cpu_suppress_policy == IDLE_CPUSET and group_identity.be_yields(inputs)
    if not wanted and inputs.states.get(OWNER) is False:
        return TimeSliceView(wanted=False, default_ns=default_ns)
    above = {pod.group for pod in inputs.pods if pod.qos not in ("", BE)}
    yielding: dict[int, int] = {}
    others: dict[int, int] = {}
    for pod in machine.child_groups(machine.shape.besteffort):
        found = others if pod in above else yielding
        for container in machine.child_groups(pod):
            found.update(machine.time_slices(container))
    return TimeSliceView(wanted=wanted, default_ns=default_ns, yielding=yielding, others=others)
