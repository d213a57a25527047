"""Training values for the models from what was measured, and the question of what prod pods will not need."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.api.qos_class import NONE, PRIORITY_CLASSES, PROD
from koord.api.resource_name import CPU, MEMORY
from koord.koordlet.pod import PodView
from koord.koordlet.report.model import NODE, SYSTEM, Models, class_model
from koord.koordlet.series import kind
from koord.koordlet.series.store import Key, Store
from koord.policy.prediction.reclaimable import (
    COLD_START_S,
    MARGIN_PERCENT,
    Amount,
    ProdPod,
    ReclaimableView,
)

WINDOW_S = 60.0
SHARE = 0.9
_CLASSES = (*PRIORITY_CLASSES, NONE)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The safety margin and the cold start time of predictions."""
    margin_percent: int = MARGIN_PERCENT
    cold_start_s: float = COLD_START_S


def samples(store: Store, now_s: float, pods: Iterable[PodView]) -> dict[str, tuple[float, float]]:
    """Return what each model learns now: cores and bytes, the 90th percentile of the last minute.

    What was not measured is not learned: neither a pod, nor the system while the node is unknown.
    """
    found: dict[str, tuple[float, float]] = {}
    classes = dict.fromkeys(_CLASSES, (0.0, 0.0))
    everything = (0.0, 0.0)
    for pod in pods:
        used = _used(store, now_s, (kind.POD_CPU, pod.uid), (kind.POD_MEMORY, pod.uid))
        if used is not None:
            found[pod.uid] = used
            classes[pod.priority_class] = _plus(classes[pod.priority_class], used)
            everything = _plus(everything, used)
    found |= {class_model(name): used for name, used in classes.items()}
    node = _used(store, now_s, (kind.NODE_CPU,), (kind.NODE_MEMORY,))
    if node is not None:
        found[NODE] = node
        found[SYSTEM] = (max(0.0, node[0] - everything[0]), max(0.0, node[1] - everything[1]))
    return found


def subjects(pods: Iterable[PodView]) -> frozenset[str]:
    """Return the uids for which models may exist."""
    return frozenset({NODE, SYSTEM, *(class_model(name) for name in _CLASSES), *(pod.uid for pod in pods)})


def reclaimable_view(
    models: Models, now_s: float, pods: Iterable[PodView], allocatable: Amount | None, limits: Limits
) -> ReclaimableView:
    """Build the view of the reclaimable decision. `allocatable` is the one before amplification."""
    return ReclaimableView(
        allocatable=allocatable,
        pods=tuple(
            ProdPod(
                uid=pod.uid,
                request=Amount(pod.requests.get(CPU, 0), pod.requests.get(MEMORY, 0)),
                age_s=now_s - pod.created_s,
                ending=pod.terminating or not pod.is_alive,
                peak=models.peak(pod.uid),
            )
            for pod in pods
            if pod.priority_class in (PROD, NONE)
        ),
        prod_peak=models.peak(class_model(PROD)),
        unclassed_peak=models.peak(class_model(NONE)),
        system_peak=models.peak(SYSTEM),
        margin_percent=limits.margin_percent,
        cold_start_s=limits.cold_start_s,
    )


def _used(store: Store, now_s: float, cpu: Key, memory: Key) -> tuple[float, float] | None:
    cores = store.window(cpu, now_s, WINDOW_S).percentile(SHARE)
    held = store.window(memory, now_s, WINDOW_S).percentile(SHARE)
    return None if cores is None or held is None else (cores, held)


def _plus(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]
