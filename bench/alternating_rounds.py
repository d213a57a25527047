"""Two sides of one engine in turn, so that both meet the same machine."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from typing import Protocol

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod


class Side(Protocol):
    state: ClusterState

    def took(self, infos: list[PodInfo]) -> float:
        """CPU seconds to place them; afterwards everything is as before."""


def compared(
    sides: tuple[Side, Side], names: tuple[str, str], pods: Callable[[], Iterator[Pod]], count: int, rounds: int
) -> dict[str, float]:
    """Pods a second, the best of each side, and what is kept of the first side's speed in the median round."""
    taken: list[tuple[float, float]] = []
    for _ in range(rounds):
        took = []
        for side in sides:
            infos = [side.state.pod_info(pod) for pod, _ in zip(pods(), range(count), strict=False)]
            gc.collect()
            gc.freeze()
            took.append(side.took(infos))
        taken.append((took[0], took[1]))
    best = [count / min(column) for column in zip(*taken, strict=True)]
    kept = statistics.median(100 * without / with_it for without, with_it in taken)
    return {names[0]: best[0], names[1]: best[1], "kept_percent": kept}
