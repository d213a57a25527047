"""The agents of all simulated nodes as one component of a cluster: they follow pods, nodes and SLOs, step
their machines, evict through the API server and report. Decisions are made by each node's agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec

from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_SLOS
from koord.api.koordinator.slo import NodeMetric, NodeSLO
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.kubernetes.core_v1 import EventSource
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import recorded_qos_class
from koord.api.kubernetes.resource import Resource
from koord.api.model import to_dict
from koord.embedded.kubelet.fleet import SimulatedFleet
from koord.embedded.kubelet.node_profile import ANOLIS_KERNEL
from koord.embedded.kubelet.pod_behaviour import cache_pressure, seeded_uniform
from koord.embedded.kubelet.simulated_host import HostUsage, SimulatedHost
from koord.embedded.kubelet.usage_model import SimulatedUsage
from koord.host.hardware import BlockDevices
from koord.koordlet.evictor import KoordletEvictor
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.node_inputs import NodeInputs, node_properties
from koord.koordlet.inputs.pod_meta import PodMeta, build_pod_meta
from koord.koordlet.reporters.builders.node_metric import ReportWithheld
from koord.koordlet.reporters.interference_reporter import record_news
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.policy.eviction import KOORDLET, EvictionLedger
from koord.sim.agents.hardware_reporter import gpu_cards, machine_cpus
from koord.sim.agents.node_agent import AgentStep, SimulatedAgent, SimulatedAgentSettings
from koord.sim.machine.cgroup_files import ANOLIS_FILES, MAINLINE_FILES
from koord.sim.machine.simulated_machine import LAYOUT, ContainerDemand, MachineStepResult, SimulatedHardware
from koord.telemetry.clock import Clock

_ENOUGH_SHARE = 0.99  # of what was wanted: less slows work down


def pod_view_of(pod: Pod) -> PodMeta:
    """Return the pod as agents see it. Simulated containers have cgroups named by their ids, whatever their runtime."""
    group = LAYOUT.pod_dir(recorded_qos_class(pod), pod.metadata.uid)
    ids = [one.container_id for one in pod.status.container_statuses if one.container_id]
    return build_pod_meta(pod, group, {identity: f"{group}/{identity.rpartition('/')[2][:12]}" for identity in ids})


def lost_seconds(moment: MachineStepResult) -> dict[str, float]:
    """Return by how much less than a whole step each pod progressed; the slowest of a pod's containers counts."""
    found: dict[str, float] = {}
    for fare in moment.outcomes.values():
        if fare.got_milli < _ENOUGH_SHARE * fare.wanted_milli:
            lost = moment.step_s * (1 - fare.got_milli / fare.wanted_milli)
            found[fare.pod] = max(found.get(fare.pod, 0.0), lost)
    return found


def usage_of_step(step: AgentStep) -> HostUsage:
    moment = step.moment
    pods: dict[str, SimulatedUsage] = {}
    for fare in moment.outcomes.values():
        used = SimulatedUsage(round(fare.got_milli), fare.memory_bytes)
        pods[fare.pod] = pods[fare.pod].plus(used) if fare.pod in pods else used
    system = SimulatedUsage(round(moment.system_milli), moment.system_bytes)
    total = system
    for used in pods.values():
        total = total.plus(used)
    return HostUsage(system=system, pods=pods, total=total)


O = TypeVar("O", bound=Object)  # noqa: E741  an object

_LOG = logging.getLogger(__name__)

DISK = BlockDevices(disks={"/dev/vda": "253:0"})  # every simulated machine has one disk
LEDGER_SIZE, LEDGER_BYTES = 5000, 5 * 2**20
FIRST_REPORT_WITHIN_S = 10.0


class _SimulatedNode:
    """The state of one simulated node."""

    __slots__ = ("agent", "asked", "down", "errors", "evictor", "facts", "host", "pods", "reported_s", "stale")

    def __init__(self, host: SimulatedHost, agent: SimulatedAgent, evictor: KoordletEvictor) -> None:
        self.host = host
        self.agent = agent
        self.evictor = evictor
        self.pods: dict[str, PodMeta] = {}
        self.facts = NodeInputs()
        self.stale = False  # pods changed since facts were made
        self.asked: NodeMetric | None = None
        self.reported_s: float | None = None
        self.down = False  # its machine lost power
        self.errors: dict[str, str] = {}  # by strategy, logged once


