"""NodeVolumeLimits rejects nodes that cannot have more volumes of a CSI driver attached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from koord.api.builtin import CSI_NODES
from koord.api.storage import CSINode
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import CLUSTER, SKIP, Fault, Only, Reject, Skip, reject, unresolvable
from koord.scheduler.plugins.volumes.attachments import Attached, Attachments
from koord.scheduler.plugins.volumes.claims import mentions, named_claims, uses
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo

_REFUSAL = reject("node(s) exceed max volume count")


class NodeVolumeLimits(Plugin):
    name = "NodeVolumeLimits"
    scope = CLUSTER
    wakes_on = (
        Event("CSINode", ADD),
        Event("CSINode", UPDATE),
        Event("Pod", DELETE),
        Event("PersistentVolumeClaim", ADD),
        Event("VolumeAttachment", DELETE),
    )

    def __init__(self, handle: Handle) -> None:
        self._attachments = Attachments(handle)
        self._nodes = handle.lister(CSI_NODES)
        self._limits: dict[str, dict[str, int]] = {}  # by node, then driver
        self._read = -1

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        kind, old, new = happened.event.kind, happened.old, happened.new
        if kind == "CSINode":
            return old is None or _raised(old, new)
        if kind == "PersistentVolumeClaim":
            return uses(pod, new)
        if kind == "VolumeAttachment":
            return bool(named_claims(pod))
        return bool(old.node_name or old.nominated_node) and bool(mentions(old))

    def signature(self, pod: PodInfo) -> Hashable:
        return self._attachments.wanted(pod) if mentions(pod) else None

    def epoch(self, cycle: Cycle) -> Hashable:
        """Return the versions of the objects that tell which volumes the pods on a node have attached."""
        return self._attachments.version, self._nodes.version

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        if not mentions(pod):
            return SKIP
        wanted = self._attachments.wanted(pod)
        if not wanted:
            return SKIP
        # An unusable claim is rejected per node: other plugins report it better in PreFilter, before that.
        cycle.keep(self.name, unresolvable(wanted) if isinstance(wanted, str) else wanted)
        return None

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        wanted: frozenset[Attached] | Reject = cycle.kept[self.name]
        if isinstance(wanted, Reject):
            return wanted
        limits = self._by_node().get(node.name)
        if limits is None or all(volume.driver not in limits for volume in wanted):
            return None
        held: set[Attached] = set()
        for other in node.pods.values():
            if mentions(other):
                held |= self._attachments.held(other)
        counts = Counter(volume.driver for volume in held | self._attachments.on(node.name))
        new = Counter(volume.driver for volume in wanted - held)
        over = any(counts[driver] + more > limits.get(driver, counts[driver] + more) for driver, more in new.items())
        return _REFUSAL if over else None

    def _by_node(self) -> dict[str, dict[str, int]]:
        if self._read != self._nodes.version:
            self._limits = {node.metadata.name: _limits(node) for node in self._nodes.list()}
            self._read = self._nodes.version
        return self._limits


def _limits(node: CSINode) -> dict[str, int]:
    """Return the limit by driver; a driver that states none has none."""
    return {d.name: d.allocatable.count for d in node.spec.drivers if d.allocatable and d.allocatable.count is not None}


def _raised(old: CSINode, new: CSINode) -> bool:
    before = _limits(old)
    return any(limit > before.get(driver, 0) for driver, limit in _limits(new).items())
