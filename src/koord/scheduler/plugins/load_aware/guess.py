"""PodEstimator estimates what a pod will use, and for how long after its start the estimate overrides
measurements.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

import msgspec

from koord.api import pod as api_pod
from koord.api.annotations.load_estimation import (
    scaling_factors,
    seconds_after_initialized,
    seconds_after_scheduled,
)
from koord.api.config.scheduler.load_aware import LoadAwareSchedulingArgs
from koord.api.pod_qos import qos_class
from koord.api.pod_resources import pod_limits
from koord.api.protocol import A_LOAD_ESTIMATED_SCALING_FACTORS, L_PRIORITY_CLASS, L_QOS_CLASS
from koord.api.qos_class import BURSTABLE, PROD
from koord.api.resource_name import CPU, MEMORY
from koord.policy.load.axes import Axes, Vector
from koord.policy.load.estimator import estimate_pod
from koord.policy.qos.classes import priority_class_with_default
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.shape import Shape
from koord.scheduler.state.wire import PodSpec


class Guess(msgspec.Struct, frozen=True):
    usage: Vector
    prod: bool  # of the prod class, stated or implied
    whole: (
        Vector | None
    )  # what counts of a pod that nothing is reported of; None for one that is guessed to use nothing

    deltas: Vector  # the same as an account adds it up: for the node, then for prod

    @staticmethod
    def of(usage: Vector, *, prod: bool) -> Guess:
        whole = tuple([max(amount, 0) for amount in usage]) if any(usage) else None
        return Guess(usage, prod, whole, (whole or ()) * (1 + prod))


class Guesses:
    """Estimates pods, once per template, labels and (where they count) annotations."""

    def __init__(self, args: LoadAwareSchedulingArgs, axes: Axes) -> None:
        self._axes = axes
        self._factors = args.estimated_scaling_factors
        self._custom = args.allow_customize_estimation
        self._after_scheduled = args.estimated_seconds_after_pod_scheduled
        self._after_initialized = args.estimated_seconds_after_initialized
        self.holds = self._custom or bool(self._after_scheduled or self._after_initialized)
        # Profiles with other arguments guess otherwise of the same shape.
        self._memo = f"LoadAwareScheduling {axes.names} {sorted(self._factors.items())} {self._custom}"

    def signature(self, pod: PodInfo) -> Hashable:
        """Return what is read of a pod beyond its template, here and by the filter."""
        labels = pod.labels
        own = pod.annotations.get(A_LOAD_ESTIMATED_SCALING_FACTORS) if self._custom else None
        return labels.get(L_PRIORITY_CLASS), labels.get(L_QOS_CLASS), pod.daemon, own

    def of(self, pod: PodInfo) -> Guess:
        memo: dict[Hashable, Guess] | None = pod.shape.memo.get(self._memo)
        if memo is None:
            memo = pod.shape.memo[self._memo] = {}
        key = self.signature(pod)
        known = memo.get(key)
        if known is None:
            known = memo[key] = self._work_out(pod)
        return known

    def _work_out(self, pod: PodInfo) -> Guess:
        shape = pod.shape
        spec = cast(api_pod.PodSpec, shape.spec)  # only attributes are read that the slim spec has too
        tier = priority_class_with_default(pod.labels, shape.spec.priority, _kube_qos(shape))
        limits = pod_limits(spec) if _is_limited(shape.spec) else {}
        factors = self._factors
        if self._custom:
            factors = {**factors, **scaling_factors(pod.annotations)}
        return Guess.of(estimate_pod(tier, shape.requests, limits, factors, self._axes), prod=tier == PROD)

    def holds_until(self, pod: PodInfo, assigned_at: float) -> float | None:
        """Return the time that a report must be newer than for its usage of the pod to count; None for any report."""
        scheduled, initialized = self._after_scheduled, self._after_initialized
        if self._custom:
            own = seconds_after_scheduled(pod.annotations)
            scheduled = scheduled if own is None else own
            own = seconds_after_initialized(pod.annotations)
            initialized = initialized if own is None else own
        if initialized is not None and initialized > 0 and pod.initialized_at is not None:
            return pod.initialized_at + initialized
        return assigned_at + scheduled if scheduled is not None and scheduled > 0 else None


def _is_limited(spec: PodSpec) -> bool:
    if spec.resources is not None and spec.resources.limits:
        return True
    return any(container.resources.limits for container in (*spec.containers, *spec.init_containers))


def _kube_qos(shape: Shape) -> str:
    """Return the QoS class as far as it matters: whether a pod is best-effort, and most pods plainly are not."""
    spec, requests = shape.spec, shape.requests
    if spec.resources is None and not spec.overhead and (requests.get(CPU, 0) > 0 or requests.get(MEMORY, 0) > 0):
        return BURSTABLE
    return qos_class(cast(api_pod.PodSpec, spec))
