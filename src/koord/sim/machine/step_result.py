"""The result of one step of a simulated machine, and its recording as the samples that collectors would have taken."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesStore
from koord.sim.machine.cpu_contention import DEFAULT_PARAMETERS, ContentionParameters, CpuContention
from koord.sim.machine.memory import OomKill


class ContainerDemand(msgspec.Struct, frozen=True, gc=False):
    """ContainerDemand is what a container would use alone on the machine. `burstiness`: see `throttled_share`.

    `cache_pressure` is how many more busy neighbours each CPU that it uses is like to the caches of others.
    """

    cpu_milli: float
    memory_bytes: int
    cache_bytes: int = 0
    burstiness: float = 1.0
    cache_pressure: float = 0.0


class ContainerOutcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """ContainerOutcome is what one container got in a step, and what it suffered."""

    pod: str  # uid
    wanted_milli: float
    got_milli: float
    throttled_share: float
    memory_bytes: int
    cache_bytes: int
    memory_stalled: float
    contention: CpuContention


class MachineStepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step; `at_s` is its end, `outcomes` are by container id."""

    at_s: float
    step_s: float
    outcomes: Mapping[str, ContainerOutcome]
    system_milli: float
    system_bytes: int
    be_used_milli: float
    be_limit_milli: float  # what BE groups may use in all
    be_request_milli: int
    kills: tuple[OomKill, ...] = ()

    @property
    def used_milli(self) -> float:
        return self.system_milli + sum(fare.got_milli for fare in self.outcomes.values())

    @property
    def used_bytes(self) -> int:
        """Return the used memory without page cache."""
        return self.system_bytes + sum(fare.memory_bytes for fare in self.outcomes.values())

    def short_milli(self, pods: frozenset[str]) -> float:
        """Return the CPU that the containers of these pods lacked although their own quotas would have allowed it."""
        return sum(fare.contention.short_milli for fare in self.outcomes.values() if fare.pod in pods)


def record_samples(store: SeriesStore, moment: MachineStepResult) -> None:
    """Record the samples that every agent takes all the time."""
    at_s, add = moment.at_s, store.add
    cores: dict[str, float] = {}
    held: dict[str, int] = {}
    cached: dict[str, int] = {}
    throttled: dict[str, float] = {}
    for container, fare in moment.outcomes.items():
        pod = fare.pod
        cores[pod] = cores.get(pod, 0.0) + fare.got_milli / 1000
        held[pod] = held.get(pod, 0) + fare.memory_bytes
        cached[pod] = cached.get(pod, 0) + fare.cache_bytes
        throttled[pod] = max(throttled.get(pod, 0.0), fare.throttled_share)
        add((metric_kind.CONTAINER_CPU, container), at_s, fare.got_milli / 1000)
        add((metric_kind.CONTAINER_MEMORY, container), at_s, fare.memory_bytes)
        add((metric_kind.CONTAINER_THROTTLED, container), at_s, fare.throttled_share)
    for pod, used in cores.items():
        add((metric_kind.POD_CPU, pod), at_s, used)
        add((metric_kind.POD_MEMORY, pod), at_s, held[pod])
        add((metric_kind.POD_MEMORY_WITH_PAGE_CACHE, pod), at_s, held[pod] + cached[pod])
        add((metric_kind.POD_THROTTLED, pod), at_s, throttled[pod])
    node_bytes = moment.system_bytes + sum(held.values())
    add((metric_kind.NODE_CPU,), at_s, moment.system_milli / 1000 + sum(cores.values()))
    add((metric_kind.NODE_MEMORY,), at_s, node_bytes)
    add((metric_kind.NODE_MEMORY_WITH_PAGE_CACHE,), at_s, node_bytes + sum(cached.values()))
    add((metric_kind.SYSTEM_CPU,), at_s, moment.system_milli / 1000)
    add((metric_kind.SYSTEM_MEMORY,), at_s, moment.system_bytes)
    add((metric_kind.NODE_BE, metric_kind.BE_USAGE), at_s, moment.be_used_milli)
    add((metric_kind.NODE_BE, metric_kind.BE_REAL_LIMIT), at_s, moment.be_limit_milli)
    add((metric_kind.NODE_BE, metric_kind.BE_REQUEST), at_s, moment.be_request_milli)


def record_performance(
    store: SeriesStore, moment: MachineStepResult, parameters: ContentionParameters = DEFAULT_PARAMETERS
) -> None:
    """Record the optional samples of performance: PSI, cycles and instructions."""
    pods: dict[str, tuple[float, float]] = {}
    for container, fare in moment.outcomes.items():
        cpu, memory = pods.get(fare.pod, (0.0, 0.0))
        pods[fare.pod] = (max(cpu, fare.contention.stalled_share), max(memory, fare.memory_stalled))
        _pressure(
            store, metric_kind.CONTAINER_PSI, container, moment.at_s, fare.contention.stalled_share, fare.memory_stalled
        )
        cycles = fare.got_milli * moment.step_s * parameters.cycles_per_milli_s
        store.add((metric_kind.CONTAINER_CPI, container, "cycle"), moment.at_s, cycles)
        store.add((metric_kind.CONTAINER_CPI, container, "instruction"), moment.at_s, cycles / fare.contention.cpi)
    for pod, (cpu, memory) in pods.items():
        _pressure(store, metric_kind.POD_PSI, pod, moment.at_s, cpu, memory)


def worst_latency_factor(outcomes: Mapping[str, ContainerOutcome], pods: frozenset[str]) -> float:
    """Return the largest latency factor among the containers of these pods; 1 when there are none."""
    return max((fare.contention.latency_factor for fare in outcomes.values() if fare.pod in pods), default=1.0)


def _pressure(store: SeriesStore, series: str, subject: str, at_s: float, cpu: float, memory: float) -> None:
    """Record PSI; `some` equals `full`, as each simulated container is a single program."""
    for name, share in (("cpu", cpu), ("mem", memory)):
        for degree in ("some", "full"):
            store.add((series, subject, name, "10", degree), at_s, 100 * share)
