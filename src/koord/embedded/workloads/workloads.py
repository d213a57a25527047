"""The controller manager: it starts and stops all workload controllers of a cluster, or a chosen few,
together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from random import Random
from types import MappingProxyType

from koord.embedded.workloads.context import Context, Runner
from koord.embedded.workloads.cronjob import CronJobs
from koord.embedded.workloads.daemonset import DaemonSets
from koord.embedded.workloads.deployment import Deployments
from koord.embedded.workloads.garbage import Garbage
from koord.embedded.workloads.job import Jobs
from koord.embedded.workloads.namespace import Namespaces
from koord.embedded.workloads.node_lifecycle import Nodes
from koord.embedded.workloads.pdb import Budgets
from koord.embedded.workloads.pod_gc import PodGarbage
from koord.embedded.workloads.replicaset import ReplicaSets
from koord.embedded.workloads.spec_pool import SpecPool
from koord.embedded.workloads.statefulset import StatefulSets
from koord.embedded.workloads.taint_eviction import TaintEvictions
from koord.embedded.workloads.volume_protection import VolumeProtection
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.recorder import Recorder
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

REPORTER = "kube-controller-manager"
ROSTER: Mapping[str, Callable[[Context], Runner]] = MappingProxyType(
    {
        "deployment": Deployments,
        "replicaset": ReplicaSets,
        "statefulset": StatefulSets,
        "daemonset": DaemonSets,
        "job": Jobs,
        "cronjob": CronJobs,
        "disruption": Budgets,
        "garbage": Garbage,
        "namespace": Namespaces,
        "node-lifecycle": Nodes,
        "taint-eviction": TaintEvictions,
        "pod-gc": PodGarbage,
        "volume-protection": VolumeProtection,
    }
)


class Workloads:
    """Runs workload controllers. `start` returns at once: they begin to work when the informers, which the
    caller owns, have synced.
    """

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, seed: int, *, only: Collection[str] | None = None
    ) -> None:
        unknown = sorted(set(only or ()) - set(ROSTER))
        if unknown:
            raise ValueError(f"no such controllers: {', '.join(unknown)}; there are {', '.join(ROSTER)}")
        self._recorder = Recorder(client, clock, controller=REPORTER, instance=REPORTER, rng=Random(f"{seed} events"))
        context = Context(client, informers, clock, self._recorder, seed, SpecPool())
        self._runners = [make(context) for name, make in ROSTER.items() if only is None or name in only]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._recorder.start()
        for runner in self._runners:
            task = asyncio.create_task(runner.run(), name=f"workloads-{runner.name}")
            task.add_done_callback(_say_if_died)
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


def _say_if_died(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("%s died: nobody does its work", task.get_name(), exc_info=error)
