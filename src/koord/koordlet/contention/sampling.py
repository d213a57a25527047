"""A step of a simulated machine as the samples that collectors would have taken of a real one."""

from __future__ import annotations

from collections.abc import Mapping

from koord.koordlet.contention.moment import Fare, Moment
from koord.koordlet.contention.parameter import DEFAULT, Parameters
from koord.koordlet.series import kind
from koord.koordlet.series.store import Store


def record(store: Store, moment: Moment) -> None:
    """Record the samples that every agent takes all the time."""
    at_s, add = moment.at_s, store.add
    cores: dict[str, float] = {}
    held: dict[str, int] = {}
    cached: dict[str, int] = {}
    throttled: dict[str, float] = {}
    for container, fare in moment.fares.items():
        pod = fare.pod
        cores[pod] = cores.get(pod, 0.0) + fare.got_milli / 1000
        held[pod] = held.get(pod, 0) + fare.memory_bytes
        cached[pod] = cached.get(pod, 0) + fare.cache_bytes
        throttled[pod] = max(throttled.get(pod, 0.0), fare.throttled_share)
        add((kind.CONTAINER_CPU, container), at_s, fare.got_milli / 1000)
        add((kind.CONTAINER_MEMORY, container), at_s, fare.memory_bytes)
        add((kind.CONTAINER_THROTTLED, container), at_s, fare.throttled_share)
    for pod, used in cores.items():
        add((kind.POD_CPU, pod), at_s, used)
        add((kind.POD_MEMORY, pod), at_s, held[pod])
        add((kind.POD_MEMORY_WITH_PAGE_CACHE, pod), at_s, held[pod] + cached[pod])
        add((kind.POD_THROTTLED, pod), at_s, throttled[pod])
    node_bytes = moment.system_bytes + sum(held.values())
    add((kind.NODE_CPU,), at_s, moment.system_milli / 1000 + sum(cores.values()))
    add((kind.NODE_MEMORY,), at_s, node_bytes)
    add((kind.NODE_MEMORY_WITH_PAGE_CACHE,), at_s, node_bytes + sum(cached.values()))
    add((kind.SYSTEM_CPU,), at_s, moment.system_milli / 1000)
    add((kind.SYSTEM_MEMORY,), at_s, moment.system_bytes)
    add((kind.NODE_BE, kind.BE_USAGE), at_s, moment.be_used_milli)
    add((kind.NODE_BE, kind.BE_REAL_LIMIT), at_s, moment.be_limit_milli)
    add((kind.NODE_BE, kind.BE_REQUEST), at_s, moment.be_request_milli)


def record_performance(store: Store, moment: Moment, parameters: Parameters = DEFAULT) -> None:
    """Record the optional samples of performance: PSI, cycles and instructions."""
    pods: dict[str, tuple[float, float]] = {}
    for container, fare in moment.fares.items():
        cpu, memory = pods.get(fare.pod, (0.0, 0.0))
        pods[fare.pod] = (max(cpu, fare.strain.stalled_share), max(memory, fare.memory_stalled))
        _pressure(store, kind.CONTAINER_PSI, container, moment.at_s, fare.strain.stalled_share, fare.memory_stalled)
        cycles = fare.got_milli * moment.step_s * parameters.cycles_per_milli_s
        store.add((kind.CONTAINER_CPI, container, "cycle"), moment.at_s, cycles)
        store.add((kind.CONTAINER_CPI, container, "instruction"), moment.at_s, cycles / fare.strain.cpi)
    for pod, (cpu, memory) in pods.items():
        _pressure(store, kind.POD_PSI, pod, moment.at_s, cpu, memory)


def slowest(fares: Mapping[str, Fare], pods: frozenset[str]) -> float:
    """Return the largest latency factor among the containers of these pods; 1 when there are none."""
    return max((fare.strain.latency_factor for fare in fares.values() if fare.pod in pods), default=1.0)


def _pressure(store: Store, series: str, subject: str, at_s: float, cpu: float, memory: float) -> None:
    """Record PSI; `some` equals `full`, as each simulated container is a single program."""
    for name, share in (("cpu", cpu), ("mem", memory)):
        for degree in ("some", "full"):
            store.add((series, subject, name, "10", degree), at_s, 100 * share)
