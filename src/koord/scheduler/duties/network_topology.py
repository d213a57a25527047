"""Run the controllers of Coscheduling: the status of PodGroups, and of the ClusterNetworkTopology."""

from __future__ import annotations

import logging
from typing import ClassVar

from koord.api.custom import CLUSTER_NETWORK_TOPOLOGIES
from koord.api.koord_scheduling import ClusterNetworkTopologyStatus
from koord.api.model import to_dict
from koord.kube.noise import QuietLog
from koord.kube.outage import OUTAGE
from koord.kube.recorder import reference
from koord.kube.refused import Refused
from koord.policy.gang.network import Broken, details_of
from koord.scheduler.duties.duty import Post
from koord.scheduler.plugins.coscheduling import NetworkCoscheduling
from koord.scheduler.plugins.coscheduling.network_map import NAME

_LOG = logging.getLogger(__name__)

_LOOK_S = 10.0


class NetworkSurveyor:
    """Write the network tree as the scheduler understood it into the status of the ClusterNetworkTopology that counts.

    It is checked every few seconds, and written when it differs.
    """
    name: ClassVar[str] = "network surveyor"

    def __init__(self, post: Post) -> None:
        plugin = next(p for p in post.plugins if isinstance(p, NetworkCoscheduling))
        self._map = plugin.planner.map
        self._client, self._clock, self._recorder = post.client, post.clock, post.recorder
        self._quiet = QuietLog(_LOG, post.clock)
        self._complained = ""
        self._shown: tuple[object, str] | None = None  # the tree and the revision that show the same
        self.writes = 0

    async def run(self) -> None:
        while True:
            await self._survey()
            await self._clock.sleep(_LOOK_S)

    async def _survey(self) -> None:
        topology = self._map.topologies.get("", NAME)
        tree = self._map.tree()
        if topology is None or tree is None:
            return
        if isinstance(tree, Broken):
            self._complain(tree.why)
            return
        self._complained = ""
        if self._shown == (tree, topology.metadata.resource_version):
            return
        wanted = ClusterNetworkTopologyStatus(detail_status=details_of(tree))
        if wanted == topology.status:
            self._shown = (tree, topology.metadata.resource_version)
            return
        patch = {"status": {"detailStatus": to_dict(wanted).get("detailStatus", [])}}
        try:
            answer = await self._client.patch(
                CLUSTER_NETWORK_TOPOLOGIES, NAME, patch, kind="merge", subresource="status", uid=topology.metadata.uid
            )
        except OUTAGE as outage:
            self._quiet.warning("the status of the network topology was not written: %s", outage)
            return
        if isinstance(answer, Refused):
            self._quiet.warning("the status of the network topology was not written: %s", answer.message)
            return
        self.writes += 1

    def _complain(self, why: str) -> None:
        """Record a broken topology once, until it is fixed or broken in another way."""
        topology = self._map.topologies.get("", NAME)
        if topology is not None and why != self._complained:
            self._complained = why
            about = reference(CLUSTER_NETWORK_TOPOLOGIES, topology)
            self._recorder.record(about, "Warning", "BrokenTopology", why, action="Surveying")
