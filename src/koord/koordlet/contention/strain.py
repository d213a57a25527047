"""The CPU side of the simulated machine: read cgroup files into the CFS tree, divide the CPUs, and measure contention.

"""

from __future__ import annotations

import math

import msgspec

from koord.koordlet.contention.parameter import DEFAULT, Parameters
from koord.koordlet.contention.routing import CPU_MILLI


class Strain(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one container suffered from others on its CPUs. Shares are from 0 to 1; factors are 1 on an idle machine."""

    short_milli: float  # wanted, within its own bounds, and not given
    stalled_share: float  # of what was wanted in all: PSI's "some" of CPU
    cpi: float
    latency_factor: float


def strain(
    *,
    wanted_milli: float,
    allowed_milli: float,
    got_milli: float,
    cpus: int,
    ahead_milli: float,
    behind_milli: float,
    parameters: Parameters = DEFAULT,
) -> Strain:
    """Compute the contention of one container.

    `allowed` is the demand within its own quota. On the `cpus` that it can use, work of its rank and above, its own
    included, is `ahead`: it queues with that. Work of lower ranks yields, but still pollutes the caches.
    """
    room = max(cpus, 1) * CPU_MILLI
    short = max(0.0, min(wanted_milli, allowed_milli) - got_milli)
    neighbours = min(max(ahead_milli - got_milli, 0.0) + behind_milli, room) / room
    cpi = parameters.cpi * (1 + parameters.cpi_of_neighbours * neighbours)
    busy = min(ahead_milli / room, parameters.busiest)
    stalled = max(0.0, wanted_milli - got_milli) / wanted_milli if wanted_milli > 0 else 0.0
    work = cpi / parameters.cpi / max(1.0 - stalled, 1.0 - parameters.busiest)
    return Strain(
        short_milli=short, stalled_share=stalled, cpi=cpi, latency_factor=work * (1 + waiting(busy, max(cpus, 1)))
    )


def waiting(busy: float, cpus: int) -> float:
    """Return the mean queueing time of `cpus` servers with that utilisation, in service times (Sakasegawa)."""
    return 0.0 if busy <= 0 else float(busy ** (math.sqrt(2 * (cpus + 1)) - 1) / (cpus * (1 - busy)))
