"""Evaluate preemption for an unschedulable pod: find candidate nodes, pick one, and make the plan.

    nodes whose rejection evictions could resolve
        | columns: would it fit if all pods below its priority left?  no -> reasons are counted without a dry run
        v
    dry runs on copies, from a random node on, until there are enough candidates

The upper bound reads sums only, so that thousands of nodes cost less than one dry run each. Nodes with nominated pods
or resources reserved for the pod always get a dry run.
"""

from __future__ import annotations

from koord.scheduler.state.cluster import ClusterState


class UnderWay:
    """Track the pods whose victims are being evicted. They wait: another attempt would only find more victims.

    The evictor calls `begin`, then `begin_last_victim` before it evicts the last victim, and `end` in any case. The last
    victim's deletion wakes the pod, so once that has begun the pod is free, whether or not the eviction has been
    reported as done. Get it with `state.derived(PreemptionsInProgress)`.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._last: dict[str, str | None] = {}  # pod -> its last victim, by UID

    def begin(self, uid: str) -> None:
        self._last[uid] = None

    def last(self, uid: str, victim: str) -> None:
        if uid in self._last:
            self._last[uid] = victim

    def end(self, uid: str) -> None:
        self._last.pop(uid, None)

    def holds(self, uid: str) -> bool:
        if uid not in self._last:
            return False
        last = self._last[uid]
        if last is None:
            return True
        victim = self._state.placed(last)
        return victim is not None and not victim.deleting

    def __len__(self) -> int:
        return len(self._last)
