"""What users do to the simulated cluster: services, exclusive CPUs, GPUs, gangs, quotas, batch pods and migrations."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from koord.api.koordinator import custom_kinds
from koord.api.koordinator.protocol import L_POD_GROUP, L_QUOTA_NAME
from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, PODS, PRIORITY_CLASSES
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import Unreachable
from tests.scheduler.plugins.device_share.device_builders import REFERENCE_GPUS
from tests.scheduler.plugins.node_numa_resource.numa_cluster import topology
from tests.simulation.observer import Observer

GPU = "koordinator.sh/gpu"
LSR = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}
POOL = SimulatedPool(name="n", count=4, cpu=16, memory="64Gi", resources={GPU: "800"})
QUOTAS = {"q-small": "6", "q-large": "14"}
MOST_PODS = 40


class Workload:
    def __init__(self, client: Client, observer: Observer, chance: random.Random) -> None:
        self._client = client
        self._observer = observer
        self._chance = chance
        self._count = 0
        self._gangs: list[str] = []

    async def begin(self) -> None:
        for name, value in (("low", 1), ("high", 1000)):
            unwrap(await self._client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
        for number in range(POOL.count):
            name = POOL.node_name(number)
            devices = {"metadata": {"name": name}, "spec": {"devices": REFERENCE_GPUS}}
            await self._client.create(custom_kinds.DEVICES, devices)
            body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(topology(name)))
            kind = {"apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology"}
            await self._client.create(custom_kinds.NODE_RESOURCE_TOPOLOGIES, {**body, **kind})
        for name, cpu in QUOTAS.items():
            meta = {"name": name, "namespace": "default"}
            amounts = {"min": {"cpu": cpu}, "max": {"cpu": cpu, "memory": "512Gi", GPU: "3200"}}
            unwrap(await self._client.create(custom_kinds.ELASTIC_QUOTAS, {"metadata": meta, "spec": amounts}))
        meta = {"name": "svc", "namespace": "default"}
        template = {
            "metadata": {"labels": {"app": "svc"}},
            "spec": _spec({"cpu": "500m", "memory": "512Mi"}, priorityClassName="low"),
        }
        spec = {"replicas": 6, "selector": {"matchLabels": {"app": "svc"}}, "template": template}
        unwrap(await self._client.create(DEPLOYMENTS, {"metadata": meta, "spec": spec}))

    async def step(self) -> None:
        """Do one thing that a user may do; while the server is away nobody can do anything."""
        deeds = {self._pod: 10, self._gang: 2, self._remove: 8, self._remove_gang: 1, self._migrate: 2, self._scale: 1}
        (deed,) = self._chance.choices(list(deeds), list(deeds.values()))
        try:
            await deed()
        except Unreachable:
            return

    async def clear(self) -> None:
        """Remove every pod that nobody owns, so that what remains must find room."""
        for pod in list(self._observer.pods.values()):
            if not pod["metadata"].get("ownerReferences"):
                await self._client.delete(PODS, pod["metadata"]["name"], "default", grace_seconds=0)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    async def _pod(self) -> None:
        if len(self._observer.pods) > MOST_PODS:
            return await self._remove()
        kind = self._chance.choice(("plain", "cpus", "gpu", "quota", "quota", "batch"))
        labels: dict[str, str] = {}
        requests = {"cpu": str(self._chance.choice((1, 2, 4))), "memory": "1Gi"}
        more: dict[str, Any] = {"priorityClassName": self._chance.choice(("low", "low", "high"))}
        if kind == "cpus":
            labels = dict(LSR)
        elif kind == "gpu":
            requests[GPU] = str(self._chance.choice((50, 100, 200)))
        elif kind == "quota":
            labels = {L_QUOTA_NAME: self._chance.choice(sorted(QUOTAS))}
        elif kind == "batch":
            requests = {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1Gi"}
            labels, more = {"koordinator.sh/qosClass": "BE"}, {"priorityClassName": "koord-batch"}
        await self.create_pod(self._name(kind), requests, labels, **more)
        return None

    async def create_pod(self, name: str, requests: dict[str, str], labels: dict[str, str], **more: Any) -> None:
        meta = {"name": name, "namespace": "default", "labels": labels}
        await self._client.create(PODS, {"metadata": meta, "spec": _spec(requests, **more)})

    async def _gang(self) -> None:
        members = self._chance.randrange(2, 5)
        name = f"{self._name('gang')}-{members}"
        meta = {"name": name, "namespace": "default"}
        await self._client.create(custom_kinds.POD_GROUPS, {"metadata": meta, "spec": {"minMember": members}})
        self._gangs.append(name)
        for number in range(members):
            labels = {L_POD_GROUP: name}
            await self.create_pod(f"{name}-m{number}", {"cpu": "2"}, labels, priorityClassName="high")

    async def _remove_gang(self) -> None:
        if not self._gangs:
            return
        name = self._gangs.pop(self._chance.randrange(len(self._gangs)))
        for pod in [
            p for p in self._observer.pods.values() if p["metadata"].get("labels", {}).get(L_POD_GROUP) == name
        ]:
            await self._client.delete(PODS, pod["metadata"]["name"], "default", grace_seconds=0)
        await self._client.delete(custom_kinds.POD_GROUPS, name, "default")

    async def _remove(self) -> None:
        free = [
            pod
            for pod in self._observer.pods.values()
            if not pod["metadata"].get("ownerReferences") and L_POD_GROUP not in pod["metadata"].get("labels", {})
        ]
        if free:
            pod = self._chance.choice(free)
            grace = self._chance.choice((0, 0, 5))
            await self._client.delete(PODS, pod["metadata"]["name"], "default", grace_seconds=grace)

    async def _migrate(self) -> None:
        services = [
            p
            for p in self._observer.pods.values()
            if p["metadata"].get("labels", {}).get("app") == "svc" and p["spec"].get("nodeName")
        ]
        if not services:
            return
        pod = self._chance.choice(services)["metadata"]
        spec = {
            "podRef": {"namespace": "default", "name": pod["name"], "uid": pod["uid"]},
            "mode": self._chance.choice(("ReservationFirst", "EvictDirectly")),
            "ttl": "3m",
        }
        await self._client.create(
            custom_kinds.POD_MIGRATION_JOBS, {"metadata": {"name": self._name("job")}, "spec": spec}
        )

    async def _scale(self) -> None:
        replicas = {"spec": {"replicas": self._chance.randrange(3, 9)}}
        answer = await self._client.patch(DEPLOYMENTS, "svc", replicas, "default", kind="merge")
        assert not isinstance(answer, ApiError), answer


def _spec(requests: dict[str, str], **more: Any) -> dict[str, Any]:
    limits = {name: amount for name, amount in requests.items() if "/" in name}
    container = {"name": "c", "image": "app", "resources": {"requests": requests, "limits": limits}}
    return {
        "schedulerName": "koord-scheduler",
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        **more,
    }
