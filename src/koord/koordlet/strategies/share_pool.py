"""How busy the CPUs are that no pod has for itself: whether latency-sensitive containers may run past their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from koord.api.qos_class import BE, LSE, LSR
from koord.api.resource_name import CPU
from koord.koordlet.pod import PodView

State = Literal["idle", "cooling", "overload", "unknown"]
COOLING_SHARE = 0.9  # of the threshold; in between, nothing grows


class SharePoolView(msgspec.Struct, frozen=True, kw_only=True):
    """Averages over the last few ticks."""

    processors: int
    threshold_percent: int
    node_used_milli: int | None
    pods: tuple[PodView, ...] = ()
    pod_used_milli: Mapping[str, int] = {}  # by uid


class SharePool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    state: State
    why: str


def classify(seen: SharePoolView) -> SharePool:
    if seen.node_used_milli is None or seen.processors <= 0:
        return SharePool(state="unknown", why="the node's CPU use is not known")
    own = sum(pod.requests.get(CPU, 0) for pod in seen.pods if pod.qos in (LSE, LSR) and pod.is_alive)
    elsewhere = sum(seen.pod_used_milli.get(pod.uid, 0) for pod in seen.pods if pod.qos in (LSE, LSR, BE))
    total, used = seen.processors * 1000 - own, seen.node_used_milli - elsewhere
    ratio = used / total if total > 0 else 1.0
    threshold = seen.threshold_percent / 100
    state: State = "overload" if ratio >= threshold else "cooling" if ratio >= COOLING_SHARE * threshold else "idle"
    why = f"shared CPUs are {state}: {used}m of {total}m used, threshold {seen.threshold_percent}%"
    return SharePool(state=state, why=why)
