"""Define what the scheduling loop measures, and time the extension points of sampled attempts."""

from __future__ import annotations

from typing import Literal

from koord.telemetry.clock import Clock


class MetricsRecorder:
    """Receive the numbers of the scheduling loop; this one records nothing."""

    def decision_made(
        self, profile: str, result: Literal["scheduled", "unschedulable", "error"], seconds: float
    ) -> None:
        """Record that a decision was made; binding comes later."""

    def nodes_evaluated(self, evaluated: int, feasible: int) -> None:
        """Record how many nodes were evaluated and how many were feasible when a node was chosen."""

    def pod_bound(self, profile: str, seconds: float, since_queued_s: float, attempts: int) -> None:
        """Record a bound pod: the time of this attempt, the time since it was queued, and the number of attempts."""

    def binding_failed(self, profile: str, result: Literal["unschedulable", "error"], seconds: float) -> None:
        """Record that a pod with a chosen node failed at Reserve, Permit or binding."""

    def victims_searched(self, victims: int) -> None:
        """Record a search for victims and how many were chosen; 0 when preemption does not help."""

    def permit_waited(self, result: str, seconds: float) -> None:
        """Record the end of a wait at Permit; the result is Kubernetes' name of it."""

    def point_took(self, profile: str, point: str, seconds: float) -> None:
        """Record how long an extension point took in a sampled attempt."""


SAMPLE_EVERY = 10


class PointTimer:
    """Time the extension points of one attempt in ten, because timing costs as much as a quick decision.

    Call it with the name of the point that has just ended.
    """

    def __init__(self, meter: MetricsRecorder, clock: Clock) -> None:
        self._recorder = meter
        self._clock = clock
        self._count = 0
        self._profile = ""
        self._since = 0.0

    def start_if_sampled(self, profile: str, now: float) -> bool:
        """Return whether this attempt is sampled; if it is, its time starts now."""
        self._count += 1
        if self._count % SAMPLE_EVERY != 1:
            return False
        self._profile, self._since = profile, now
        return True

    def __call__(self, point: str) -> None:
        now = self._clock.monotonic()
        self._recorder.point_took(self._profile, point, now - self._since)
        self._since = now
