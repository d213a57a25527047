"""This module finds koord's programs in a cluster: by the label of their pods, and the port that these call metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Pod
from koord.cli.cluster_access import DESCHEDULER_PORT, METRICS_PORT, NAMESPACE, SCHEDULER_PORT
from koord.koordlet.settings import PORT
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.telemetry.clock import Clock

MANAGER, SCHEDULER, DESCHEDULER, KOORDLET = "koord-manager", "koord-scheduler", "koord-descheduler", "koordlet"
# The ports of programs that say none.
PORTS = {MANAGER: METRICS_PORT, SCHEDULER: SCHEDULER_PORT, DESCHEDULER: DESCHEDULER_PORT, KOORDLET: PORT}
_LABEL = "koord-app"
_PORT_NAME = "metrics"
_LOOK_AGAIN_S = 30.0


class ProgramPlace(msgspec.Struct, frozen=True):
    """ProgramPlace is the namespace of a program and the port that it answers on."""

    namespace: str
    port: int


class GivenPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """GivenPlaces is what the command line says: it is not looked for."""

    namespace: str = ""
    ports: Mapping[str, int] = {}


NOTHING_GIVEN = GivenPlaces()


def choose_places(pods: Iterable[Pod], given: GivenPlaces = NOTHING_GIVEN) -> dict[str, ProgramPlace]:
    """Return where each program is. Pods that run come first, then the usual namespace, then names in order."""
    found: dict[str, list[Pod]] = {name: [] for name in PORTS}
    for pod in pods:
        if (name := pod.metadata.labels.get(_LABEL, "")) in found and given.namespace in ("", pod.metadata.namespace):
            found[name].append(pod)
    return {name: _place(name, min(listed, key=_rank, default=None), given) for name, listed in found.items()}


def _rank(pod: Pod) -> tuple[bool, bool, str, str]:
    meta = pod.metadata
    return pod.status.phase != "Running", meta.namespace != NAMESPACE, meta.namespace, meta.name


def _place(name: str, pod: Pod | None, given: GivenPlaces) -> ProgramPlace:
    stated = () if pod is None else (port for container in pod.spec.containers for port in container.ports)
    port = next((one.container_port for one in stated if one.name == _PORT_NAME), PORTS[name])
    where = given.namespace or (NAMESPACE if pod is None else pod.metadata.namespace)
    return ProgramPlace(where, given.ports.get(name, port))


class ProgramPlaces:
    """ProgramPlaces looks for the programs when it is asked, and again after a while: they may be installed later."""

    def __init__(self, client: Client, clock: Clock, given: GivenPlaces = NOTHING_GIVEN) -> None:
        self._client = client
        self._clock = clock
        self._given = given
        self._found = choose_places((), given)
        self._looked_s: float | None = None

    async def of_program(self, name: str) -> ProgramPlace:
        now_s = self._clock.monotonic()
        if self._looked_s is None or now_s - self._looked_s > _LOOK_AGAIN_S:
            self._looked_s = now_s
            self._found = choose_places(await self._list(), self._given)
        return self._found[name]

    async def _list(self) -> list[Pod]:
        """List the programs' pods, of koordlet one alone: all of them are alike. Who may not list pods everywhere gets
        the usual places.
        """
        programs = ",".join(name for name in PORTS if name != KOORDLET)
        pods: list[Pod] = []
        for labels, limit in ((f"{_LABEL} in ({programs})", 0), (f"{_LABEL}={KOORDLET}", 1)):
            listed = await self._client.list(PODS, self._given.namespace, labels=labels, limit=limit)
            if not isinstance(listed, ApiError):
                pods += listed.items
        return pods
