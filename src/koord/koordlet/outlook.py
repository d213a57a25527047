"""Watch this node's Node and NodeSLO, and nothing else.

While the API server is unreachable the last objects count. A deleted NodeSLO counts as an empty one from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from koord.api.builtin import NODES
from koord.api.custom import NODE_SLOS
from koord.api.node import Node
from koord.api.slo import NodeSLO, NodeSLOSpec
from koord.koordlet.facts import NodeFacts, node_facts, slo_facts
from koord.kube.cache import Change
from koord.kube.informers import Informers

_LOG = logging.getLogger(__name__)


class Outlook:
    """The watcher keeps the last Node, its properties and the effective NodeSLO."""
    def __init__(self, informers: Informers, node: str) -> None:
        self.node: Node | None = None
        self.facts: NodeFacts | None = None
        self.slo: NodeSLOSpec | None = None
        self._listeners: list[Callable[[NodeFacts], None]] = []
        mine = f"metadata.name={node}"
        informers.of(NODES, fields=mine).on(self._node_changed, filter=lambda one: one.metadata.name == node)
        informers.of(NODE_SLOS, fields=mine).on(self._slo_changed, filter=lambda one: one.metadata.name == node)

    def on_node(self, listener: Callable[[NodeFacts], None]) -> None:
        """Call the listener when the Node is first seen and whenever a property that decisions use changes."""
        self._listeners.append(listener)
        if self.facts is not None:
            listener(self.facts)

    def _node_changed(self, change: Change[Node]) -> None:
        if change.kind == "deleted":
            _LOG.warning("the Node object is deleted; what it said last still counts")
            return
        self.node = change.object
        facts = node_facts(change.object)
        if facts == self.facts:  # most changes are heartbeats
            return
        if self.facts is None:
            _LOG.info("the Node object is known")
        self.facts = facts
        for listener in self._listeners:
            listener(facts)

    def _slo_changed(self, change: Change[NodeSLO]) -> None:
        deleted = change.kind == "deleted"
        slo = slo_facts(None if deleted else change.object.spec)
        if slo != self.slo:
            _LOG.info("the NodeSLO is %s", "deleted: all is put back" if deleted else "new or has changed")
        self.slo = slo
