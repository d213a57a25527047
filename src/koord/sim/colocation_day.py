"""The scenario of a co-location day: services on daily curves and batch jobs that fill what they leave.

JobSubmitter submits batch jobs without an end and deletes those that are done, as a workflow engine does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import JOBS, PODS
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.workload import Job
from koord.api.model import Obj
from koord.embedded.kubelet.node_profile import KubeletReserved, SimulatedPool, SystemDaemonUsage
from koord.embedded.kubelet.usage_model import SimulatedUsage, UsageTrace
from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import HandlerRegistration
from koord.kube.transport.api_error import ApiError
from koord.telemetry.clock import Clock

NODES, CPUS, MEMORY_GIB = 20, 16, 64
SERVICE_NAMESPACE, JOB_NAMESPACE = "shop", "analytics"
SALE = "sale"  # the trace of a service that half an hour of the evening belongs to
SALE_HOUR = 20.0
COLOCATION_LABEL = "koordinator.sh/enable-colocation"
_MIB = 1 << 20


class SimulatedService(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated service. `cpu` is the minimum and maximum of milli-cores that one replica uses in a day."""

    name: str
    replicas: int
    request_milli: int
    memory_mib: int
    cpu: tuple[int, int] = (0, 0)
    peak_hour: float = 14.0


# They ask for 55 % of the cluster and use 17 % of it on average; the system's daemons use one more.
FLEET = (
    SimulatedService(
        name="frontend", replicas=24, request_milli=2000, memory_mib=3072, cpu=(250, 1300), peak_hour=14.0
    ),
    SimulatedService(name="search", replicas=16, request_milli=3000, memory_mib=6144, cpu=(350, 1850), peak_hour=20.0),
    SimulatedService(
        name="checkout", replicas=12, request_milli=2000, memory_mib=3072, cpu=(200, 1100), peak_hour=19.0
    ),
    SimulatedService(name="catalog", replicas=12, request_milli=1500, memory_mib=4096, cpu=(150, 850), peak_hour=13.0),
    SimulatedService(name=SALE, replicas=12, request_milli=3000, memory_mib=2048),
)


def pool(nodes: int = NODES) -> SimulatedPool:
    return SimulatedPool(
        name="node",
        count=nodes,
        cpu=CPUS,
        memory=f"{MEMORY_GIB}Gi",
        zones=("zone-a", "zone-b"),
        reserved=KubeletReserved(cpu="500m", memory="1Gi"),
        system=SystemDaemonUsage(cpu="250m", memory="2Gi"),
    )


def traces() -> dict[str, UsageTrace]:
    """Return the usage trace of the sale: next to nothing all day, everything at once at its hour."""
    times, usages = [], []
    for minute in range(0, 24 * 60, 2):
        passed = minute / 60 - SALE_HOUR
        crowd = math.exp(-((passed - 0.3) ** 2) / 0.02) if passed >= 0 else 0.0
        times.append(minute * 60.0)
        usages.append(SimulatedUsage(round(120 + 4700 * crowd), 1400 * _MIB))
    return {SALE: UsageTrace(times=tuple(times), usages=tuple(usages))}


def services(nodes: int) -> tuple[SimulatedService, ...]:
    """Return the services with replicas scaled to the size of the cluster."""
    return tuple(msgspec.structs.replace(one, replicas=max(1, round(one.replicas * nodes / NODES))) for one in FLEET)


def objects(nodes: int = NODES) -> list[Obj]:
    """Return everything that exists before the day begins, in the order of creation."""
    labels = {COLOCATION_LABEL: "true"}
    profile = {
        "apiVersion": "config.koordinator.sh/v1alpha1",
        "kind": "ClusterColocationProfile",
        "metadata": {"name": "analytics-in-the-gaps"},
        "spec": {
            "namespaceSelector": {"matchLabels": labels},
            "selector": {"matchLabels": labels},
            "qosClass": "BE",
            "priorityClassName": "koord-batch",
            "koordinatorPriority": 1000,
            "schedulerName": "koord-scheduler",
        },
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SERVICE_NAMESPACE}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": JOB_NAMESPACE, "labels": labels}},
        profile,
        *(_deployment(one) for one in services(nodes)),
    ]


def slo_documents() -> dict[str, str]:
    """Return slo-controller-config: what may be lent, and when BE pods are suppressed and evicted."""
    documents = {
        "colocation-config": {
            "enable": True,
            "metricReportIntervalSeconds": 120,
            "cpuReclaimThresholdPercent": 70,
            "memoryReclaimThresholdPercent": 70,
        },
        "resource-threshold-config": {
            "clusterStrategy": {
                "enable": True,
                "cpuSuppressThresholdPercent": 70,
                "cpuEvictBESatisfactionLowerPercent": 50,
                "cpuEvictBESatisfactionUpperPercent": 70,
                "cpuEvictBEUsageThresholdPercent": 80,
                "cpuEvictTimeWindowSeconds": 120,
                "memoryEvictThresholdPercent": 80,
            }
        },
        "resource-qos-config": {
            "clusterStrategy": {
                "lsClass": {"cpuQOS": {"enable": True, "groupIdentity": 2}},
                "beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}},
            }
        },
        "cpu-burst-config": {"clusterStrategy": {"policy": "auto"}},
    }
    return {name: json.dumps(document) for name, document in documents.items()}


