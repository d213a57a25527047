"""The CPUBurst strategy: how far latency-sensitive containers may exceed their CPU limits for a while.

There are two means: the kernel's burst buffer, and a quota that grows while a container is throttled and the shared
CPUs have room. Both are computed from the limit in the spec; the present quota only says where the next step starts.
Policies other than those known restore everything.
"""

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
    """The usage of the CPUs that no pod has exclusively: averages over the last few ticks."""

    processors: int
    threshold_percent: int
    node_used_milli: int | None
    pods: tuple[PodView, ...] = ()
    pod_used_milli: Mapping[str, int] = {}  # by uid


class SharePool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How busy the shared CPUs are."""
    state: State
    why: str


def classify(seen: SharePoolView) -> SharePool:
    """Classify the usage of the shared CPUs against the threshold."""
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
