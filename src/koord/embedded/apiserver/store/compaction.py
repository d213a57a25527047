"""Retention: history is compacted by age, as kube-apiserver has etcd do it, and Events expire an hour
after their last write.
"""

from __future__ import annotations

from collections import deque

from koord.embedded.apiserver.store.store import Store
from koord.telemetry.clock import Clock

KEPT_S = 300.0


class Compaction:
    """Compacts the history that is older than `kept_s`. Each call of `compact_due` notes the present revision
    for later.
    """

    def __init__(self, store: Store, clock: Clock, kept_s: float = KEPT_S) -> None:
        self._store = store
        self._clock = clock
        self._kept_s = kept_s
        self._marks: deque[tuple[float, int]] = deque()  # moments and their revisions

    def look(self) -> None:
        now_s = self._clock.monotonic()
        due = 0
        while self._marks and now_s - self._marks[0][0] >= self._kept_s:
            due = self._marks.popleft()[1]
        if due:
            self._store.compact(due)
        if not self._marks or self._marks[-1][1] != self._store.revision:
            self._marks.append((now_s, self._store.revision))