GATES = frozenset({"BECPUSuppress", "CPUBurst", "BECPUEvict", "BEMemoryEvict", "GroupIdentity"})


def job(number: int, chance: Random) -> Obj:
    """Return a Job as users write it: plain CPU and memory. The profile makes its pods batch pods."""
    cpus = chance.choice((1, 2, 2, 3, 4))
    minutes = chance.triangular(10, 90, 30)
    uses = {"model": "constant", "cpu": f"{chance.randint(85, 100)}%", "memory": f"{chance.randint(50, 85)}%"}
    amounts = {"cpu": str(cpus), "memory": f"{2 * cpus}Gi"}
    name = f"{chance.choice(('etl', 'train', 'report', 'encode'))}-{number}"
    pod = {
        "metadata": {
            "labels": {COLOCATION_LABEL: "true", "app": name},
            "annotations": {
                "sim.koord.sh/usage": json.dumps(uses),
                "sim.koord.sh/run-seconds": str(round(60 * minutes)),
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "work", "image": "work", "resources": {"requests": amounts, "limits": amounts}}],
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": JOB_NAMESPACE},
        "spec": {"backoffLimit": 6, "template": pod},
    }


def _deployment(service: SimulatedService) -> Obj:
    uses: Obj = {"model": "trace", "name": SALE}
    if service.cpu != (0, 0):
        low, high = service.cpu
        uses = {
            "model": "daily",
            "cpu": [f"{low}m", f"{high}m"],
            "memory": ["55%", "75%"],
            "peakHour": service.peak_hour,
            "noise": 0.15,
        }
    amounts = {"cpu": f"{service.request_milli}m", "memory": f"{service.memory_mib}Mi"}
    labels = {"app": service.name, "koordinator.sh/qosClass": "LS"}
    container = {"name": "app", "image": service.name, "resources": {"requests": amounts, "limits": _limits(service)}}
    template = {
        "metadata": {"labels": labels, "annotations": {"sim.koord.sh/usage": json.dumps(uses)}},
        "spec": {"priorityClassName": "koord-prod", "schedulerName": "koord-scheduler", "containers": [container]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": service.name, "namespace": SERVICE_NAMESPACE},
        "spec": {
            "replicas": service.replicas,
            "selector": {"matchLabels": {"app": service.name}},
            "template": template,
        },
    }


def _limits(service: SimulatedService) -> Obj:
    return {"cpu": f"{2 * service.request_milli}m", "memory": f"{2 * service.memory_mib}Mi"}


_LOG = logging.getLogger(__name__)


class JobSubmitter:
    """Submits a job every `every_s` on average, but none while `backlog` of their pods wait for a node."""

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: Clock,
        chance: Random,
        make: Callable[[int, Random], dict[str, Any]],
        *,
        namespace: str,
        every_s: float,
        backlog: int,
        after_s: float,
    ) -> None:
        self._client = client
        self._jobs = informers.for_resource(JOBS)
        self._pods = informers.for_resource(PODS)
        self._clock = clock
        self._chance = chance
        self._make = make
        self._namespace = namespace
        self._every_s = every_s
        self._backlog = backlog
        self._after_s = after_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._news: HandlerRegistration[Job] | None = None
        self.submitted = 0
        self.done = 0
        self.failed = 0
        self._closed: set[str] = set()

    @property
    def waiting(self) -> int:
        """Return the number of pods of jobs that have no node yet."""
        return sum(1 for pod in self._mine() if not pod.spec.node_name)

    @property
    def running(self) -> int:
        return sum(1 for pod in self._mine() if pod.spec.node_name and pod.status.phase == "Running")

    async def start(self) -> None:
        self._news = self._jobs.add_event_handler(self._look)
        self._spawn(self._submit())

    async def stop(self) -> None:
        if self._news is not None:
            self._jobs.remove_event_handler(self._news)
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _submit(self) -> None:
        await self._clock.sleep(self._after_s)
        while True:
            await self._clock.sleep(self._chance.expovariate(1 / self._every_s))
            if self.waiting >= self._backlog:
                continue
            answer = await self._client.create(JOBS, self._make(self.submitted, self._chance))
            if isinstance(answer, ApiError):
                _LOG.warning("a job was refused: %s", answer)
            else:
                self.submitted += 1

    def _look(self, change: ObjectChange[Job]) -> None:
        job = change.object
        meta = job.metadata
        if change.kind == "deleted" or meta.namespace != self._namespace or meta.uid in self._closed:
            return
        ended = {one.type for one in job.status.conditions if one.status == "True"} & {"Complete", "Failed"}
        if ended:
            self._closed.add(meta.uid)
            self.done += "Complete" in ended
            self.failed += "Failed" in ended
            self._spawn(self._clear(meta.name))

    async def _clear(self, name: str) -> None:
        answer = await self._client.dynamic.delete(JOBS, name, self._namespace, propagation="Background")
        if isinstance(answer, ApiError) and not answer.not_found:
            _LOG.warning("job %s cannot be cleared away: %s", name, answer)

    def _mine(self) -> list[Pod]:
        return self._pods.list(self._namespace)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
