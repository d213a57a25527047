"""What the shell counts, as a contract: metrics are one way to keep it, a test's list another."""

from __future__ import annotations

from typing import Literal, Protocol


class Meter(Protocol):
    def decided(self, profile: str, result: Literal["scheduled", "unschedulable", "error"], seconds: float) -> None:
        """A decision was made; binding comes later."""

    def found(self, evaluated: int, feasible: int) -> None:
        """A node was chosen: of so many that were judged, and so many that fit."""

    def bound(self, profile: str, seconds: float, since_queued_s: float, attempts: int) -> None:
        """A pod is bound: the time of this attempt, of all of them, and how many there were."""

    def undone(self, profile: str, result: Literal["unschedulable", "error"], seconds: float) -> None:
        """A pod that was to get a node did not get there: Reserve, Permit or binding failed."""

    def preempted(self, victims: int) -> None:
        """Victims were looked for; so many have to go, 0 when nobody's end would help."""

    def permit_waited(self, result: str, seconds: float) -> None:
        """A pod waited for permission; the result is Kubernetes' name of it."""

    def point(self, profile: str, point: str, seconds: float) -> None:
        """A point of the framework took so long, of an attempt that was measured."""


class Uncounted:
    """For those who do not look."""

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
