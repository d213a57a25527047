"""One chaos run: a cluster, its programs, what is done to them, and what was seen.

Faults of the main sequence come one after the other, each followed by a recovery. Beside them the descheduler is killed
in the middle of migrations, and the manager is killed and its certificate replaced while the API server calls it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS, DEVICES, ELASTIC_QUOTAS, NODE_RESOURCE_TOPOLOGIES
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESOURCE_STATUS, NAMESPACE
from koord.api.kubernetes.builtin_kinds import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, NODES, PODS
from koord.api.schema import crd_manifests
from koord.kube.client.typed_client import Client
from koord.values.quantity import Quantity
from tests import cluster_rules
from tests.real.chaos import migrations, workload
from tests.real.chaos.admission import Admission, AuditReader
from tests.real.chaos.migrations import Migrations
from tests.real.chaos.patient_client import PatientClient
from tests.real.chaos.programs import LEASE_S, ChildProgram, start_programs, wait_for_leader
from tests.real.reach import connect
from tools.controlplane import ControlPlane, free_port

RECOVERY_S = 120  # after the last fault, all pods are bound within this
PARTIAL_GANG_S = 60  # how long a gang may be bound in part while its members are being bound
REPORT_S = 60  # between two reports of the nodes' usage
# What a node lends to batch pods shrinks while they run, so it is no limit at every moment.
CHECKED_RESOURCES = ("cpu", "memory", "pods", workload.CORE, workload.MEMORY, workload.RATIO)
Json = dict[str, Any]


class ChaosRun:
    """One run: the cluster, the programs, what was done to them, and what was seen."""

    def __init__(self, plane: ControlPlane, folder: Path, seed: int) -> None:
        self.plane = plane
        self.folder = folder
        self.random = Random(seed)
        self._connection: Client = connect(plane.kubeconfig)
        self.client = PatientClient(self._connection)
        self.admission = Admission(self.client, free_port())
        self.migrations = Migrations(self.client, self._connection, self.random)
        self._audit = AuditReader(folder / "audit.log")
        self.programs: list[ChildProgram] = []
        self.schedulers: list[ChildProgram] = []
        self.faults: Counter[str] = Counter()
        self.violations: list[str] = []
        self.recoveries_s: list[float] = []
        self.created = self.deleted = self.restarts = 0
        self.pods: list[Json] = []
        self.bound: set[str] = set()  # names of pods that were seen bound, by what they were given
        self.with_cpus: set[str] = set()
        self.with_cards: set[str] = set()
        self._partial_since: dict[str, float] = {}
        self._maker = workload.PodMaker(self.random)

    async def close(self) -> None:
        for program in self.programs:
            await asyncio.to_thread(program.close)
        await self.migrations.close()
        await self._connection.close()

    # The cluster -----------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        client = self.client
        for manifest in crd_manifests():
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, manifest)
        for space in (NAMESPACE, workload.SPACE, migrations.SPACE):
            await client.create(NAMESPACES, {"metadata": {"name": space}})
        for kind in CUSTOM_KINDS:
            await client.served(kind)
        for number in range(workload.NODE_COUNT):
            made = workload.node(number)
            await client.create(NODES, made)
            await client.merge(NODES, made["metadata"]["name"], {"status": made["status"]}, subresource="status")
            await client.create(NODE_RESOURCE_TOPOLOGIES, workload.topology(number))
            await client.create(DEVICES, workload.device(number))
        for name in workload.QUOTAS:
            await client.create(ELASTIC_QUOTAS, workload.quota(name), NAMESPACE)
        await self.admission.prepare()
        await self.migrations.prepare()

    async def look(self) -> None:
        """Read the cluster, and note what is wrong with it."""
        self.pods = await self.client.listed(PODS, workload.SPACE)
        await self.migrations.look()
        nodes = await self.client.listed(NODES)
        alive = [pod for pod in self.pods if not pod["metadata"].get("deletionTimestamp")]
        bound = [pod for pod in (*self.pods, *self.migrations.pods) if cluster_rules.node_name(pod)]
        for seen, key in ((self.bound, ""), (self.with_cpus, A_RESOURCE_STATUS), (self.with_cards, A_DEVICE_ALLOCATED)):
            seen |= {
                pod["metadata"]["name"] for pod in bound if not key or key in pod["metadata"].get("annotations", {})
            }
        wrong = cluster_rules.overcommitted_nodes(bound, nodes, CHECKED_RESOURCES)
        wrong += cluster_rules.cpus_given_twice(bound)
        wrong += cluster_rules.cards_given_twice(bound)
        wrong += cluster_rules.quotas_exceeded(bound, workload.QUOTAS)
        moment = time.monotonic()
        halves = cluster_rules.partial_gangs(alive, workload.gang_of)
        self._partial_since = {gang: self._partial_since.get(gang, moment) for gang in halves}
        wrong += [
            f"gang {gang} has been bound in part for too long"
            for gang, since in self._partial_since.items()
            if moment - since > PARTIAL_GANG_S + LEASE_S
        ]
        wrong += await self.admission.look()
        wrong += self.admission.judge(self.pods, self._audit.read())
        self.note(wrong)

    def note(self, wrong: list[str]) -> None:
        self.violations += [each for each in wrong if each not in self.violations]

    async def come_and_go(self) -> None:
        """Create some pods and delete some, by whole gangs."""
        asked = sum(
            (cluster_rules.pod_requests(pod).get("cpu", Quantity.parse("0")) for pod in self.pods), Quantity.parse("0")
        )
        room = Quantity.parse(str(int(workload.NODE_COUNT * workload.CPUS * workload.FULL)))
        if asked > room or (self.pods and self.random.random() < 0.4):
            batch = self.random.choice(self.pods)["metadata"]["labels"]["chaos/batch"]
            for pod in [pod for pod in self.pods if pod["metadata"]["labels"]["chaos/batch"] == batch]:
                name = pod["metadata"]["name"]
                delete = partial(self.client.plain.delete, PODS, name, workload.SPACE, grace_seconds=0)
                await self.client.patiently(delete)
                self.deleted += 1
            self.pods = [pod for pod in self.pods if pod["metadata"]["labels"]["chaos/batch"] != batch]
            return
        for pod in self._maker.batch():
            await self.client.create(PODS, pod, workload.SPACE)
            self.created += 1
            self.pods.append(pod)

    # Faults ----------------------------------------------------------------------------------------------------------

    async def fault(self) -> None:
        kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "kill-leader": self._kill_leader,
            "kill-standby": self._kill_standby,
            "stop-leader": self._stop_leader,
            "cut-leader": lambda: self._network("refuse", self.random.uniform(1, 2 * LEASE_S)),
            "silent-leader": lambda: self._network("silent", self.random.uniform(1, 2 * LEASE_S)),
            "slow-leader": lambda: self._network("slow", self.random.uniform(2, LEASE_S)),
            "kill-manager-and-descheduler": self._kill_others,
            "restart-apiserver": lambda: self._restart("kube-apiserver"),
            "restart-etcd": lambda: self._restart("etcd"),
        }
        name = self.random.choice(list(kinds))
        self.faults[name] += 1
        await kinds[name]()

    async def _leader(self) -> ChildProgram:
        found = await asyncio.to_thread(wait_for_leader, self.schedulers, 60)
        if found is None:
            self.note(["nobody leads for 60 s: " + " | ".join(each.log_tail()[-500:] for each in self.schedulers)])
            return self.schedulers[0]
        return found

    async def _kill_leader(self) -> None:
        (await self._leader()).signal(signal.SIGKILL)

    async def _kill_standby(self) -> None:
        leader = await self._leader()
        next(each for each in self.schedulers if each is not leader).signal(signal.SIGKILL)

    async def _stop_leader(self) -> None:
        leader = await self._leader()
        leader.signal(signal.SIGSTOP)
        try:
            await self._busy_for(self.random.uniform(LEASE_S, 2 * LEASE_S))
        finally:
            leader.signal(signal.SIGCONT)

    async def _network(self, mode: Any, seconds: float) -> None:
        leader = await self._leader()
        leader.network.set_mode(mode)
        try:
            await self._busy_for(seconds)
        finally:
            leader.network.set_mode("pass")

    async def _kill_others(self) -> None:
        for program in self.programs[2:]:
            program.signal(signal.SIGKILL)

    async def _restart(self, name: str) -> None:
        await asyncio.to_thread(self.plane.kill, name)
        await asyncio.sleep(self.random.uniform(0, 3))
        await asyncio.to_thread(self.plane.start, name)
        await asyncio.to_thread(self.plane.wait)

    async def _busy_for(self, seconds: float) -> None:
        """Let pods come and go while a fault lasts."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self.come_and_go()
            await asyncio.sleep(0.1)

    # The run ---------------------------------------------------------------------------------------------------------

    async def run(self, seconds: float) -> None:
        self.programs = start_programs(self.plane, self.folder, self.admission.port)
        self.schedulers = self.programs[:2]
        await self._leader()
        async with asyncio.TaskGroup() as beside:
            tasks = [
                beside.create_task(each)
                for each in (self._report_usage(), self._disturb_migrations(), self._disturb_admission())
            ]
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                await self._busy_for(self.random.uniform(2, 6))
                await self.fault()
                self._supervise()
                await self.look()
                self.recoveries_s.append(await self.recovered())
            for task in tasks[1:]:
                task.cancel()
            await self.rest()
            tasks[0].cancel()

    async def _report_usage(self) -> None:
        while True:
            await self.admission.report_usage()
            await asyncio.sleep(REPORT_S if self.admission.mutated else 2)

    async def _disturb_migrations(self) -> None:
        """Kill the descheduler at any moment of a migration."""
        descheduler = self.programs[3]
        while True:
            while not await asyncio.to_thread(descheduler.leads):
                descheduler.supervise()
                await asyncio.sleep(0.2)
            if self.random.random() < 0.5:  # in the moment of an eviction, or at any
                self.migrations.when_a_pod_goes = partial(descheduler.signal, signal.SIGKILL)
            await self.migrations.ask()
            await asyncio.sleep(self.random.uniform(0, 4))
            self.migrations.when_a_pod_goes = None
            self.faults["kill-descheduler"] += 1
            descheduler.signal(signal.SIGKILL)
            if self.random.random() < 0.5:  # every other time it may finish what it began
                await self._until_leads_for(descheduler, 5)

    async def _until_leads_for(self, program: ChildProgram, seconds: float) -> None:
        while not await asyncio.to_thread(program.leads):
            self._supervise()
            await asyncio.sleep(0.2)
        await self.migrations.ask()
        await asyncio.sleep(seconds)

    async def _disturb_admission(self) -> None:
        """Kill the manager while it is called, and take its certificate away."""
        manager = self.programs[2]
        while True:
            await asyncio.sleep(self.random.uniform(8, 20))
            if self.random.random() < 0.5:
                self.faults["replace-certificate"] += 1
                await self.admission.rotate()
                await asyncio.sleep(self.random.uniform(0, 15))
            self.faults["kill-manager"] += 1
            manager.signal(signal.SIGKILL)
            await asyncio.sleep(self.random.uniform(0, 3))
            self._supervise()

    def _supervise(self) -> None:
        self.restarts += sum(program.supervise() for program in self.programs)

    def _waiting(self) -> list[str]:
        """Return the pods that fit and are not bound. One above its quota's maximum does not fit."""
        free = {
            quota: {name: Quantity.parse(limit) for name, limit in limits.items()}
            for quota, limits in workload.QUOTAS.items()
        }
        pods = sorted(self.pods, key=lambda pod: not cluster_rules.node_name(pod))
        waiting = []
        for pod in pods:
            quota = pod["metadata"]["labels"].get("quota.scheduling.koordinator.sh/name")
            if quota is not None:
                left = free[quota]
                left["cpu"] = left["cpu"] - cluster_rules.pod_requests(pod)["cpu"]
                if left["cpu"] < Quantity.parse("0"):
                    continue
            if not cluster_rules.node_name(pod):
                waiting.append(pod["metadata"]["name"])
        return waiting + [pod["metadata"]["name"] for pod in self.migrations.pods if not cluster_rules.node_name(pod)]

    async def recovered(self) -> float:
        """Return the seconds until all that fits is bound."""
        began = time.monotonic()
        while True:
            self._supervise()
            await self.look()
            waiting = self._waiting()
            took = time.monotonic() - began
            if not waiting:
                return took
            if took > RECOVERY_S:
                reasons = {
                    pod["metadata"]["name"]: pod.get("status", {}).get("conditions")
                    for pod in (*self.pods, *self.migrations.pods)
                }
                self.note([f"not bound {RECOVERY_S} s after a fault: {name}: {reasons[name]}" for name in waiting])
                return took
            await asyncio.sleep(0.5)

    async def rest(self) -> None:
        """Wait until nothing moves, and look once more."""
        await self.recovered()
        async with asyncio.timeout(60):
            while True:
                await self.look()
                if not (wrong := cluster_rules.refused_though_bound(self.pods) + list(self._partial_since)):
                    break
                await asyncio.sleep(1)
                if time.monotonic() - min(self._partial_since.values(), default=time.monotonic()) > 50:
                    break
        self.note(wrong)
        self.note(await self.migrations.rest(RECOVERY_S))
        await self.look()
        self.note(await self.migrations.judge(self._audit.events))
        self.note(cluster_rules.bound_twice(self._audit.events))

    def figures(self, seconds: float) -> Json:
        recoveries = sorted(self.recoveries_s)
        return {
            "seconds": round(seconds, 1),
            "pods_created": self.created,
            "pods_deleted": self.deleted,
            "pods_seen_bound": len(self.bound),
            "pods_seen_with_cpus": len(self.with_cpus),
            "pods_seen_with_cards": len(self.with_cards),
            "pods_seen_mutated": len(self.admission.mutated),
            "pods_passed_over_by_webhooks": len(self.admission.passed_over),
            "webhook_handshakes": self.admission.handshakes,
            "webhook_certificates": len(self.admission.certificates),
            "migrations_succeeded": self.migrations.ended("Succeeded"),
            "migrations_without_successor": self.migrations.without_successor(),
            "migrations_failed": self.migrations.failures(),
            "faults": dict(sorted(self.faults.items())),
            "restarts": self.restarts,
            "recovery_s": {
                "median": round(recoveries[len(recoveries) // 2], 1) if recoveries else None,
                "worst": round(recoveries[-1], 1) if recoveries else None,
            },
            "violations": self.violations,
        }