class SimulatedAgents:
    """Runs the agents; start it after the fleet. `on_step` is told of a node's step, `on_round` of a full round."""

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: Clock,
        fleet: SimulatedFleet,
        settings: SimulatedAgentSettings,
        *,
        on_step: Callable[[str, AgentStep], None] | None = None,
        on_round: Callable[[], None] | None = None,
    ) -> None:
        self._client = client
        self._informers = informers
        self._clock = clock
        self._fleet = fleet
        self._settings = settings
        self._on_step = on_step
        self._on_round = on_round
        self.on_pods_changed: Callable[[str], None] | None = None  # is told of nodes whose pods changed
        self._recorder = EventRecorder(
            client, clock, controller=KOORDLET, instance="simulated-koordlet", source=EventSource(component=KOORDLET)
        )
        self.ledger = EvictionLedger(LEDGER_SIZE, LEDGER_BYTES)
        self._nodes: dict[str, _SimulatedNode] = {}
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
        self._task.add_done_callback(_log_if_failed)

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

    def _listen(self, resource: Resource[O], handler: Callable[[ObjectChange[O]], None]) -> None:
        informer = self._informers.for_resource(resource)
        news = informer.add_event_handler(handler)
        self._stops.append(lambda: informer.remove_event_handler(news))

    @property
    def agents(self) -> Mapping[str, SimulatedAgent]:
        return {name: node.agent for name, node in self._nodes.items()}

    def facts(self, node: str) -> NodeInputs:
        return self._nodes[node].facts

    def pods(self, node: str) -> tuple[PodMeta, ...]:
        """Return the pods of a node as they are now; those of `facts` are as of its last step."""
        known = self._nodes.get(node)
        return () if known is None else tuple(known.pods.values())

    # News -------------------------------------------------------------------------------------------------------

    def _on_node(self, change: ObjectChange[Node]) -> None:
        node = self._nodes.get(change.object.metadata.name)
        if node is not None and change.kind != "deleted":
            facts = node_properties(change.object, node.facts.node)
            if facts != node.facts.node:
                node.facts = msgspec.structs.replace(node.facts, node=facts)

    def _on_slo(self, change: ObjectChange[NodeSLO]) -> None:
        node = self._nodes.get(change.object.metadata.name)
        if node is not None:
            slo = effective_slo(None if change.kind == "deleted" else change.object.spec)
            node.facts = msgspec.structs.replace(node.facts, slo=slo)

    def _on_metric(self, change: ObjectChange[NodeMetric]) -> None:
        node = self._nodes.get(change.object.metadata.name)
        if node is None:
            return
        node.asked = None if change.kind == "deleted" else change.object
        if node.asked is not None and (change.old is None or change.old.spec != change.object.spec):
            node.agent.set_collect_policy(change.object.spec)

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        uid, node = pod.metadata.uid, self._nodes.get(pod.spec.node_name)
        if node is None:
            return
        old = node.pods.get(uid)
        if change.kind == "deleted" or pod.status.phase in ("Succeeded", "Failed"):
            if old is None:
                return
            del node.pods[uid]
        else:
            view = pod_view_of(pod)
            if old == view:
                return
            node.pods[uid] = view
        node.stale = True
        if self.on_pods_changed is not None:
            self.on_pods_changed(pod.spec.node_name)

    # Time -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        for informer in (self._informers.for_resource(NODES), self._informers.for_resource(PODS)):
            await informer.wait_for_sync()
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
            for pod in self._informers.for_resource(PODS).list():
                if pod.spec.node_name == name:
                    self._on_pod(ObjectChange(kind="added", object=pod))

    def _recall(self, resource: Resource[O], name: str, handler: Callable[[ObjectChange[O]], None]) -> None:
        known = self._informers.for_resource(resource).get("", name)
        if known is not None:
            handler(ObjectChange(kind="added", object=known))

    def _step(self, node: _SimulatedNode, now_s: float) -> None:
        if node.stale:
            node.facts = msgspec.structs.replace(node.facts, pods=tuple(node.pods.values()))
            node.stale = False
        step = node.agent.advance(now_s, node.facts, self._wishes(node, now_s))
        node.host.measured = usage_of_step(step)
        for ran in step.ran:
            if ran.error is not None and node.errors.get(ran.strategy) != repr(ran.error):
                node.errors[ran.strategy] = repr(ran.error)
                _LOG.error("%s: strategy %s failed", node.host.name, ran.strategy, exc_info=ran.error)
        for killed in step.killed:
            _LOG.info(
                "%s: container %s of pod %s was killed: %s", node.host.name, killed.container, killed.uid, killed.why
            )
            self._fleet.kill_container(killed.uid, killed.container)
        for uid, lost_s in lost_seconds(step.moment).items():
            self._fleet.delay_pod(uid, lost_s)
        for news in node.agent.interference_news():
            record_news(self._recorder, news)
        for victim in step.evictions:
            self._spawn(self._evicting, self._evict(node, victim))
        if self._is_due(node, now_s):
            node.reported_s = now_s
            self._spawn(self._reporting, self._report(node, now_s))
        if self._on_step is not None:
            self._on_step(node.host.name, step)

    def _wishes(self, node: _SimulatedNode, now_s: float) -> dict[str, ContainerDemand]:
        """Split the demand of each pod evenly over its running containers."""
        found: dict[str, ContainerDemand] = {}
        wishes = node.host.demands(now_s, self._fleet.seed)
        for pod in node.facts.pods:
            wish = wishes.get(pod.uid)
            running = [one.id for one in pod.containers if one.running and one.id]
            if wish is not None and running:
                part = ContainerDemand(
                    wish.cpu_milli / len(running),
                    wish.memory_bytes // len(running),
                    cache_pressure=cache_pressure(pod.annotations),
                )
                found.update(dict.fromkeys(running, part))
        return found

    def _is_due(self, node: _SimulatedNode, now_s: float) -> bool:
        """Return whether a report is due. The first one comes soon, at a time of the node's own."""
        if node.asked is None or node.host.failure in ("machine", "partition"):
            return False
        interval_s = node.agent.policy.report_s
        if node.reported_s is None:
            wait_s = FIRST_REPORT_WITHIN_S * seeded_uniform(self._fleet.seed, f"{node.host.name}/report")
            node.reported_s = now_s - interval_s + wait_s
        return now_s - node.reported_s >= interval_s

    async def _report(self, node: _SimulatedNode, now_s: float) -> None:
        status, asked = node.agent.report(now_s, node.facts), node.asked
        if isinstance(status, ReportWithheld) or asked is None:
            return
        # The whole status, as koordlet writes it: a merge patch would keep the pods of a report that has none.
        patch = [{"op": "add", "path": "/status", "value": to_dict(status)}]
        try:
            answer = await self._client.dynamic.patch(
                NODE_METRICS, node.host.name, patch, kind="json", subresource="status", uid=asked.metadata.uid
            )
        except TRANSIENT_ERRORS as error:
            _LOG.warning("report of node %s: %s", node.host.name, error)
            return
        if isinstance(answer, ApiError) and not answer.not_found:
            _LOG.warning("report of node %s: %s", node.host.name, answer)

    async def _evict(self, node: _SimulatedNode, victim: EvictionRequest) -> None:
        cut_off = node.host.failure == "partition"
        refusal = "the API server cannot be reached" if cut_off else await node.evictor.evict(victim)
        now_s = self._clock.time()
        if refusal is None:
            node.agent.strategy_runner.evicted(now_s, victim.uid)
        else:
            node.agent.strategy_runner.eviction_failed(now_s, victim.uid, refusal)

    def _spawn(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(_log_if_failed)

    def _node(self, host: SimulatedHost) -> _SimulatedNode:
        evictor = KoordletEvictor(
            self._client,
            self._recorder,
            self._clock,
            self.ledger,
            node=host.name,
            audit=lambda event: None,
            count=lambda victim: self._count_eviction(host.name, victim),
        )
        return _SimulatedNode(host, build_agent(host, self._settings), evictor)

    def _count_eviction(self, name: str, victim: EvictionRequest) -> None:
        node = self._nodes.get(name)
        if node is not None:  # else the node went while its pod was being evicted
            node.agent.metrics.count_eviction(self._clock.time(), victim)

    def _agent(self, node: _SimulatedNode) -> SimulatedAgent:
        made = build_agent(node.host, self._settings)
        if node.asked is not None:
            made.set_collect_policy(node.asked.spec)
        return made


def build_agent(host: SimulatedHost, settings: SimulatedAgentSettings) -> SimulatedAgent:
    shape = host.machine.hardware
    files = ANOLIS_FILES if host.machine.pool.kernel == ANOLIS_KERNEL else MAINLINE_FILES
    hardware = SimulatedHardware(
        processors=machine_cpus(shape),
        memory_bytes=shape.memory_bytes,
        disks=DISK,
        gpus=gpu_cards(shape),
        files=files,
    )
    return SimulatedAgent(
        host.name, hardware, ContainerDemand(host.system.cpu_milli, host.system.memory_bytes), settings
    )


def _log_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("%s died: a simulated agent no longer acts", task.get_name(), exc_info=error)
