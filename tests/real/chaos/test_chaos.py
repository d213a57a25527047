"""koord's programs on a real kube-apiserver and etcd while processes, servers and networks fail: what must hold, holds.

Three minutes in a usual run; KOORD_CHAOS_MINUTES makes it as long as wanted (`make soak`), KOORD_CHAOS_SEED another
run. The figures are written as JSON to KOORD_CHAOS_FIGURES, or to the test's folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS, DEVICES, ELASTIC_QUOTAS, NODE_RESOURCE_TOPOLOGIES
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESOURCE_STATUS, NAMESPACE
from koord.api.kubernetes.builtin_kinds import (
    CUSTOM_RESOURCE_DEFINITIONS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    NODES,
    PODS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from koord.api.kubernetes.resource import Resource
from koord.api.schema import crd_manifests
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.manager.webhook_server.cert_rotator import MUTATING_NAME, VALIDATING_NAME
from koord.values.quantity import Quantity
from tests import cluster_rules
from tests.real.chaos import workload
from tests.real.chaos.programs import LEASE_S, ChildProgram, start_programs, wait_for_leader
from tests.real.reach import connect
from tools import assets, controlplane
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

MINUTES = float(os.environ.get("KOORD_CHAOS_MINUTES", "3"))
SEEDS = [int(os.environ.get("KOORD_CHAOS_SEED", "1"))]
RECOVERY_S = 120  # after the last fault, all pods are bound within this
PARTIAL_GANG_S = 60  # how long a gang may be bound in part while its members are being bound
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "resources": [{"group": "", "resources": ["pods/binding"]}]},
        {"level": "None"},
    ],
}
Json = dict[str, Any]


class ChaosRun:
    """One run: the cluster, the programs, what was done to them, and what was seen."""

    def __init__(self, plane: ControlPlane, folder: Path, seed: int) -> None:
        self.plane = plane
        self.folder = folder
        self.random = Random(seed)
        self.client: Client = connect(plane.kubeconfig)
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
        await self.client.close()

    # The cluster -----------------------------------------------------------------------------------------------------

    async def patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer, however long the server is away. What exists already was made by a lost answer."""
        async with asyncio.timeout(120):
            while True:
                try:
                    found = await call()
                except TRANSIENT_ERRORS:
                    found = None
                if found is not None and not (isinstance(found, ApiError) and found.status.code >= 429):
                    if isinstance(found, ApiError) and not (found.already_exists or found.not_found):
                        raise AssertionError(found.message)
                    return found
                await asyncio.sleep(0.3)

    async def create(self, resource: Resource[Any], body: Json, space: str = "") -> None:
        await self.patiently(lambda: self.client.dynamic.create(resource, body, space))

    async def prepare(self) -> None:
        for manifest in crd_manifests():
            await self.create(CUSTOM_RESOURCE_DEFINITIONS, manifest)
        for space in (NAMESPACE, workload.SPACE):
            await self.create(NAMESPACES, {"metadata": {"name": space}})
        for kind in CUSTOM_KINDS:  # they are served a moment after they were made
            await self.patiently(partial(self._served, kind))
        for number in range(workload.NODE_COUNT):
            made = workload.node(number)
            await self.create(NODES, made)
            status, name = {"status": made["status"]}, made["metadata"]["name"]
            patch = partial(self.client.dynamic.patch, NODES, name, status, kind="merge", subresource="status")
            await self.patiently(patch)
            await self.create(NODE_RESOURCE_TOPOLOGIES, workload.topology(number))
            await self.create(DEVICES, workload.device(number))
        # The manager keeps certificates in these; without entries the API server calls nobody.
        await self.create(MUTATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": MUTATING_NAME}, "webhooks": []})
        await self.create(VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": VALIDATING_NAME}, "webhooks": []})
        for name in workload.QUOTAS:
            await self.create(ELASTIC_QUOTAS, workload.quota(name), NAMESPACE)

    async def _served(self, kind: Resource[Any]) -> Any:
        found = await self.client.dynamic.list(kind)
        return None if isinstance(found, ApiError) else found

    async def look(self) -> None:
        """Read the cluster, and note what is wrong with it."""
        self.pods = list((await self.patiently(lambda: self.client.dynamic.list(PODS, workload.SPACE))).items)
        nodes = (await self.patiently(lambda: self.client.dynamic.list(NODES))).items
        alive = [pod for pod in self.pods if not pod["metadata"].get("deletionTimestamp")]
        bound = [pod for pod in self.pods if cluster_rules.node_name(pod)]
        for seen, key in ((self.bound, ""), (self.with_cpus, A_RESOURCE_STATUS), (self.with_cards, A_DEVICE_ALLOCATED)):
            seen |= {
                pod["metadata"]["name"] for pod in bound if not key or key in pod["metadata"].get("annotations", {})
            }
        wrong = cluster_rules.overcommitted_nodes(bound, nodes)
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
                await self.patiently(partial(self.client.dynamic.delete, PODS, name, workload.SPACE, grace_seconds=0))
                self.deleted += 1
            self.pods = [pod for pod in self.pods if pod["metadata"]["labels"]["chaos/batch"] != batch]
            return
        for pod in self._maker.batch():
            await self.create(PODS, pod, workload.SPACE)
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
        self.programs = start_programs(self.plane, self.folder)
        self.schedulers = self.programs[:2]
        await self._leader()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self._busy_for(self.random.uniform(2, 6))
            await self.fault()
            self._supervise()
            await self.look()
            self.recoveries_s.append(await self.recovered())
        await self.rest()

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
        return waiting

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
                reasons = {pod["metadata"]["name"]: pod.get("status", {}).get("conditions") for pod in self.pods}
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
        lines = (self.folder / "audit.log").read_text().rpartition("\n")[0].splitlines()
        self.note(cluster_rules.bound_twice(json.loads(line) for line in lines))

    def figures(self, seconds: float) -> Json:
        recoveries = sorted(self.recoveries_s)
        return {
            "seconds": round(seconds, 1),
            "pods_created": self.created,
            "pods_deleted": self.deleted,
            "pods_seen_bound": len(self.bound),
            "pods_seen_with_cpus": len(self.with_cpus),
            "pods_seen_with_cards": len(self.with_cards),
            "faults": dict(sorted(self.faults.items())),
            "restarts": self.restarts,
            "recovery_s": {
                "median": round(recoveries[len(recoveries) // 2], 1) if recoveries else None,
                "worst": round(recoveries[-1], 1) if recoveries else None,
            },
            "violations": self.violations,
        }


@pytest.fixture
def control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    (tmp_path / "policy.json").write_text(json.dumps(POLICY))
    audit = ["--audit-policy-file", str(tmp_path / "policy.json"), "--audit-log-mode", "blocking"]
    with controlplane.running([*audit, "--audit-log-path", str(tmp_path / "audit.log")]) as plane:
        yield plane


def write_figures(figures: Json, folder: Path) -> None:
    file = Path(os.environ.get("KOORD_CHAOS_FIGURES") or folder / "figures.json")
    file.write_text(json.dumps(figures, indent=2))


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_must_hold_holds(control_plane: ControlPlane, tmp_path: Path, seed: int) -> None:
    chaos = ChaosRun(control_plane, tmp_path, seed)
    began = time.monotonic()
    try:
        await chaos.prepare()
        await chaos.run(60 * MINUTES)
    finally:
        figures = chaos.figures(time.monotonic() - began)
        write_figures(figures, tmp_path)
        await chaos.close()
    assert not figures["violations"], "\n".join(figures["violations"])
    assert figures["pods_created"] > 10 * MINUTES
    assert sum(figures["faults"].values()) > 0
    assert min(figures[name] for name in figures if name.startswith("pods_seen")) > 0  # or nothing was looked at
