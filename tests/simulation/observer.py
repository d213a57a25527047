"""What must hold at every moment, judged from outside: by the objects that the API server stores, change by change."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Any

from koord.api.koordinator.protocol import (
    A_DEVICE_ALLOCATED,
    A_RESOURCE_STATUS,
    L_POD_GROUP,
    L_QUOTA_NAME,
)
from koord.telemetry.clock import Clock
from koord.values.cpuset import CPUSet
from koord.values.quantity import Quantity
from tests.simulation.network import EvictionAnswer, SimulatedServer

Obj = dict[str, Any]
JOB_TTL_S = 360.0  # of migration jobs, with some time to notice it


class Observer:
    """Follows pods, nodes, quotas and migration jobs, and writes down what must never be."""

    def __init__(self, clock: Clock, evictions: list[EvictionAnswer]) -> None:
        """`evictions` are those that were answered so far, and it grows."""
        self._clock = clock
        self._evictions = evictions
        self.violations: list[str] = []
        self.events = 0
        self.bindings = 0
        self.pods: dict[str, Obj] = {}  # uid -> live pod
        self._node_of: dict[str, str] = {}  # also of pods that are gone
        self._on_node: dict[str, dict[str, Obj]] = defaultdict(dict)
        self.nodes: dict[str, Obj] = {}
        self.quotas: dict[str, Obj] = {}
        self.jobs: dict[str, Obj] = {}
        self._phases: dict[
            str, dict[str, str]
        ] = {}  # uid of a pod -> last phase of each of its migration jobs; empty once the job noted an eviction

    def observe(self, server: SimulatedServer) -> None:
        """Look at every change that a simulated server stores."""
        handlers: dict[str, Callable[[str, Obj], None]] = {
            "pods": self.on_pod,
            "nodes": self.on_node,
            "elasticquotas.scheduling.sigs.k8s.io": self.on_quota,
            "podmigrationjobs.scheduling.koordinator.sh": self.on_job,
        }
        for resource, handler in handlers.items():
            server.observe(resource, lambda event, handler=handler: handler(event.type, event.record.plain()))

    def _say(self, what: str) -> None:
        self.violations.append(f"{self._clock.monotonic():.3f}: {what}")

    def on_node(self, _: str, obj: Obj) -> None:
        self.events += 1
        self.nodes[obj["metadata"]["name"]] = obj

    def on_quota(self, _: str, obj: Obj) -> None:
        self.events += 1
        self.quotas[obj["metadata"]["name"]] = obj

    def on_job(self, change: str, obj: Obj) -> None:
        self.events += 1
        name = obj["metadata"]["name"]
        if change == "DELETED":
            self.jobs.pop(name, None)
            return
        self.jobs[name] = obj
        phases = self._phases.setdefault(obj["spec"]["podRef"].get("uid", ""), {})
        status = obj.get("status", {})
        noted = any(c["type"] == "Eviction" and c["status"] == "True" for c in status.get("conditions", ()))
        phases[name] = "" if noted else status.get("phase", "")  # one that noted it may fail for want of a successor

    def on_pod(self, change: str, obj: Obj) -> None:
        self.events += 1
        uid, node = obj["metadata"]["uid"], obj["spec"].get("nodeName", "")
        if change == "DELETED":
            self.pods.pop(uid, None)
            self._on_node[self._node_of.get(uid, "")].pop(uid, None)
            return
        self.pods[uid] = obj
        known = self._node_of.get(uid, "")
        if known and node != known:
            self._say(f"pod {obj['metadata']['name']} went from {known} to {node}")
        if node and obj["status"].get("phase") in ("Succeeded", "Failed"):
            self._on_node[node].pop(uid, None)
        elif node:
            self._on_node[node][uid] = obj
            if not known:
                self._node_of[uid] = node
                self.bindings += 1
                self._check_node(node)
                self._check_quota(obj)

    def _check_node(self, name: str) -> None:
        node, pods = self.nodes.get(name), self._on_node[name].values()
        if node is None:
            return
        sums: dict[str, int] = defaultdict(int)
        for pod in pods:
            for resource, amount in requests_of(pod).items():
                sums[resource] += amount
        room = node["status"]["allocatable"]
        for resource, amount in sums.items():
            if resource in ("cpu", "memory") and amount > milli(room.get(resource, "0")):
                self._say(f"{name} holds {amount}m {resource} of {room.get(resource)}")
        cpus: dict[int, str] = {}
        cards: dict[int, int] = defaultdict(int)
        for pod in pods:
            who, notes = pod["metadata"]["name"], pod["metadata"].get("annotations", {})
            if text := notes.get(A_RESOURCE_STATUS):
                for cpu in CPUSet.parse(json.loads(text).get("cpuset", "")):
                    if cpu in cpus:
                        self._say(f"CPU {cpu} of {name} belongs to {cpus[cpu]} and {who}")
                    cpus[cpu] = who
            for card in json.loads(notes.get(A_DEVICE_ALLOCATED, "{}")).get("gpu", ()):
                cards[card["minor"]] += milli(card["resources"].get("koordinator.sh/gpu-core", "0"))
        for minor, held in cards.items():
            if held > 100_000:
                self._say(f"GPU {minor} of {name} is given out to {held // 1000} %")

    def _check_quota(self, pod: Obj) -> None:
        name = pod["metadata"].get("labels", {}).get(L_QUOTA_NAME, "")
        quota = self.quotas.get(name)
        if quota is None:
            return
        used = sum(
            requests_of(other).get("cpu", 0)
            for held in self._on_node.values()
            for other in held.values()
            if other["metadata"].get("labels", {}).get(L_QUOTA_NAME) == name
        )
        if used > milli(quota["spec"]["max"]["cpu"]):
            self._say(f"quota {name} uses {used}m CPU of {quota['spec']['max']['cpu']}")

    def check_at_rest(self) -> None:
        """Check what must hold once faults have ended and everybody has had time."""
        for wrong in self.wrong_at_rest():
            self._say(wrong)

    def wrong_at_rest(self) -> list[str]:
        found: list[str] = []
        gangs: dict[str, list[bool]] = defaultdict(list)
        for pod in self.pods.values():
            name, bound = pod["metadata"]["name"], bool(pod["spec"].get("nodeName"))
            told = [c for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"]
            if bound and any(c["status"] == "False" for c in told):
                found.append(f"{name} is bound, and its PodScheduled is False: {told}")
            if not bound and not told:
                found.append(f"nobody has looked at {name}")
            if gang := pod["metadata"].get("labels", {}).get(L_POD_GROUP):
                gangs[gang].append(bound)
        for gang, bound_members in gangs.items():
            if any(bound_members) and sum(bound_members) < int(gang.rpartition("-")[2]):
                found.append(f"gang {gang} runs with {sum(bound_members)} of its members")
        for uid in {e.uid for e in self._evictions if e.accepted and e.actor.startswith("koord-descheduler")}:
            phases = self._phases.get(uid, {})
            if phases and set(phases.values()) == {"Failed"}:
                found.append(f"a pod was evicted, and its migration jobs failed without noting it: {sorted(phases)}")
        for name, job in self.jobs.items():
            age_s = self._clock.time() - datetime.fromisoformat(job["metadata"]["creationTimestamp"]).timestamp()
            if age_s > JOB_TTL_S and job.get("status", {}).get("phase") in (None, "", "Running", "Pending"):
                found.append(f"migration job {name} has not ended: {job.get('status')}")
        return found

    def is_bound(self, name: str) -> bool:
        return any(p["metadata"]["name"] == name and p["spec"].get("nodeName") for p in self.pods.values())


def requests_of(pod: Obj) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for container in pod["spec"]["containers"]:
        for name, amount in container.get("resources", {}).get("requests", {}).items():
            found[name] += milli(amount)
    return found


def milli(text: str) -> int:
    return Quantity.parse(text).milli_value()
