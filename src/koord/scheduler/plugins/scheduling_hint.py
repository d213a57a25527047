"""SchedulingHint follows a pod's hint annotation: filter only the named nodes, or try the preferred nodes
first.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from koord.api.annotations import scheduling_hint
from koord.api.annotations.codec import Malformed
from koord.api.config.scheduler.scheduling_hint import SchedulingHintArgs
from koord.api.protocol import A_SCHEDULING_HINT, A_SCHEDULING_HINT_DEPRECATED
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import UPDATE, Event, Happened
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Only, Reject, Skip
from koord.scheduler.state.pod import PodInfo


class SchedulingHint(Plugin):
    name = "SchedulingHint"
    scope = ROW
    wakes_on = (Event("Pod", UPDATE),)

    def __init__(self, args: SchedulingHintArgs) -> None:
        """Take arguments that are already defaulted."""
        self._most = args.max_hint_nodes or 0

    def signature(self, pod: PodInfo) -> Hashable:
        """Return the hint. Hints are rare: pods without one share an equivalence class."""
        annotations = pod.annotations
        if not annotations:
            return None
        return annotations.get(A_SCHEDULING_HINT) or annotations.get(A_SCHEDULING_HINT_DEPRECATED)

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        """Return whether the pod got another hint; nothing else helps."""
        new, old = happened.new, happened.old
        return new is not None and new.uid == pod.uid and self.signature(new) != self.signature(old)

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        hint = scheduling_hint.parse(pod.annotations)
        if isinstance(hint, Malformed):
            return Fault(str(hint))
        return SKIP if hint is None or not hint.node_names else Only(frozenset(hint.node_names))

    def prefer_nodes(self, cycle: Cycle, pod: PodInfo) -> Sequence[str] | Skip:
        if not pod.annotations or self.signature(pod) is None:
            return SKIP
        hint = scheduling_hint.parse(pod.annotations)
        if hint is None or isinstance(hint, Malformed):
            return SKIP
        names = hint.preferred_node_names[: self._most]
        if cycle.only is not None:
            names = tuple(name for name in names if name in cycle.only)
        return names or SKIP
