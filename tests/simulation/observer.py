"""What must hold at every moment, judged from outside: by the objects that the API server stores, change by change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from typing import Any

from koord.api.koordinator.protocol import L_POD_GROUP
from koord.telemetry.clock import Clock
from tests import cluster_rules
from tests.simulation.network import EvictionAnswer, SimulatedServer

Obj = dict[str, Any]
JOB_TTL_S = 360.0  # of migration jobs, with some time to notice it
EXPIRY_GRACE_S = 120.0  # a reservation has ended so long after its time to live
# What a node lends to batch pods shrinks while they run, so it is no limit at every moment.
CHECKED_RESOURCES = ("cpu", "memory", "pods", "koordinator.sh/gpu")


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
        self.reservations: dict[str, Obj] = {}
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
            "reservations.scheduling.koordinator.sh": self.on_reservation,
        }
        for resource, handler in handlers.items():
            server.observe(resource, lambda event, handler=handler: handler(event.type, event.record.plain()))

    def _say(self, what: str) -> None:
        self.violations.append(f"{self._clock.monotonic():.3f}: {what}")

    def _say_all(self, violations: list[str]) -> None:
        for violation in violations:
            self._say(violation)

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

    def on_reservation(self, change: str, obj: Obj) -> None:
        self.events += 1
        if change == "DELETED":
            self.reservations.pop(obj["metadata"]["name"], None)
        else:
            self.reservations[obj["metadata"]["name"]] = obj

    def on_pod(self, change: str, obj: Obj) -> None:
        self.events += 1
        uid, node = obj["metadata"]["uid"], cluster_rules.node_name(obj)
        if change == "DELETED":
            self.pods.pop(uid, None)
            self._on_node[self._node_of.get(uid, "")].pop(uid, None)
            return
        self.pods[uid] = obj
        known = self._node_of.get(uid, "")
        self._say_all(cluster_rules.moved_though_bound(obj, known))
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
        node, holding = self.nodes.get(name), list(self._on_node[name].values())
        if node is None:
            return
        self._say_all(cluster_rules.overcommitted_nodes(holding, [node], CHECKED_RESOURCES))
        self._say_all(cluster_rules.cpus_given_twice(holding))
        self._say_all(cluster_rules.cards_given_twice(holding))

    def _check_quota(self, pod: Obj) -> None:
        name = cluster_rules.quota_name(pod)
        quota = self.quotas.get(name)
        if quota is None:
            return
        holding = (other for held in self._on_node.values() for other in held.values())
        own = [other for other in holding if cluster_rules.quota_name(other) == name]
        self._say_all(cluster_rules.quotas_exceeded(own, {name: quota["spec"]["max"]}))

    def check_at_rest(self) -> None:
        """Check what must hold once faults have ended and everybody has had time."""
        for wrong in self.wrong_at_rest():
            self._say(wrong)

    def wrong_at_rest(self) -> list[str]:
        pods = self.pods.values()
        found = cluster_rules.refused_though_bound(pods)
        found += [f"nobody has looked at {pod['metadata']['name']}" for pod in pods if not _was_attempted(pod)]
        partial = cluster_rules.partial_gangs(pods, gang_of)
        found += [f"gang {gang} runs with too few members" for gang in sorted(partial)]
        for uid in {e.uid for e in self._evictions if e.accepted and e.actor.startswith("koord-descheduler")}:
            phases = self._phases.get(uid, {})
            if phases and set(phases.values()) == {"Failed"}:
                found.append(f"a pod was evicted, and its migration jobs failed without noting it: {sorted(phases)}")
        for name, job in self.jobs.items():
            age_s = self._clock.time() - datetime.fromisoformat(job["metadata"]["creationTimestamp"]).timestamp()
            if age_s > JOB_TTL_S and job.get("status", {}).get("phase") in (None, "", "Running", "Pending"):
                found.append(f"migration job {name} has not ended: {job.get('status')}")
        found += cluster_rules.reservations_left(
            self.reservations.values(), self.jobs.values(), self._clock.time(), EXPIRY_GRACE_S
        )
        return found

    def is_bound(self, name: str) -> bool:
        return any(p["metadata"]["name"] == name and p["spec"].get("nodeName") for p in self.pods.values())


def gang_of(pod: Obj) -> tuple[str, int] | None:
    """Return the gang of a pod and how many members it needs, which its name ends with."""
    gang = pod["metadata"].get("labels", {}).get(L_POD_GROUP)
    return (gang, int(gang.rpartition("-")[2])) if gang else None


def _was_attempted(pod: Obj) -> bool:
    """Return whether a scheduler bound the pod or said why not."""
    conditions = pod["status"].get("conditions", ())
    return bool(cluster_rules.node_name(pod)) or any(one["type"] == "PodScheduled" for one in conditions)
