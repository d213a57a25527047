"""The controller manager: it starts and stops all workload controllers of a cluster, or a chosen few, together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from random import Random
from types import MappingProxyType

from koord.embedded.workloads.autoscaler_controller import AutoscalerController
from koord.embedded.workloads.controller_context import ControllerContext, PodSpecInterner, WorkloadController
from koord.embedded.workloads.cronjob_controller import CronJobController
from koord.embedded.workloads.daemonset_controller import DaemonSetController
from koord.embedded.workloads.deployment_controller import DeploymentController
from koord.embedded.workloads.disruption_controller import DisruptionController
from koord.embedded.workloads.garbage_collector import GarbageCollector
from koord.embedded.workloads.job_controller import JobController
from koord.embedded.workloads.namespace_controller import NamespaceController, RootCaPublisher, ServiceAccountController
from koord.embedded.workloads.node_lifecycle_controller import NodeLifecycleController, TaintEvictionController
from koord.embedded.workloads.persistentvolume_controller import PersistentVolumeController
from koord.embedded.workloads.pod_gc import PodGarbageCollector
from koord.embedded.workloads.replicaset_controller import ReplicaSetController, ReplicationControllerController
from koord.embedded.workloads.resourceclaim_controller import ResourceClaimController
from koord.embedded.workloads.resourcequota_controller import ResourceQuotaController
from koord.embedded.workloads.statefulset_controller import StatefulSetController
from koord.embedded.workloads.volume_claim_controllers import EphemeralVolumeController, VolumeProtectionController
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

EVENT_COMPONENT = "kube-controller-manager"
CONTROLLERS: Mapping[str, Callable[[ControllerContext], WorkloadController]] = MappingProxyType(
    {
        "deployment": DeploymentController,
        "replicaset": ReplicaSetController,
        "replicationcontroller": ReplicationControllerController,
        "statefulset": StatefulSetController,
        "daemonset": DaemonSetController,
        "job": JobController,
        "cronjob": CronJobController,
        "disruption": DisruptionController,
        "horizontalpodautoscaling": AutoscalerController,
        "garbage": GarbageCollector,
        "namespace": NamespaceController,
        "serviceaccount": ServiceAccountController,
        "root-ca-certificate-publisher": RootCaPublisher,
        "node-lifecycle": NodeLifecycleController,
        "taint-eviction": TaintEvictionController,
        "pod-gc": PodGarbageCollector,
        "ephemeral-volume": EphemeralVolumeController,
        "persistentvolume": PersistentVolumeController,
        "volume-protection": VolumeProtectionController,
        "resourceclaim": ResourceClaimController,
        "resourcequota": ResourceQuotaController,
    }
)


class ControllerManager:
    """Runs workload controllers, which begin to work when the informers, owned by the caller, have synced."""

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: Clock,
        seed: int,
        *,
        only: Collection[str] | None = None,
        root_ca: bytes = b"",
    ) -> None:
        unknown = sorted(set(only or ()) - set(CONTROLLERS))
        if unknown:
            raise ValueError(f"no such controllers: {', '.join(unknown)}; there are {', '.join(CONTROLLERS)}")
        self._recorder = EventRecorder(
            client, clock, controller=EVENT_COMPONENT, instance=EVENT_COMPONENT, rng=Random(f"{seed} events")
        )
        context = ControllerContext(client, informers, clock, self._recorder, seed, PodSpecInterner(), root_ca.decode())
        self._controllers = [make(context) for name, make in CONTROLLERS.items() if only is None or name in only]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._recorder.start()
        for runner in self._controllers:
            task = asyncio.create_task(runner.run(), name=f"workloads-{runner.name}")
            task.add_done_callback(_log_if_died)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Stop every controller. Raises what a controller died of, if one did."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await self._recorder.stop()
        died = [end for end in ends if isinstance(end, Exception)]
        if died:
            raise ExceptionGroup("workload controllers died", died)


def _log_if_died(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("%s died: nobody does its work", task.get_name(), exc_info=error)
