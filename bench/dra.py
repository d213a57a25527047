"""Dynamic resources: the engine with the default profile over 5,000 nodes of 8 devices each, on one core.

A decision ends with the devices of its claims chosen and in use. Claims come from templates or are named by pods; they
ask for one device or several, by CEL selectors, with constraints and alternatives, for devices of the node and of a
fabric that all nodes reach; and on a cluster where one device in 32 is free. Those with a distinct selector each share
no answer. Beside it, the time of the first claim of a case, what the event of a slice costs, and what pods without
claims pay.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.engine import NODES
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.kubernetes.dynamic_resources import DeviceClass, ResourceClaim, ResourceSlice
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.framework.runtime import run_reserve, run_unreserve
from koord.scheduler.plugins.registry import REGISTRY

DEVICES = 8
FABRIC = 16  # slices of 128 ports
ROUNDS = 2
GPU, NET = "gpu.example.com", "net.example.com"
_ROOM = {"cpu": "128", "memory": "1024Gi", "pods": "250"}
_LARGE = (
    f'device.attributes["{GPU}"].productName == "L" && device.capacity["{GPU}"].memory.compareTo(quantity("40Gi")) >= 0'
)


class ObjectLister:
    """The objects of one kind; what is put or dropped is told at once."""

    def __init__(self) -> None:
        self.version = 0
        self._held: dict[tuple[str, str], Any] = {}
        self._callbacks: list[Callable[[Any, Any], None]] = []

    def get(self, namespace: str, name: str) -> Any:
        return self._held.get((namespace, name))

    def list(self, namespace: str | None = None) -> list[Any]:
        return [held for (where, _), held in self._held.items() if namespace in (None, where)]

    def on_change(self, callback: Callable[[Any, Any], None]) -> None:
        self._callbacks.append(callback)
        for known in self._held.values():
            callback(None, known)

    def put(self, given: Any) -> None:
        key = (given.metadata.namespace, given.metadata.name)
        old, self._held[key] = self._held.get(key), given
        self._tell(old, given)

    def drop(self, given: Any) -> None:
        self._tell(self._held.pop((given.metadata.namespace, given.metadata.name)), None)

    def _tell(self, old: Any, new: Any) -> None:
        self.version += 1
        for callback in self._callbacks:
            callback(old, new)


class ObjectListers:
    """A handle whose listers are by kind."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.actions = SchedulerActions()
        self.listers: dict[str, ObjectLister] = {}

    def lister(self, resource: Resource[Any]) -> Any:
        return self.listers.setdefault(resource.kind, ObjectLister())

    def now(self) -> float:
        return 0.0


