"""This module is the dashboard's reports: each is the data that a command of `koord` prints, for one query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli import cluster_access
from koord.cli.cluster_access import CONTAINERS_PATH, CommandFailure, KoordletAddress
from koord.cli.commands import evictions, gang, migration, node_agent, node_occupancy, quota, reservation, simulate
from koord.cli.commands.dashboard.cluster_watch import ClusterWatch
from koord.cli.commands.dashboard.program_places import (
    DESCHEDULER,
    KOORDLET,
    MANAGER,
    NOTHING_GIVEN,
    SCHEDULER,
    GivenPlaces,
    ProgramPlaces,
)
from koord.cli.commands.explain import interference, node, pod
from koord.cli.commands.object_lists import parse_objects
from koord.dashboard.report import WHAT_IF, Report, ReportFailure
from koord.koordlet.agent_status import ContainersStatus
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, ApiErrorRaised
from koord.kube.transport.interface import Unreachable
from koord.telemetry.clock import Clock

MAX_WINDOW = 500  # pods of one answer
_MANIFEST_KEYS = ("labels", "annotations")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # the manifest once more, as kubectl apply keeps it
_SET_BY_THE_SERVER = ("nodeName", "serviceAccount", "tolerations", "volumes")


class DashboardReports:
    """DashboardReports asks the cluster by the functions of the commands; what ends a command is a failure here."""

    def __init__(self, client: Client, clock: Clock, watch: ClusterWatch, given: GivenPlaces = NOTHING_GIVEN) -> None:
        self._client = client
        self._clock = clock
        self._watch = watch
        self._places = ProgramPlaces(client, clock, given)

    async def _agents(self) -> KoordletAddress:
        place = await self._places.of_program(KOORDLET)
        return KoordletAddress(namespace=place.namespace, port=place.port)

    async def _scheduler(self) -> tuple[str, int]:
        place = await self._places.of_program(SCHEDULER)
        return place.namespace, place.port

    def table(self) -> dict[str, Report]:
        """Return the reports by name; the comment is the command that prints the same."""
        return {
            "node": self._guarded(self._node, "name"),  # koord explain node NAME
            "cpus": self._guarded(self._cpus, "name"),  # koord node cpus NAME
            "devices": self._guarded(self._devices, "name"),  # koord node devices NAME
            "hooks": self._guarded(self._hooks, "name"),  # koord node hooks NAME
            "capabilities": self._guarded(self._capabilities, "name"),  # koord node capabilities NAME
            "containers": self._guarded(self._containers, "name"),  # koord explain container POD
            "pods": self._guarded(self._pods),  # koord top pods
            "pod": self._guarded(self._pod, "namespace", "name"),  # koord explain pod NAMESPACE/NAME
            "manifest": self._guarded(self._manifest, "namespace", "name"),
            "quotas": self._guarded(self._quotas),  # koord quota tree
            "gangs": self._guarded(self._gangs),  # koord gang
            "gang": self._guarded(self._gang, "namespace", "name"),  # koord gang NAMESPACE/NAME
            "reservations": self._guarded(self._reservations),  # koord reservation
            "evictions": self._guarded(self._evictions),  # koord evictions -A
            "migrations": self._guarded(self._migrations),  # koord migrations
            "interference": self._guarded(self._interference),  # koord explain interference
            WHAT_IF: self._guarded(self._what_if, "manifest"),  # koord simulate -f FILE
            "node-interference": self._guarded(self._node_interference, "name"),  # koord explain interference NODE
        }

    def _guarded(self, report: Report, *needed: str) -> Callable[[Mapping[str, str]], Awaitable[Any]]:
        async def ask(query: Mapping[str, str]) -> Any:
            if missing := [name for name in needed if not query.get(name)]:
                return ReportFailure(f"the query lacks {' and '.join(missing)}")
            try:
                with cluster_access.raise_failures():
                    return await report(query)
            except (CommandFailure, ApiErrorRaised) as wrong:
                return ReportFailure(str(wrong))
            except Unreachable as gone:
                return ReportFailure(f"the API server cannot be reached: {gone}")
            except msgspec.ValidationError as strange:
                return ReportFailure(f"the answer is not understood: {strange}")

        return ask

    async def _node(self, query: Mapping[str, str]) -> Any:
        manager = await self._places.of_program(MANAGER)
        place = node.ManagerPlace(config_namespace=manager.namespace, namespace=manager.namespace, port=manager.port)
        return await node.explain_node(self._client, self._clock, query["name"], place)

    async def _cpus(self, query: Mapping[str, str]) -> Any:
        return await node_occupancy.read_cpu_occupancy(self._client, query["name"])

    async def _devices(self, query: Mapping[str, str]) -> Any:
        return await node_occupancy.read_device_occupancy(self._client, query["name"])

    async def _hooks(self, query: Mapping[str, str]) -> Any:
        return await node_agent.node_hooks(self._client, query["name"], await self._agents())

    async def _capabilities(self, query: Mapping[str, str]) -> Any:
        agents = await self._agents()
        return await node_agent.node_capabilities(self._client, query["name"], agents.namespace, agents.port)

    async def _containers(self, query: Mapping[str, str]) -> Any:
        found = await cluster_access.get_node(self._client, query["name"])
        answer = await cluster_access.ask_agent(self._client, found, await self._agents(), CONTAINERS_PATH)
        return ReportFailure(answer) if isinstance(answer, str) else msgspec.convert(answer, ContainersStatus)

    async def _pods(self, query: Mapping[str, str]) -> Any:
        offset, limit = query.get("offset", "0"), query.get("limit", "100")
        if not (offset.isdecimal() and limit.isdecimal()):
            return ReportFailure("offset and limit must be numbers")
        words = query.get("words", "").split()
        return self._watch.find_pods(words, query.get("node", ""), int(offset), min(int(limit), MAX_WINDOW))

    async def _pod(self, query: Mapping[str, str]) -> Any:
        return await pod.explain_pod(self._client, query["namespace"], query["name"], *await self._scheduler())

    async def _manifest(self, query: Mapping[str, str]) -> Any:
        """Return a pod as somebody would have written it, to be changed and tried."""
        found = await self._client.dynamic.get(PODS, query["name"], query["namespace"])
        if isinstance(found, ApiError):
            return ReportFailure(found.message)
        meta = {key: found["metadata"][key] for key in _MANIFEST_KEYS if found["metadata"].get(key)}
        notes = {key: text for key, text in meta.pop("annotations", {}).items() if key != _LAST_APPLIED}
        meta |= {"annotations": notes} if notes else {}
        spec = {key: value for key, value in found["spec"].items() if key not in _SET_BY_THE_SERVER}
        for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
            container.pop("volumeMounts", None)
        named = {"name": f"{query['name'][:50]}-what-if", "namespace": query["namespace"], **meta}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": spec}

    async def _quotas(self, _: Mapping[str, str]) -> Any:
        found = await quota.read_quota_tree(self._client, *await self._scheduler())
        shown = msgspec.to_builtins(found)
        for row, one in zip(shown["quotas"], found.quotas, strict=True):
            if one.last_refusal is not None:  # its words are made from its fields, and a page has only those
                row["last_refusal"]["message"] = one.last_refusal.refusal.message
        return shown

    async def _gangs(self, _: Mapping[str, str]) -> Any:
        return await gang.read_gangs(self._client, "", *await self._scheduler())

    async def _gang(self, query: Mapping[str, str]) -> Any:
        path = f"/{query['namespace']}/{query['name']}"
        return (await gang.read_gangs(self._client, path, *await self._scheduler()))[0]

    async def _reservations(self, _: Mapping[str, str]) -> Any:
        return await reservation.read_reservations(self._client)

    async def _evictions(self, _: Mapping[str, str]) -> Any:
        namespace, port = await self._scheduler()
        descheduler = await self._places.of_program(DESCHEDULER)
        ports = evictions.ProgramPorts(namespace=namespace, scheduler=port, descheduler=descheduler.port)
        return await evictions.find_evictions(self._client, ports, "")

    async def _migrations(self, _: Mapping[str, str]) -> Any:
        place = await self._places.of_program(DESCHEDULER)
        return await migration.read_migrations(self._client, place.namespace, place.port)

    async def _interference(self, _: Mapping[str, str]) -> Any:
        return await interference.find_all_interference(self._client, await self._agents())

    async def _node_interference(self, query: Mapping[str, str]) -> Any:
        return await interference.find_interference(self._client, query["name"], await self._agents())

    async def _what_if(self, query: Mapping[str, str]) -> Any:
        objects = parse_objects(query["manifest"], "the manifest")
        return await simulate.what_if(self._client, objects, *await self._scheduler())
