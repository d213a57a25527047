"""Records an event on the node when its NodeMetric becomes unusable, and when it is usable again: once per
change.
"""

from __future__ import annotations

import logging

from koord.api.builtin import NODES
from koord.kube.recorder import EventType, Recorder, reference
from koord.policy.colocation.sample import EXPECTED, Cause, Degraded
from koord.policy.colocation.wire import Node

ABNORMAL = "NodeMetricAbnormal"
RESTORED = "NodeMetricRestored"

_LOG = logging.getLogger(__name__)


class News:
    """Records an event on the node when its NodeMetric becomes unusable or usable again: once per change.

    A node that never reported gets no event: its koordlet may not have started yet.
    """
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.told: dict[str, Cause] = {}

    def tell(self, node: Node, degraded: Degraded | None) -> None:
        """Record the change, if any. `degraded` is None for a usable report and for a node without co-location."""
        name = node.metadata.name
        before = self.told.get(name)
        if degraded is not None and degraded.cause not in EXPECTED:
            if degraded.cause != before:
                self.told[name] = degraded.cause
                self._say(node, "Warning", ABNORMAL, f"nothing is lent to batch and mid pods: {degraded}")
        elif before is not None:
            del self.told[name]
            if degraded is None:
                self._say(node, "Normal", RESTORED, "the NodeMetric is usable again")

    def forget(self, name: str) -> None:
        self.told.pop(name, None)

    def _say(self, node: Node, type: EventType, reason: str, message: str) -> None:
        _LOG.info("node %s: %s: %s", node.metadata.name, reason, message)
        self._recorder.record(reference(NODES, node), type, reason, message)
