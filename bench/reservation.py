"""What reservations cost: plain pods beside 2,000 of them, and the pods that they are for.

One engine has the Reservation plugin and 2,000 available Reservations on 5,000 nodes, each for pods of its own label
and on a node of its own; the other has neither. Plain pods are decided on both in turn. Owners come one after another,
each with a reservation of its own; then many share one. Rates are of one process on one core.
"""

from __future__ import annotations

import time
from typing import Any

from bench.alternating_rounds import compared
from bench.engine import NODES, _cluster, _distinct, _equal, _same_spec
from bench.load_aware import PODS_PER_NODE, Reports
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.framework.runtime import run_nominate_reservation, run_reserve, run_unreserve
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.plugins.reservation.cache import ReservationCache

RESERVATIONS = 2_000
ROUNDS = 9
NAME = "Reservation"


class Handle:
    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.actions = SchedulerActions()
        self._listers: dict[str, Any] = {}

    def lister(self, resource: Resource[Any]) -> Any:
        return self._listers.setdefault(resource.kind, Reports())

    def now(self) -> float:
        return 0.0


def _reservation(number: int) -> Reservation:
    room = {"cpu": "2", "memory": "4Gi"}
    return convert(
        {
            "metadata": {"name": f"r-{number}", "uid": f"reservation-{number}"},
            "spec": {
                "template": {"spec": {"containers": [{"name": "c", "resources": {"requests": room}}]}},
                "owners": [{"labelSelector": {"matchLabels": {"held-for": f"app-{number}"}}}],
                "ttl": "24h",
                "allocateOnce": False,
            },
            "status": {"phase": "Available", "nodeName": f"node-{number}", "allocatable": room},
        },
        Reservation,
    )


def _owner(number: int, app: int) -> Pod:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}}
    meta = {"name": f"o-{number}", "namespace": "default", "uid": f"o-{number}", "labels": {"held-for": f"app-{app}"}}
    return convert({"metadata": meta, "spec": {"containers": [container], "schedulerName": "default-scheduler"}}, Pod)


class Side:
    def __init__(self, *, reserved: bool) -> None:
        self.state = _cluster(NODES * PODS_PER_NODE)
        handle = Handle(self.state)
        plugins = {"multiPoint": {"enabled": [{"name": NAME}] if reserved else []}}
        config = {"profiles": [{"schedulerName": "default-scheduler", "plugins": plugins}]}
        assembly = CompletedConfig.complete(convert(config, KubeSchedulerConfiguration), REGISTRY)
        assert isinstance(assembly, CompletedConfig), assembly
        (profile,) = assembly.make_profiles(handle)
        self.engine = SchedulingEngine(profile, self.state, seed=1)
        if reserved:
            for number in range(RESERVATIONS):
                handle._listers[NAME].put(_reservation(number))
            assert len(self.state.derived(ReservationCache).register.usages) == RESERVATIONS

    def took(self, infos: list[PodInfo]) -> float:
        state, engine = self.state, self.engine
        attempts = []
        engine.decide(infos[0])  # what was taken back after the last round is not to be paid for in this one
        started = time.process_time()
        for info in infos:
            attempt = engine.decide(info)
            assert run_nominate_reservation(attempt) is None
            state.assume(info, attempt.node_name)
            run_reserve(attempt)
            attempts.append(attempt)
        took = time.process_time() - started
        for attempt in attempts:
            run_unreserve(attempt)
            state.forget(attempt.pod.uid)
        return took


def run() -> dict[str, Any]:
    plain, reserved = Side(reserved=False), Side(reserved=True)
    results: dict[str, Any] = {"nodes": NODES, "reservations": RESERVATIONS}
    for name, pods, count in (
        ("equal", _equal, 5_000),
        ("distinct", _distinct, 500),
        ("own_labels", _same_spec, 5_000),
    ):
        results[name] = compared((plain, reserved), ("without", "beside_reservations"), pods, count, ROUNDS)
    for name, infos in (
        ("owners_of_their_own", [reserved.state.pod_info(_owner(i, i)) for i in range(500)]),
        ("owners_sharing_one", [reserved.state.pod_info(_owner(i, 0)) for i in range(20)]),
    ):
        best = min(reserved.took(infos) for _ in range(3))
        results[f"{name}_per_second"] = len(infos) / best
    return results
