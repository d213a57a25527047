"""Define what the scheduling loop measures, and time the extension points of sampled attempts."""

from __future__ import annotations

from typing import Literal, Protocol


class Meter(Protocol):
    """Receive the numbers of the scheduling loop; metrics are one implementation, a test's list is another."""
    def decided(self, profile: str, result: Literal["scheduled", "unschedulable", "error"], seconds: float) -> None:
        """Record that a decision was made; binding comes later."""

    def found(self, evaluated: int, feasible: int) -> None:
        """Record how many nodes were evaluated and how many were feasible when a node was chosen."""

    def bound(self, profile: str, seconds: float, since_queued_s: float, attempts: int) -> None:
        """Record a bound pod: the time of this attempt, the time since it was queued, and the number of attempts."""

    def undone(self, profile: str, result: Literal["unschedulable", "error"], seconds: float) -> None:
        """Record that a pod with a chosen node failed at Reserve, Permit or binding."""

    def preempted(self, victims: int) -> None:
        """Record a search for victims and how many were chosen; 0 when preemption does not help."""

    def permit_waited(self, result: str, seconds: float) -> None:
        """Record the end of a wait at Permit; the result is Kubernetes' name of it."""

    def point(self, profile: str, point: str, seconds: float) -> None:
        """Record how long an extension point took in a sampled attempt."""


class Uncounted:
    """Record nothing."""

    def decided(self, profile: str, result: Literal["scheduled", "unschedulable", "error"], seconds: float) -> None:
        return

    def bound(self, profile: str, seconds: float, since_queued_s: float, attempts: int) -> None:
        return

    def undone(self, profile: str, result: Literal["unschedulable", "error"], seconds: float) -> None:
        return

    def preempted(self, victims: int) -> None:
        return

    def found(self, evaluated: int, feasible: int) -> None:
        return

    def permit_waited(self, result: str, seconds: float) -> None:
        return

    def point(self, profile: str, point: str, seconds: float) -> None:
        return
