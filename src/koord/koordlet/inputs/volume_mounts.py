"""Find where the volumes of pods with disk limits are mounted: from a volume over its claim to its directory.

Only pods with the blkio annotation are considered, and a bound claim is read from the API server once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from koord.api.koordinator.protocol import A_BLKIO_QOS
from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.problem_log import ProblemLog
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

SYNC_PERIOD_S = 10.0


class VolumeMounts:
    """Follows the mount points of such volumes. Run it in a task; `mounts` is the same object while nothing changed."""

    def __init__(
        self, client: Client, clock: Clock, kubelet_folder: str, pods: Callable[[], tuple[PodMeta, ...] | None]
    ) -> None:
        self._client = client
        self._clock = clock
        self._folder = kubelet_folder
        self._pods = pods
        self._bound: dict[tuple[str, str], str] = {}  # volume by namespace and claim
        self._log = ProblemLog(_LOG, "the volume of a claim is not known, so its disk has no limits yet")
        self.mounts: Mapping[tuple[str, str], str] = {}  # by uid and volume's name

    async def run(self) -> None:
        while True:
            await self.sync(self._pods() or ())
            await self._clock.sleep(SYNC_PERIOD_S)

    async def sync(self, pods: Iterable[PodMeta]) -> None:
        """Recompute the mount points of these pods' volumes."""
        wanting = [pod for pod in pods if A_BLKIO_QOS in pod.annotations and pod.volumes]
        claims = {(pod.namespace, claim) for pod in wanting for claim in pod.volumes.values() if claim}
        self._bound = {key: volume for key, volume in self._bound.items() if key in claims}
        for namespace, claim in sorted(claims - self._bound.keys()):
            bound = await self._volume(namespace, claim)
            if bound:
                self._bound[namespace, claim] = bound
        found: dict[tuple[str, str], str] = {}
        for pod in wanting:
            for name, claim in pod.volumes.items():
                volume = self._bound.get((pod.namespace, claim)) if claim else name
                if volume:
                    found[pod.uid, name] = f"{self._folder}/pods/{pod.uid}/volumes/kubernetes.io~csi/{volume}/mount"
        if found != self.mounts:
            self.mounts = found

    async def _volume(self, namespace: str, claim: str) -> str:
        try:
            found = await self._client.get(PERSISTENT_VOLUME_CLAIMS, claim, namespace)
        except TRANSIENT_ERRORS as gone:
            return self._fails(str(gone))
        if isinstance(found, ApiError):
            return self._fails(found.message)
        self._log.works()
        return found.spec.volume_name

    def _fails(self, why: str) -> str:
        self._log.fails(why, why)
        return ""
