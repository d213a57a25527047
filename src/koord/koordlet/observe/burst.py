"""What CPU burst looks at: quotas, throttling and use of latency-sensitive containers, and how busy shared CPUs are."""

from __future__ import annotations

from koord.api.qos_class import BE, LSE, LSR
from koord.koordlet.observe.scene import Scene
from koord.koordlet.plan import UNLIMITED
from koord.koordlet.series import kind
from koord.koordlet.strategies.burst import BurstView
from koord.koordlet.strategies.file import CPU_QUOTA
from koord.koordlet.strategies.share_pool import SharePool, SharePoolView, classify

NORMALIZATION = "CPUNormalization"  # the gate
_LONGEST_S = 10.0
_INTERVALS = 5


def observe_burst(scene: Scene) -> BurstView:
    """Observe quotas, throttling and usage of latency-sensitive containers, and how busy the shared CPUs are."""
    slo, node = scene.facts.slo, scene.facts.node
    strategy = None if slo is None else slo.cpu_burst_strategy
    quota_us: dict[str, int] = {}
    throttled: dict[str, float] = {}
    used_milli: dict[str, int] = {}
    for pod in scene.pods if strategy is not None else ():
        if pod.qos in (LSR, LSE, BE) or not pod.is_alive:
            continue
        groups = [one.group for one in pod.containers if one.id and one.group]
        for group in (pod.group, *groups) if groups and pod.group else ():
            quota = scene.number(group, CPU_QUOTA)
            if quota is not None:
                quota_us[group] = quota if quota > 0 else UNLIMITED
        for one in pod.containers:
            if not one.id:
                continue
            share = scene.store.latest((kind.CONTAINER_THROTTLED, one.id), scene.now_s)
            if share is not None:
                throttled[one.id] = share
            used = scene.latest_milli(kind.CONTAINER_CPU, one.id)
            if used is not None:
                used_milli[one.id] = used
    return BurstView(
        strategy=strategy,
        pool=observe_share_pool(scene),
        now_s=scene.now_s,
        pods=scene.pods,
        quota_us=quota_us,
        throttled=throttled,
        used_milli=used_milli,
        tokens=scene.tokens,
        burst_within_quota=scene.machine.shape.burst_within_quota,
        # This strategy alone writes quotas of latency-sensitive pods, so it is also the one that scales them down.
        normalization_ratio=node.normalization_ratio if node is not None and NORMALIZATION in scene.gates else 1.0,
    )


def observe_share_pool(scene: Scene) -> SharePool:
    """Observe the usage of the shared CPUs and classify it."""
    slo = scene.facts.slo
    strategy = None if slo is None else slo.cpu_burst_strategy
    if strategy is None:
        return SharePool(state="unknown", why="no NodeSLO was seen yet")
    window_s = max(min(_INTERVALS * scene.settings.collect_interval_s, _LONGEST_S), scene.settings.collect_interval_s)
    used: dict[str, int] = {}
    for pod in scene.pods:
        if pod.qos in (LSE, LSR, BE):
            milli = scene.average_milli(window_s, kind.POD_CPU, pod.uid)
            if milli is not None:
                used[pod.uid] = milli
    return classify(
        SharePoolView(
            processors=len(scene.machine.shape.processors),
            threshold_percent=strategy.share_pool_threshold_percent or 0,
            node_used_milli=scene.average_milli(window_s, kind.NODE_CPU),
            pods=scene.pods,
            pod_used_milli=used,
        )
    )
