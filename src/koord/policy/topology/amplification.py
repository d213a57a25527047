"""What one node offers to CPU binding and NUMA placement, read from its NodeResourceTopology and its own
metadata; with the arithmetic of resource amplification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from koord.values.resources import CPU

# The ratio is a float and is multiplied as one: 3000 at 1.1 is 3301 on the wire, and must be here.


def amplify(amount: int, ratio: float | None) -> int:
    """Multiply and round up; a ratio of 1 or less changes nothing."""
    if ratio is None or ratio <= 1:
        return amount
    return math.ceil(amount * ratio)


def amplify_all(amounts: Mapping[str, int], ratios: Mapping[str, float]) -> dict[str, int]:
    return {name: amplify(amount, ratios.get(name)) for name, amount in amounts.items()}


def amplify_cpu(amounts: Mapping[str, int], ratio: float | None) -> Mapping[str, int]:
    """Amplify the cpu amount of a pod with bound CPUs: its CPUs are physical, so each counts for `ratio`."""
    cpu = amounts.get(CPU, 0)
    return amounts if ratio is None or ratio <= 1 or not cpu else {**amounts, CPU: amplify(cpu, ratio)}