def _slice(node: int) -> ResourceSlice:
    devices = [
        {
            "name": f"gpu-{i}",
            "attributes": {
                "uuid": {"string": f"GPU-{node}-{i}"},
                "productName": {"string": "L" if node % 4 else "S"},
                "numa": {"int": i // 4},
                "driverVersion": {"version": "550.54.15"},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{i // 2:02x}"},
            },
            "capacity": {"memory": {"value": "80Gi" if node % 4 else "24Gi"}},
        }
        for i in range(DEVICES)
    ]
    spec = {
        "driver": GPU,
        "nodeName": f"n{node}",
        "pool": {"name": f"n{node}", "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    }
    return convert({"metadata": {"name": f"gpus-n{node}", "uid": f"slice-{node}"}, "spec": spec}, ResourceSlice)


def _fabric(number: int) -> ResourceSlice:
    pool = {"name": "fabric", "generation": 1, "resourceSliceCount": FABRIC}
    devices = [{"name": f"port-{number}-{i}"} for i in range(128)]
    spec = {"driver": NET, "allNodes": True, "pool": pool, "devices": devices}
    return convert({"metadata": {"name": f"fabric-{number}", "uid": f"fabric-{number}"}, "spec": spec}, ResourceSlice)


def _exactly(count: int = 1, *selectors: str, device_class: str = "gpu") -> dict[str, Any]:
    return {
        "deviceClassName": device_class,
        "count": count,
        "selectors": [{"cel": {"expression": s}} for s in selectors],
    }


def _claim(name: str, devices: dict[str, Any], owner: str = "") -> ResourceClaim:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": True}] if owner else []
    meta = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "ownerReferences": owners,
    }
    return convert({"metadata": meta, "spec": {"devices": devices}}, ResourceClaim)


def _pod(i: int, wanted: list[dict[str, Any]], made: list[dict[str, Any]], cpu: str = "100m") -> Pod:
    container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
    meta = {"name": f"pod-{i}", "namespace": "default", "uid": f"uid-pod-{i}"}
    spec = {"containers": [container], "resourceClaims": wanted}
    return convert({"metadata": meta, "spec": spec, "status": {"resourceClaimStatuses": made}}, Pod)


Devices = Callable[[int], dict[str, Any]]  # of the i-th claim


def _one(**exactly: Any) -> dict[str, Any]:
    return {"requests": [{"name": "r", **exactly}]}


_MATCHED = {"constraints": [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]}
_LISTED = [{"name": "big", **_exactly(1, _LARGE)}, {"name": "any", **_exactly(2)}]
# name -> what claims ask for, how many pods
_CASES: dict[str, tuple[Devices, int]] = {
    "one_device": (lambda i: _one(exactly=_exactly()), 2_000),
    "two_devices": (lambda i: _one(exactly=_exactly(2)), 2_000),
    "selector": (lambda i: _one(exactly=_exactly(1, _LARGE)), 2_000),
    "small": (lambda i: _one(exactly=_exactly(1, f'device.attributes["{GPU}"].productName == "S"')), 2_000),
    "pair_of_one_root": (lambda i: {**_one(exactly=_exactly(2)), **_MATCHED}, 2_000),
    "alternatives": (lambda i: _one(firstAvailable=_LISTED), 2_000),
    "fabric_port": (lambda i: _one(exactly=_exactly(device_class="net")), 1_000),
    "distinct_selectors": (
        lambda i: _one(exactly=_exactly(1, f'{_LARGE} && device.attributes["{GPU}"].numa < {i + 2}')),
        500,
    ),
}


class Bench:
    def __init__(self) -> None:
        self.state = ClusterState()
        for i in range(NODES):
            body = {"metadata": {"name": f"n{i}", "labels": {"zone": f"z{i % 3}"}}, "status": {"allocatable": _ROOM}}
            self.state.set_node(convert(body, Node))
        self.handle = ObjectListers(self.state)
        completed = CompletedConfig.complete(KubeSchedulerConfiguration(), REGISTRY)
        assert isinstance(completed, CompletedConfig), completed
        (self.profile,) = completed.make_profiles(self.handle)
        self.claims = self.handle.listers["ResourceClaim"]
        for name, driver in (("gpu", GPU), ("net", NET)):
            selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
            spec = {"metadata": {"name": name}, "spec": {"selectors": selectors}}
            self.handle.listers["DeviceClass"].put(convert(spec, DeviceClass))

    def engine(self) -> SchedulingEngine:
        return SchedulingEngine(self.profile, self.state, seed=1)

    def publish(self) -> float:
        """Publish all slices; return the microseconds for one."""
        slices = [_slice(i) for i in range(NODES)] + [_fabric(i) for i in range(FABRIC)]
        started = time.process_time()
        for each in slices:
            self.handle.listers["ResourceSlice"].put(each)
        return 1e6 * (time.process_time() - started) / len(slices)

    def claimants(self, devices: Devices, count: int, *, templates: bool) -> list[PodInfo]:
        """Make pods and their claims, as a claim controller and users do."""
        found: list[PodInfo] = []
        for i in range(count):
            source = {"resourceClaimTemplateName": "t"} if templates else {"resourceClaimName": f"c{i}"}
            made = [{"name": "c", "resourceClaimName": f"c{i}"}] if templates else []
            self.claims.put(_claim(f"c{i}", devices(i), f"uid-pod-{i}" if templates else ""))
            found.append(self.state.pod_info(_pod(i, [{"name": "c", **source}], made)))
        return found

    def rates(self, devices: Devices, count: int, *, templates: bool) -> dict[str, float]:
        """Return how many claims are decided in a second, and the milliseconds of the very first of its kind."""
        rate, first_ms = 0.0, 0.0
        for _ in range(ROUNDS):
            infos = self.claimants(devices, count, templates=templates)
            first, took = self.decide(self.engine(), infos)
            rate, first_ms = max(rate, count / took), first_ms or 1000 * first
            for claim in self.claims.list("default"):
                self.claims.drop(claim)
        return {"claims_per_second": rate, "first_ms": first_ms}

    def decide(self, engine: SchedulingEngine, infos: Sequence[PodInfo]) -> tuple[float, float]:
        attempts = []
        gc.collect()
        gc.freeze()
        started, first = time.process_time(), 0.0
        for info in infos:
            attempt = engine.decide(info)
            assert isinstance(attempt.decision, ChosenNode), attempt.decision
            self.state.assume(info, attempt.node_name)
            refused = run_reserve(attempt)
            assert refused is None, refused
            attempts.append(attempt)
            first = first or time.process_time() - started
        took = time.process_time() - started
        for attempt in attempts:
            run_unreserve(attempt)
            self.state.forget(attempt.pod.uid)
        return first, took

    def fill(self) -> None:
        """Take 7 of 8 devices of every fourth node, and all devices of the others, by claims that are allocated."""
        for node in range(NODES):
            for i in range(DEVICES if node % 4 else DEVICES - 1):
                result = {"request": "r", "driver": GPU, "pool": f"n{node}", "device": f"gpu-{i}"}
                name = f"held-{node}-{i}"
                meta = {"name": name, "namespace": "full", "uid": name}
                status = {"allocation": {"devices": {"results": [result]}}}
                self.claims.put(convert({"metadata": meta, "status": status}, ResourceClaim))


def _plain(bench: Bench) -> dict[str, float]:
    """Return how many pods without claims are decided in a second."""
    rates: dict[str, float] = {}
    for name, cpus, count in (("equal", ("100m",), 5_000), ("distinct", tuple(f"{i + 1}m" for i in range(500)), 500)):
        infos = [bench.state.pod_info(_pod(i, [], [], cpus[i % len(cpus)])) for i in range(count)]
        rates[name] = count / statistics.median(bench.decide(bench.engine(), infos)[1] for _ in range(3))
    return rates


def run() -> dict[str, Any]:
    bench = Bench()
    results: dict[str, Any] = {"nodes": NODES, "devices_of_a_node": DEVICES, "devices_of_the_fabric": FABRIC * 128}
    plain_before = _plain(bench)
    results["microseconds_per_slice"] = bench.publish()
    for name, templates in (("pods_that_name_a_claim", False), ("pods_from_a_template", True)):
        results[name] = {
            case: bench.rates(devices, count, templates=templates) for case, (devices, count) in _CASES.items()
        }
    plain_after = _plain(bench)
    results["plain_pods_per_second"] = {
        name: {"without_slices": plain_before[name], "with_slices": plain_after[name]} for name in plain_before
    }
    bench.fill()
    results["nearly_full"] = {
        case: bench.rates(_CASES[case][0], 1_000, templates=False) for case in ("one_device", "small", "fabric_port")
    }
    return results
