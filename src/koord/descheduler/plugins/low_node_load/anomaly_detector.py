"""Anomaly detection: a node must be overutilized several times in a row before pods are moved.

        abnormal more than N times in a row
ok  ------------------------------------------>  anomaly
 ^                                                  |
 +--------------------------------------------------+
   normal more than M times in a row, the timeout is over, or a reset
"""

from __future__ import annotations

import msgspec


class DetectorCondition(msgspec.Struct, frozen=True, kw_only=True):
    abnormal: int  # more than this many marks in a row
    normal: int
    timeout_s: float = 60.0

    @property
    def is_immediate(self) -> bool:
        """Return whether a single abnormality is enough, so that nothing needs to be remembered."""
        return self.abnormal <= 1


class AnomalyDetector:
    """The anomaly detector of one node. Time arrives with each call."""

    def __init__(self, condition: DetectorCondition) -> None:
        self._condition = condition
        self._until_s: float | None = None  # while anomalous
        self._abnormal = 0
        self._normal = 0

    def is_anomalous(self, now_s: float) -> bool:
        if self._until_s is not None and (now_s > self._until_s or self._normal > self._condition.normal):
            self.reset()
        return self._until_s is not None

    def mark(self, now_s: float, *, normal: bool) -> bool:
        """Add one observation; return whether the node is anomalous after it."""
        self.is_anomalous(now_s)  # a time that is over ends before this one counts
        if normal:
            self._normal += 1
            self._abnormal = 0
        else:
            self._abnormal += 1
            self._normal = 0
            if self._until_s is None and self._abnormal > self._condition.abnormal:
                self._until_s = now_s + self._condition.timeout_s
                self._abnormal = self._normal = 0
        return self.is_anomalous(now_s)

    @property
    def abnormal_count(self) -> int:
        """Return the number of abnormal marks in a row."""
        return self._abnormal

    def reset(self) -> None:
        """Return to normal and forget all counts."""
        self._until_s = None
        self._abnormal = self._normal = 0


class AnomalyDetectors:
    """The detectors by node; one is dropped when its node was not abnormal for long enough."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._held: dict[str, tuple[AnomalyDetector, float]] = {}

    def mark_abnormal(self, node: str, condition: DetectorCondition, now_s: float) -> bool:
        held = self._held.get(node)
        detector = held[0] if held is not None and held[1] > now_s else AnomalyDetector(condition)
        self._held[node] = (detector, now_s + self._keep_s)
        return detector.mark(now_s, normal=False)

    def mark_normal(self, node: str, now_s: float) -> None:
        held = self._held.get(node)
        if held is not None and held[1] > now_s:
            held[0].mark(now_s, normal=True)

    def find(self, node: str) -> AnomalyDetector | None:
        """Return the detector of a node, for explanations."""
        return self._held[node][0] if node in self._held else None

    def reset(self, node: str) -> None:
        if node in self._held:
            self._held[node][0].reset()

    def forget(self, now_s: float) -> None:
        """Drop the expired detectors; once a round is enough."""
        self._held = {node: held for node, held in self._held.items() if held[1] > now_s}
