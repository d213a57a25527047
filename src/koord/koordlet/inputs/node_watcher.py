"""Watch this node's Node and NodeSLO, and nothing else.

While the API server is unreachable the last objects count. A deleted NodeSLO counts as an empty one from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from koord.api.annotations import cpu_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.field_error import FieldError
from koord.api.config.slo.slo_documents import interference_of_extensions
from koord.api.config.slo.slo_validation import strategy_errors
from koord.api.koordinator.custom_kinds import NODE_SLOS
from koord.api.koordinator.slo import HostApplicationSpec, NodeSLO, NodeSLOSpec
from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.node import Node
from koord.host.cgroup.layout import CgroupLayout
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.node_inputs import NodeProperties, node_properties
from koord.koordlet.inputs.yarn_containers import with_application
from koord.koordlet.problem_log import ProblemLog
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory

_LOG = logging.getLogger(__name__)


class NodeWatcher:
    """The watcher keeps the last Node, its properties and the effective NodeSLO."""

    def __init__(self, informers: InformerFactory, node: str) -> None:
        self.node: Node | None = None
        self.properties: NodeProperties | None = None
        self.slo: NodeSLOSpec | None = None  # with the application that was found on the node
        self._stated: NodeSLOSpec | None = None
        self._application: tuple[HostApplicationSpec, CgroupLayout] | None = None
        self.slo_errors: tuple[FieldError, ...] = ()  # values that no node can use
        self._ratio_problem = ProblemLog(_LOG, "the last CPU normalization ratio stays in use")
        self._listeners: list[Callable[[NodeProperties], None]] = []
        mine = f"metadata.name={node}"
        informers.for_resource(NODES, fields=mine).add_event_handler(
            self._node_changed, filter=lambda one: one.metadata.name == node
        )
        self._slos = informers.for_resource(NODE_SLOS, fields=mine)
        self._slos.add_event_handler(self._slo_changed, filter=lambda one: one.metadata.name == node)

    def on_node(self, listener: Callable[[NodeProperties], None]) -> None:
        """Call the listener when the Node is first seen and whenever a property that decisions use changes."""
        self._listeners.append(listener)
        if self.properties is not None:
            listener(self.properties)

    def count_absent_as_deleted(self) -> None:
        """Let a NodeSLO that the API server does not have count as deleted; without this it counts as not seen yet.

        An agent that finds writes of an earlier process calls this: the NodeSLO was deleted while none ran.
        """
        if self.slo is None and self._slos.has_synced and not self._slos.malformed_count:
            _LOG.info("there is no NodeSLO, and there was one: all is put back")
            self._stated = effective_slo(None)
            self._apply()

    def count_application(self, application: HostApplicationSpec, layout: CgroupLayout) -> None:
        """Count an application that was found on the node as one that the NodeSLO names, unless it names it already."""
        self._application = (application, layout)
        self._apply()

    def _apply(self) -> None:
        self.slo = self._stated
        if self._stated is not None and self._application is not None:
            applications = with_application(self._stated.host_applications, *self._application)
            self.slo = msgspec.structs.replace(self._stated, host_applications=applications)

    def _node_changed(self, change: ObjectChange[Node]) -> None:
        if change.kind == "deleted":
            _LOG.warning("the Node object is deleted; what it said last still counts")
            return
        self.node = change.object
        ratio = cpu_codecs.parse_cpu_normalization_ratio(change.object.metadata.annotations)
        if isinstance(ratio, MalformedAnnotation):
            self._ratio_problem.fails(ratio, str(ratio))
        else:
            self._ratio_problem.works()
        properties = node_properties(change.object, self.properties)
        if properties == self.properties:  # most changes are heartbeats
            return
        if self.properties is None:
            _LOG.info("the Node object is known")
        self.properties = properties
        for listener in self._listeners:
            listener(properties)

    def _slo_changed(self, change: ObjectChange[NodeSLO]) -> None:
        deleted = change.kind == "deleted"
        slo = effective_slo(None if deleted else change.object.spec)
        errors = () if deleted else _slo_errors(change.object.spec)
        if slo != self._stated:
            _LOG.info("the NodeSLO is %s", "deleted: all is put back" if deleted else "new or has changed")
        if errors and errors != self.slo_errors:
            _LOG.warning("what the NodeSLO wants by these is off: %s", "; ".join(map(str, errors)))
        self._stated, self.slo_errors = slo, errors
        self._apply()


def _slo_errors(spec: NodeSLOSpec) -> tuple[FieldError, ...]:
    """Return the values of a NodeSLO that no node can use, its extension of interference detection included."""
    interference = interference_of_extensions(spec.extensions)
    return (*strategy_errors(spec), *((interference,) if isinstance(interference, FieldError) else ()))
