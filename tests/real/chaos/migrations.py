"""ReplicaSets whose pods are moved by PodMigrationJobs, reservation first, while the descheduler is killed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koordinator.protocol import A_RESERVATION_ALLOCATED, SCHEDULER
from koord.api.kubernetes.builtin_kinds import PODS, REPLICA_SETS
from koord.api.kubernetes.pod import Pod
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.telemetry.clock import WallClock
from tests import cluster_rules
from tests.real.chaos.patient_client import PatientClient

Json = dict[str, Any]
SPACE = "movable"
REPLICAS = {"web": 4, "api": 3}
TTL = "10m"  # longer than any recovery, so that no job fails for want of time
MOST_JOBS = 3  # at once
EXPIRY_GRACE_S = 120.0
ENDED = ("Succeeded", "Failed")


class Migrations:
    def __init__(self, client: PatientClient, plain: Client, random: Random) -> None:
        self._client = client
        self._random = random
        clock = WallClock()
        self._informers = InformerFactory(plain, clock, seed=1)
        self._controllers = ControllerManager(plain, self._informers, clock, 1, only=("replicaset",))
        self._informers.for_resource(PODS).add_event_handler(self._on_pod)
        self.when_a_pod_goes: Callable[[], object] | None = None  # called once
        self._asked: set[str] = set()  # uids of pods that have or had a job: of two jobs one would wait in vain
        self.jobs: list[Json] = []
        self.pods: list[Json] = []

    async def prepare(self) -> None:
        for name, replicas in REPLICAS.items():
            await self._client.create(REPLICA_SETS, _replica_set(name, replicas), SPACE)
        await self._controllers.start()
        self._informers.start()

    async def close(self) -> None:
        await self._controllers.stop()
        await self._informers.stop()

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        """Call back as soon as an eviction shows: the answer to it and the status that notes it are on their way."""
        if change.kind == "deleted" and change.object.metadata.namespace == SPACE and self.when_a_pod_goes is not None:
            call, self.when_a_pod_goes = self.when_a_pod_goes, None
            call()

    async def look(self) -> None:
        """Read jobs and pods, and say what a kubelet would: a pod that has a node is ready."""
        self.jobs = await self._client.listed(POD_MIGRATION_JOBS)
        self.pods = await self._client.listed(PODS, SPACE)
        ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        for pod in self.pods:
            if cluster_rules.node_name(pod) and pod["status"].get("phase") == "Pending":
                conditions = [one for one in pod["status"].get("conditions", ()) if one["type"] != "Ready"]
                ready["status"]["conditions"] = [*conditions, {"type": "Ready", "status": "True"}]
                await self._client.merge(PODS, pod["metadata"]["name"], ready, SPACE, subresource="status")

    async def ask(self) -> bool:
        """Ask for one move, if few are under way; return whether it was asked for."""
        running = [
            pod
            for pod in self.pods
            if pod["status"].get("phase") == "Running"
            and pod["metadata"]["uid"] not in self._asked
            and not pod["metadata"].get("deletionTimestamp")
        ]
        if len(self._active()) >= MOST_JOBS or not running:
            return False
        meta = self._random.choice(running)["metadata"]
        self._asked.add(meta["uid"])
        spec = {
            "podRef": {"namespace": SPACE, "name": meta["name"], "uid": meta["uid"]},
            "mode": "ReservationFirst",
            "ttl": TTL,
        }
        await self._client.create(POD_MIGRATION_JOBS, {"metadata": {"name": f"job-{len(self._asked)}"}, "spec": spec})
        return True

    def _active(self) -> list[Json]:
        return [job for job in self.jobs if job.get("status", {}).get("phase") not in ENDED]

    def ended(self, phase: str) -> int:
        return sum(job.get("status", {}).get("phase") == phase for job in self.jobs)

    def failures(self) -> dict[str, int]:
        """Return how many jobs failed, by what each said."""
        said = (job["status"].get("message", "") for job in self.jobs if job.get("status", {}).get("phase") == "Failed")
        return dict(Counter(said))

    async def rest(self, seconds: float) -> list[str]:
        """Wait until every job has ended, or waits for its time to live; return those that do neither."""
        deadline = time.monotonic() + seconds
        while True:
            await self.look()
            if not (active := [job for job in self._active() if not self._lost_its_successor(job)]):
                return []
            if time.monotonic() > deadline:
                reservations = await self._client.listed(RESERVATIONS)
                return [self._describe_stuck(job, reservations) for job in active]
            await asyncio.sleep(0.5)

    def _lost_its_successor(self, job: Json) -> bool:
        """Return whether the pod was evicted and every successor has a node, none of them in this job's reservation.

        Pods and reservations are watched apart: a scheduler that has just begun to lead may hear of the new pod before
        it hears that the reservation is available. The job then ends with its time to live.
        """
        waits = job.get("status", {}).get("reason") == "WaitForPodBindReservation"
        return waits and all(cluster_rules.node_name(pod) for pod in self.pods)

    def without_successor(self) -> int:
        return sum(self._lost_its_successor(job) for job in self._active())

    def _describe_stuck(self, job: Json, reservations: list[Json]) -> str:
        """Return the job that has not ended, with all that decides when it ends."""
        places = {
            one["metadata"]["name"]: {"owners": one["spec"].get("owners"), "status": one.get("status")}
            for one in reservations
        }
        taken = {
            pod["metadata"]["name"]: (
                pod["spec"].get("nodeName"),
                (pod["metadata"].get("annotations") or {}).get(A_RESERVATION_ALLOCATED),
            )
            for pod in self.pods
        }
        meta = job["metadata"]
        return f"job {meta['name']} ({meta['uid']}) has not ended: {job.get('status')}; {places}; pods {taken}"

    async def judge(self, audit: list[Json]) -> list[str]:
        self.jobs = await self._client.listed(POD_MIGRATION_JOBS)
        reservations = await self._client.listed(RESERVATIONS)
        return [
            *cluster_rules.failed_though_evicted(self.jobs, cluster_rules.accepted_evictions(audit)),
            *cluster_rules.reservations_left(reservations, self.jobs, time.time(), EXPIRY_GRACE_S),
        ]


def _replica_set(name: str, replicas: int) -> Json:
    resources = {"requests": {"cpu": "500m", "memory": "128Mi"}}
    container = {"name": "c", "image": "registry.test/none:v1", "resources": resources}
    labels = {"app": name}
    spec = {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 0, "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }
