"""What reservations cost: plain pods beside 2,000 of them, and the pods that they are for.

One engine has the Reservation plugin and 2,000 available Reservations on 5,000 nodes, each for pods of its own label
and on a node of its own; the other has neither. Plain pods are decided on both in turn. Owners come one after another,
each with a reservation of its own; then many share one. Rates are of one process on one core.
"""

from __future__ import annotations

import time
from typing import Any

from bench.engine import NODES, _cluster, _distinct, _equal, _same_spec
from bench.load_aware import PODS_PER_NODE, Reports
from bench.rounds import compared
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.koord_scheduling import Reservation
from koord.api.model import convert
from koord.api.resource import Resource
from koord.scheduler.assembly import Assembly
from koord.scheduler.framework.decision import Chosen
from koord.scheduler.framework.desk import Desk
from koord.scheduler.framework.engine import Engine
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.plugins.reservation.book import Book
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import Pod

RESERVATIONS = 2_000
ROUNDS = 9
NAME = "Reservation"


class Handle:
    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.desk = Desk()
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
        assembly = Assembly.of(convert(config, KubeSchedulerConfiguration), REGISTRY)
        assert isinstance(assembly, Assembly), assembly
        (profile,) = assembly.profiles(handle)
        self.engine = Engine(profile, self.state, seed=1)
        self._reserve = profile.at("reserve")
        if reserved:
            for number in range(RESERVATIONS):
                handle._listers[NAME].put(_reservation(number))
            assert len(self.state.derived(Book).register.standings) == RESERVATIONS

    def took(self, infos: list[PodInfo]) -> float:
        state, engine, reserve = self.state, self.engine, self._reserve
        engine.decide(infos[0])  # what was taken back after the last round is not to be paid for in this one
        started = time.process_time()
        for info in infos:
            decision = engine.decide(info)
            assert isinstance(decision, Chosen), decision
            assert engine.nominate(info, decision.node) is None
            state.assume(info, decision.node)
            for plugin in reserve:
                plugin.reserve(engine.cycle, info, state.table.index[decision.node])
        took = time.process_time() - started
        for info in infos:
            for plugin in reserve:
                plugin.unreserve(engine.cycle, info, "")
            state.forget(info.uid)
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
        ("owners_of_their_own", [reserved.state.info(_owner(i, i)) for i in range(500)]),
        ("owners_sharing_one", [reserved.state.info(_owner(i, 0)) for i in range(20)]),
    ):
        best = min(reserved.took(infos) for _ in range(3))
        results[f"{name}_per_second"] = len(infos) / best
    return results
