"""NodeLoadEstimate is the load of one node: the last NodeMetric, and what pods add that it does not show yet.

    used by all     node usage of the report + node_delta
    used by prod    usage of its prod pods in the report + prod_delta
    estimated       the estimates of all pods here, for when the report lacks what is needed

A pod's estimate counts in full while the report does not show the pod. Once it does, only what the estimate
exceeds it by counts, and only as long as the report may be older than the pod's start. Every part that a
pod adds is kept with it, so that it is subtracted exactly as it was added.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from koord.policy.load.axes import Vector
from koord.policy.load.ceiling import Window
from koord.policy.load.report import Report
from koord.scheduler.plugins.load_aware.guess import Guess
from koord.scheduler.state.pod import PodInfo

NEVER = float("inf")  # what is not there does not grow old


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A pod on the node, with the parts that it adds to the sums; None adds nothing."""

    pod: PodInfo
    guess: Guess
    assigned_at: float
    holds_until: float | None
    node_part: Vector | None
    prod_part: Vector | None
    prod_usage: Vector | None


class Account:
    """The load of one node. `deltas` has what pods add to the node by resource, then the same for prod, in one
    list.

    Every placement changes the sums in place: copy them to keep them.
    """

    __slots__ = ("_reported", "_width", "deltas", "expires_at", "pods", "prod_usage", "report", "usage")

    def __init__(self, report: Report | None, base: Vector, expires_at: float) -> None:
        """Start without pods; `base` is what counts as used by prod before any pod."""
        self.report = report
        # Of the report, what is asked for all the time.
        self.usage: Vector | None = None if report is None else report.usage
        self._reported: Container[str] = () if report is None else report.pods
        self.expires_at = expires_at
        self.pods: dict[str, Entry] = {}  # by uid
        self.prod_usage = list(base)
        self._width = len(base)
        self.deltas = [0] * (2 * len(base))

    def copy(self) -> Account:
        """Copy the load for a dry run, which adds and removes pods on the copy alone."""
        other = Account(self.report, tuple(self.prod_usage), self.expires_at)
        other.pods = dict(self.pods)
        other.deltas = self.deltas[:]
        return other

    @property
    def node_delta(self) -> list[int]:
        return self.deltas[: self._width]

    @property
    def prod_delta(self) -> list[int]:
        return self.deltas[self._width :]

    @property
    def estimated(self) -> list[int]:
        """Return the sum of all estimates, computed when read, which is seldom."""
        total = [0] * self._width
        for entry in self.pods.values():
            if entry.guess.whole is not None:
                _raise(total, entry.guess.usage)
        return total

    def add(self, pod: PodInfo, guess: Guess, assigned_at: float, holds_until: float | None) -> Entry:
        if pod.key in self._reported:
            entry = self._add_reported(pod, guess, assigned_at, holds_until)
        else:
            part, deltas = guess.whole, self.deltas
            for place, amount in enumerate(guess.deltas):
                deltas[place] += amount
            entry = Entry(pod, guess, assigned_at, holds_until, part, part if guess.prod else None, None)
        self.pods[pod.uid] = entry
        return entry

    def _add_reported(
        self,
        pod: PodInfo,
        guess: Guess,
        assigned_at: float,
        holds_until: float | None,
    ) -> Entry:
        report = self.report
        assert report is not None
        usage, reported_prod = report.pods[pod.key]
        prod_usage = node_part = prod_part = None
        active = reported_prod and guess.prod
        if active and usage is not None:
            prod_usage = usage
            _raise(self.prod_usage, usage)
        if guess.whole is not None:
            due = usage is None or _outweighs(assigned_at, holds_until, report)
            if due:
                node_part = _beyond(guess, usage)
                _raise(self.deltas, node_part)
            if guess.prod:
                if not active:  # what it uses is not among what prod is known to use
                    usage, due = None, True
                if due:
                    prod_part = _beyond(guess, usage)
                    _raise(self.deltas, prod_part, self._width)
        return Entry(pod, guess, assigned_at, holds_until, node_part, prod_part, prod_usage)

    def remove(self, uid: str) -> Entry | None:
        entry = self.pods.pop(uid, None)
        if entry is None:
            return None
        if entry.prod_usage is not None:
            _lower(self.prod_usage, entry.prod_usage)
        if entry.node_part is not None:
            _lower(self.deltas, entry.node_part)
        if entry.prod_part is not None:
            _lower(self.deltas, entry.prod_part, self._width)
        return entry

    def used(self, window: Window | None, *, prod: bool) -> tuple[Sequence[int], Sequence[int]]:
        """Return what is measured and what pending pods add, to be summed by resource. Only valid with a report.

        The second may be longer than the number of resources.
        """
        if prod:
            return self.prod_usage, self.prod_delta
        report = self.report
        assert report is not None
        usage = self.usage if window is None else report.aggregated(window.kind, window.nanoseconds)
        return (self.estimated, (0,) * self._width) if usage is None else (usage, self.deltas)


def _outweighs(assigned_at: float, holds_until: float | None, report: Report) -> bool:
    """Return whether the estimate still counts beside the measurement: the report may not cover the pod's whole
    life.
    """
    at = report.update_time
    if at is None or at - report.interval_s < assigned_at:
        return True
    return holds_until is not None and holds_until > at


def _beyond(guess: Guess, usage: Vector | None) -> Vector:
    if usage is None:
        assert guess.whole is not None
        return guess.whole
    return tuple([own - seen if own > seen else 0 for own, seen in zip(guess.usage, usage, strict=True)])


def _raise(total: list[int], part: Vector, first: int = 0) -> None:
    for place, amount in enumerate(part, first):
        total[place] += amount


def _lower(total: list[int], part: Vector, first: int = 0) -> None:
    for place, amount in enumerate(part, first):
        total[place] -= amount
