"""The agents of all simulated nodes as one component of a cluster. Decisions are made by each node's agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec

from koord.api.builtin import NODES, PODS
from koord.api.custom import NODE_METRICS, NODE_SLOS
from koord.api.meta import Object
from koord.api.model import to_dict
from koord.api.node import Node
from koord.api.pod import Pod
from koord.api.resource import Resource
from koord.api.slo import NodeMetric, NodeSLO
from koord.embedded.kubelet.behaviour import chance
from koord.embedded.kubelet.fleet import Fleet
from koord.embedded.kubelet.host import Host
from koord.koordlet.contention.machine import Hardware
from koord.koordlet.contention.moment import Wish
from koord.koordlet.eviction.evictor import Evictor
from koord.koordlet.eviction.ledger import Ledger
from koord.koordlet.facts import Facts, node_facts, slo_facts
from koord.koordlet.plan import Evict
from koord.koordlet.pod import PodView
from koord.koordlet.report.status import Withheld
from koord.koordlet.strategies.disk import Disks
from koord.koordlet.strategies.processor import Processor
from koord.kube.cache import Change
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.outage import OUTAGE
from koord.kube.recorder import Recorder
from koord.kube.refused import Refused
from koord.sim.agent import Agent, Settings, Step
from koord.sim.measurement import lost, measured, view_of
from koord.telemetry.clock import Clock

O = TypeVar("O", bound=Object)  # noqa: E741  an object

_LOG = logging.getLogger(__name__)

DISK = Disks(numbers={"/dev/vda": "253:0"})  # every simulated machine has one disk
LEDGER = 5000
FIRST_WITHIN_S = 10.0


class _Node:
    """The state of one simulated node."""

    __slots__ = ("agent", "asked", "down", "errors", "evictor", "facts", "host", "pods", "reported_s", "stale")

    def __init__(self, host: Host, agent: Agent, evictor: Evictor) -> None:
        self.host = host
        self.agent = agent
        self.evictor = evictor
        self.pods: dict[str, PodView] = {}
        self.facts = Facts()
        self.stale = False  # pods changed since facts were made
        self.asked: NodeMetric | None = None
        self.reported_s: float | None = None
        self.down = False  # its machine lost power
        self.errors: dict[str, str] = {}  # by strategy, logged once


class Agents:
    """Runs the agents; start it after the fleet. `on_step` is told of every node's step, `on_round` of every full
    round.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        fleet: Fleet,
        settings: Settings,
        *,
        on_step: Callable[[str, Step], None] | None = None,
        on_round: Callable[[], None] | None = None,
    ) -> None:
        self._client = client
        self._informers = informers
        self._clock = clock
        self._fleet = fleet
        self._settings = settings
        self._on_step = on_step
        self._on_round = on_round
        self._recorder = Recorder(client, clock, controller="koordlet", instance="simulated-koordlet")
        self.ledger = Ledger(LEDGER)
        self._nodes: dict[str, _Node] = {}
        self._evicting: set[asyncio.Task[None]] = set()
        self._reporting: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._stops: list[Callable[[], None]] = []

    async def start(self) -> None:
        self._follow_fleet()
        self._listen(NODES, self._on_node)
        self._listen(NODE_SLOS, self._on_slo)
        self._listen(NODE_METRICS, self._on_metric)
        self._listen(PODS, self._on_pod)
        self._recorder.start()
        self._task = asyncio.create_task(self._run(), name="simulated-agents")
        self._task.add_done_callback(_say_if_died)

    async def stop(self) -> None:
        for stop in self._stops:
            stop()
        tasks = [*self._evicting, *self._reporting, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._recorder.stop()

    def _listen(self, resource: Resource[O], handler: Callable[[Change[O]], None]) -> None:
        informer = self._informers.of(resource)
        news = informer.on(handler)
        self._stops.append(lambda: informer.off(news))

    @property
    def agents(self) -> Mapping[str, Agent]:
        return {name: node.agent for name, node in self._nodes.items()}

    def facts(self, node: str) -> Facts:
        return self._nodes[node].facts

    # News -------------------------------------------------------------------------------------------------------

    def _on_node(self, change: Change[Node]) -> None:
        node = self._nodes.get(change.object.metadata.name)
        if node is not None and change.kind != "deleted":
            facts = node_facts(change.object)
            if facts != node.facts.node:
                node.facts = msgspec.structs.replace(node.facts, node=facts)

    def _on_slo(self, change: Change[NodeSLO]) -> None:
        node = self._nodes.get(change.object.metadata.name)
        if node is not None:
            slo = slo_facts(None if change.kind == "deleted" else change.object.spec)
            node.facts = msgspec.structs.replace(node.facts, slo=slo)

    def _on_metric(self, change: Change[NodeMetric]) -> None:
        node = self._nodes.get(change.object.metadata.name)
        if node is None:
            return
        node.asked = None if change.kind == "deleted" else change.object
        if node.asked is not None and (change.old is None or change.old.spec != change.object.spec):
            node.agent.asked(change.object.spec)

    def _on_pod(self, change: Change[Pod]) -> None:
        pod = change.object
        uid, node = pod.metadata.uid, self._nodes.get(pod.spec.node_name)
        if node is None:
            return
        if change.kind == "deleted" or pod.status.phase in ("Succeeded", "Failed"):
            node.stale |= node.pods.pop(uid, None) is not None
            return
        old = node.pods.get(uid)
        view = view_of(pod)
        if old != view:
            node.pods[uid] = view
            node.stale = True

    # Time -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        for informer in (self._informers.of(NODES), self._informers.of(PODS)):
            await informer.wait_synced()
        while True:
            await self._clock.sleep(self._settings.step_s)
            now_s = self._clock.time()
            self._follow_fleet()
            for node in self._nodes.values():
                if node.host.failure == "machine":
                    node.down = True
                    continue
                if node.down:  # after a boot nothing of the old machine is left
                    node.agent, node.down = self._agent(node), False
                self._step(node, now_s)
            if self._on_round is not None:
                self._on_round()

    def _follow_fleet(self) -> None:
        """Create agents of new nodes with what is known by now, and drop agents of removed nodes."""
        hosts = self._fleet.hosts
        if hosts.keys() == self._nodes.keys():
            return
        for name in self._nodes.keys() - hosts.keys():
            del self._nodes[name]
        for name in [name for name in hosts if name not in self._nodes]:
            self._nodes[name] = self._node(hosts[name])
            self._recall(NODES, name, self._on_node)
            self._recall(NODE_SLOS, name, self._on_slo)
            self._recall(NODE_METRICS, name, self._on_metric)
            for pod in self._informers.of(PODS).list():
                if pod.spec.node_name == name:
                    self._on_pod(Change(kind="added", object=pod))

    def _recall(self, resource: Resource[O], name: str, handler: Callable[[Change[O]], None]) -> None:
        known = self._informers.of(resource).get("", name)
        if known is not None:
            handler(Change(kind="added", object=known))

    def _step(self, node: _Node, now_s: float) -> None:
        if node.stale:
            node.facts = msgspec.structs.replace(node.facts, pods=tuple(node.pods.values()))
            node.stale = False
        step = node.agent.advance(now_s, node.facts, self._wishes(node, now_s))
        node.host.measured = measured(step)
        for ran in step.ran:
            if ran.error is not None and node.errors.get(ran.strategy) != repr(ran.error):
                node.errors[ran.strategy] = repr(ran.error)
                _LOG.error("%s: strategy %s failed", node.host.name, ran.strategy, exc_info=ran.error)
        for killed in step.killed:
            _LOG.info(
                "%s: container %s of pod %s was killed: %s", node.host.name, killed.container, killed.uid, killed.why
            )
            self._fleet.kill(killed.uid, killed.container)
        for uid, lost_s in lost(step.moment).items():
            self._fleet.delay(uid, lost_s)
        for victim in step.evictions:
            self._spawn(self._evicting, self._evict(node, victim))
        if self._is_due(node, now_s):
            node.reported_s = now_s
            self._spawn(self._reporting, self._report(node, now_s))
        if self._on_step is not None:
            self._on_step(node.host.name, step)

    def _wishes(self, node: _Node, now_s: float) -> dict[str, Wish]:
        """Split the demand of each pod evenly over its running containers."""
        found: dict[str, Wish] = {}
        wishes = node.host.wishes(now_s, self._fleet.seed)
        for pod in node.facts.pods:
            wish = wishes.get(pod.uid)
            running = [one.id for one in pod.containers if one.running and one.id]
            if wish is not None and running:
                part = Wish(wish.cpu_milli / len(running), wish.memory_bytes // len(running))
                found.update(dict.fromkeys(running, part))
        return found

    def _is_due(self, node: _Node, now_s: float) -> bool:
        """Return whether a report is due. The first one comes soon, at a time of the node's own."""
        if node.asked is None or node.host.failure in ("machine", "partition"):
            return False
        interval_s = node.agent.policy.report_s
        if node.reported_s is None:
            wait_s = FIRST_WITHIN_S * chance(self._fleet.seed, f"{node.host.name}/report")
            node.reported_s = now_s - interval_s + wait_s
        return now_s - node.reported_s >= interval_s

    async def _report(self, node: _Node, now_s: float) -> None:
        status, asked = node.agent.report(now_s, node.facts), node.asked
        if isinstance(status, Withheld) or asked is None:
            return
        try:
            answer = await self._client.plain.patch(
                NODE_METRICS,
                node.host.name,
                {"status": to_dict(status)},
                kind="merge",
                subresource="status",
                uid=asked.metadata.uid,
            )
        except OUTAGE as error:
            _LOG.warning("report of node %s: %s", node.host.name, error)
            return
        if isinstance(answer, Refused) and not answer.not_found:
            _LOG.warning("report of node %s: %s", node.host.name, answer)

    async def _evict(self, node: _Node, victim: Evict) -> None:
        cut_off = node.host.failure == "partition"
        refusal = "the API server cannot be reached" if cut_off else await node.evictor.evict(victim)
        now_s = self._clock.time()
        if refusal is None:
            node.agent.round.went(now_s, victim.uid)
        else:
            node.agent.round.stayed(now_s, victim.uid, refusal)

    def _spawn(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(_say_if_died)

    def _node(self, host: Host) -> _Node:
        evictor = Evictor(
            self._client,
            self._recorder,
            self._clock,
            self.ledger,
            node=host.name,
            audit=lambda event: None,
            count=lambda victim: None,
        )
        return _Node(host, agent_on(host, self._settings), evictor)

    def _agent(self, node: _Node) -> Agent:
        made = agent_on(node.host, self._settings)
        if node.asked is not None:
            made.asked(node.asked.spec)
        return made


def agent_on(host: Host, settings: Settings) -> Agent:
    shape = host.machine.shape
    hardware = Hardware(
        processors=tuple(
            Processor(cpu=one.cpu, core=one.core, socket=one.socket, node=one.numa) for one in shape.processors()
        ),
        memory_bytes=shape.memory_bytes,
        disks=DISK,
        files=settings.files,
    )
    return Agent(host.name, hardware, Wish(host.system.cpu_milli, host.system.memory_bytes), settings)


def _say_if_died(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("%s died: a simulated agent no longer acts", task.get_name(), exc_info=error)
