"""The node agent as a component: it finds its cgroups, follows its pods and its NodeSLO, and acts once a second.

Whatever is missing may come later: cgroups, kubelet, API server, Node and NodeSLO. Until then the agent runs with what
it has and says what it waits for. When it stops, files keep their values.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from koord.api.builtin import NODES
from koord.host.audit_log import AuditEvent, AuditLog
from koord.host.capability import Capability
from koord.host.cgroup.detection import Undetected, open_tree
from koord.host.cgroup.tree import Tree
from koord.host.fault import Fault
from koord.host.host import Host
from koord.koordlet import capability
from koord.koordlet.capability import Row
from koord.koordlet.engine import Engine
from koord.koordlet.eviction.evictor import Evictor
from koord.koordlet.eviction.ledger import Ledger
from koord.koordlet.facts import Facts, Kubelet
from koord.koordlet.metrics import Metrics
from koord.koordlet.outlook import Outlook
from koord.koordlet.plan import Evict
from koord.koordlet.pod import PodView
from koord.koordlet.pods.kubelet import KubeletClient
from koord.koordlet.pods.source import PodSource
from koord.koordlet.readings import Readings
from koord.koordlet.reports import Reports
from koord.koordlet.series.kind import keep_s
from koord.koordlet.series.store import Store
from koord.koordlet.serving import Source, endpoint_of
from koord.koordlet.settings import Settings
from koord.koordlet.volumes import Volumes
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.outage import OUTAGE
from koord.kube.recorder import Recorder
from koord.kube.refused import Refused
from koord.telemetry.clock import Clock, now
from koord.telemetry.endpoint import Endpoint
from koord.telemetry.health import Check
from koord.telemetry.metrics.process import watch_process
from koord.values import instant

_LOG = logging.getLogger(__name__)

COMPONENT = "koordlet-qosManager"  # the source of events
SEARCH_S = 10.0  # between two attempts to find the cgroups or to listen
UPKEEP_S = 60.0
PROBE_S = 600.0
FLUSH_S = 5.0
RESTART_S = 5.0
NODE_PATIENCE_S = 3.0
STALE_S = 15.0  # how long an eviction may wait for its turn
# Metric by collector.
_LOOKS = {"node_cpu_info": "node-info", "node_numa_info": "node-numa", "node_local_storage_info": "storage"}


class Koordlet:
    """The agent: call `start`, then `stop`. It uses the informers it is given and neither starts nor stops them."""

    def __init__(self, client: Client, informers: Informers, clock: Clock, settings: Settings, host: Host) -> None:
        self._client = client
        self._clock = clock
        self._settings = settings
        self._host = host
        self.store = Store(keep_s(), interval_s=settings.collect.interval_s)
        self.metrics = Metrics(settings.node)
        self.ledger = Ledger()
        self.outlook = Outlook(informers, settings.node)
        self.outlook.on_node(self.metrics.node_changed)
        audit = settings.audit
        self._audit_log = (
            AuditLog(
                audit.folder,
                clock,
                max_mb=audit.max_mb,
                verbose=audit.verbose,
                readers=audit.readers,
                page_limit=audit.page_limit,
            )
            if settings.audits
            else None
        )
        self._recorder = Recorder(client, clock, controller=COMPONENT, instance=f"{COMPONENT}-{settings.node}")
        self._evictor = Evictor(
            client,
            self._recorder,
            clock,
            self.ledger,
            node=settings.node,
            audit=self._audit,
            count=lambda victim: self.metrics.evicted(clock.time(), victim),
        )
        self._victims: asyncio.Queue[tuple[float, Evict]] = asyncio.Queue()  # and when each was wanted
        self._informers = informers
        self.reports: Reports | None = None
        self._volumes: Volumes | None = None
        self._audit_said = ""
        self._capabilities: list[Capability] = []
        self._searched = "not looked yet"
        self._ticks = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.engine: Engine | None = None
        self.pods: PodSource | None = None
        self.endpoint = self._made_endpoint()
        self.port: int | None = None

    # Life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.metrics.start_time.labels(self._settings.node).set(int(self._clock.time()))
        if self._settings.safe_mode:
            _LOG.warning("safe mode: nothing is written and nobody is evicted")
        self._recorder.start()
        self._keep("listen", self._listen)
        self._keep("tick", self._tick)
        self._keep("evict", self._evict)
        self._keep("upkeep", self._upkeep)

    async def stop(self) -> None:
        """Stop all tasks. Files keep their values: another agent takes over, or `koordlet restore` restores them."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.endpoint.close()
        await self._recorder.stop()
        if self.engine is not None:
            self.engine.close()
        if self._audit_log is not None and (fault := self._audit_log.close()) is not None:
            _LOG.warning("the audit log's last events are lost: %s", fault)

    def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._kept(name, work), name=f"koordlet-{name}"))

    async def _kept(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task and restart it when it raises, so that a bug in one task does not stop the others."""
        while True:
            try:
                await work()
                return
            except Exception:  # noqa: BLE001
                _LOG.exception("task %s failed and starts again in %.0f s", name, RESTART_S)
            await self._clock.sleep(RESTART_S)

    # Once a second -------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        engine = self.engine or await self._found_engine()
        interval_s = self._settings.collect.interval_s
        due_s = self._clock.monotonic()
        while True:
            for victim in engine.tick(self._facts(), memory_policy=self._memory_policy()):
                self._victims.put_nowait((self._clock.monotonic(), victim))
            self._ticks += 1
            due_s = max(due_s + interval_s, self._clock.monotonic())  # ticks that were missed are not made up for
            await self._clock.sleep(due_s - self._clock.monotonic())

    async def _found_engine(self) -> Engine:
        """Wait for the machine's cgroups, then build the control loop and start what depends on it."""
        tree = await self._found_tree()
        engine = Engine(tree, self.store, self._clock, self._settings, self.metrics, self._audit_log)
        kubelet = KubeletClient(
            self._settings.pods, self._clock, lambda: self.outlook.node, on_request=self._asked_kubelet
        )
        self.pods = PodSource(tree, self._client, self._clock, self._settings.node, kubelet, self._settings.pods)
        self._keep("pods", self._follow_pods)
        self.reports = Reports(
            self._client,
            self._informers,
            self._clock,
            self._settings,
            self._host,
            self.store,
            engine,
            self.outlook,
            self.pods,
            kubelet,
            self._recorder,
        )
        for name, work in self.reports.tasks:
            self._keep(name, work)
        if "BlkIOReconcile" in self._settings.gates:
            self._volumes = Volumes(self._client, self._clock, self._host.paths.kubelet, self._views)
            self._keep("volumes", self._volumes.run)
        readings = Readings(
            self._settings.node,
            self.store,
            self._clock,
            engine,
            self.reports,
            self.outlook,
            self.pods,
            self._settings.gates,
        )
        self.metrics.internal.source(readings.internal)
        self.metrics.external.source(readings.external)
        self._keep("capabilities", lambda: self._publish(engine))
        self.engine = engine
        return engine

    async def _follow_pods(self) -> None:
        """Run the pod source. The kubelet's address is on the Node: waiting for it briefly spares
        the API server a list.
        """
        waited_s = 0.0
        while self.outlook.node is None and waited_s < NODE_PATIENCE_S:
            await self._clock.sleep(0.1)
            waited_s += 0.1
        if self.pods is not None:
            await self.pods.run()

    async def _found_tree(self) -> Tree:
        """Detect the cgroup layout, and try again until there is one."""
        while True:
            node = self.outlook.node
            port = None if node is None else node.status.daemon_endpoints.kubelet_endpoint.port
            found = open_tree(self._host, port or None, self._settings.kubepods)
            if not isinstance(found, Undetected):
                _LOG.info("cgroup v%d, pods are below %s", found.version, found.layout.kubepods)
                self._searched = ""
                return found
            if self._searched != str(found):
                self._searched = str(found)
                _LOG.warning("%s; looking again every %.0f s", found, SEARCH_S)
            await self._clock.sleep(SEARCH_S)

    def _memory_policy(self) -> str:
        return "" if self.reports is None else self.reports.memory_policy

    def _views(self) -> tuple[PodView, ...] | None:
        return None if self.pods is None else self.pods.views

    def _facts(self) -> Facts:
        views = self._views()
        return Facts(
            node=self.outlook.facts,
            slo=self.outlook.slo,
            pods=() if views is None else views,
            pods_known=views is not None,
            kubelet=Kubelet() if self.reports is None else self.reports.kubelet,
            mounts={} if self._volumes is None else self._volumes.mounts,
            safe_mode=self._settings.safe_mode,
        )

    async def _evict(self) -> None:
        """Evict one pod after the other: what the first frees may be enough. A request that waited too long, because
        the API server was away, is dropped, as its numbers are stale.
        """
        while True:
            wanted_s, victim = await self._victims.get()
            late = self._clock.monotonic() - wanted_s > STALE_S
            why = "it was wanted too long ago" if late else await self._evictor.evict(victim)
            if self.engine is None:
                continue
            if why is None:
                self.engine.round.went(self._clock.time(), victim.uid)
            else:
                self.engine.round.stayed(self._clock.time(), victim.uid, why)

    # Now and then --------------------------------------------------------------------------------------------------

    async def _upkeep(self) -> None:
        refreshed_s = self._clock.monotonic()
        while True:
            await self._clock.sleep(FLUSH_S)
            self.metrics.forget(self._clock.time())
            if self._audit_log is not None:
                self._audited(self._audit_log.flush())
            if self.engine is not None and self._clock.monotonic() - refreshed_s >= UPKEEP_S:
                refreshed_s = self._clock.monotonic()
                self.engine.machine.refresh()
                for name, collector in _LOOKS.items():
                    condition = self.engine.collection.conditions.get(collector)
                    if condition is not None:
                        self.metrics.looked(name, not condition.problem)

    async def _publish(self, engine: Engine) -> None:
        """Probe what the kernel supports now and then, and publish it as conditions of the Node."""
        while True:
            self._capabilities = engine.capabilities()
            await self._publish_once(engine)
            await self._clock.sleep(PROBE_S)

    async def _publish_once(self, engine: Engine) -> None:
        while (node := self.outlook.node) is None:
            await self._clock.sleep(SEARCH_S)
        wanted = capability.conditions(self._capabilities, engine.round.enabled)
        change = capability.patch(wanted, node.status.conditions, instant.text(now(self._clock)))
        if change is None:
            return
        try:
            answer = await self._client.patch(
                NODES, node.metadata.name, change, kind="strategic", subresource="status", uid=node.metadata.uid
            )
        except OUTAGE as gone:
            _LOG.warning("capabilities are not on the Node: %s", gone)
            return
        if isinstance(answer, Refused):
            _LOG.warning("capabilities are not on the Node: %s", answer.message)

    # Served --------------------------------------------------------------------------------------------------

    def _made_endpoint(self) -> Endpoint:
        watch_process(self.metrics.internal)
        source = Source(
            metrics=self.metrics,
            ledger=self.ledger,
            audit_log=self._audit_log,
            capabilities=self._rows,
            doings=lambda: [] if self.engine is None else self.engine.doings(),
            state=self.state,
            checks=self._checks(),
        )
        return endpoint_of(source, self._clock, events="AuditEventsHTTPHandler" in self._settings.gates)

    def _checks(self) -> Mapping[str, Check]:
        return {
            "cgroups": lambda: self._searched or None,
            "pods": lambda: None if self._facts().pods_known else "pods are not known yet",
            "node": lambda: "the Node was not seen yet" if self.outlook.node is None else None,
            "collectors": lambda: (
                None if self.engine is not None and self.engine.collection.started else "not all work yet"
            ),
        }

    def state(self) -> dict[str, Any]:
        """Return what the agent knows and what it waits for, for people."""
        engine, pods = self.engine, self.pods
        collectors = {} if engine is None else engine.collection.conditions
        return {
            "node": self._settings.node,
            "safeMode": self._settings.safe_mode,
            "cgroups": self._searched or (engine.tree.layout.kubepods if engine is not None else ""),
            "cgroupVersion": None if engine is None else engine.tree.version,
            "nodeSeen": self.outlook.node is not None,
            "nodeSLOSeen": self.outlook.slo is not None,
            "podsFrom": "" if pods is None else pods.origin,
            "podsProblem": "" if pods is None else pods.problem,
            "pods": len(self._facts().pods),
            "series": len(self.store),
            "ticks": self._ticks,
            "reports": {} if self.reports is None else self.reports.problems,
            "disturbedPods": self._disturbed(),
            "collectors": {name: one.problem or "works" for name, one in collectors.items()},
            "strategies": [] if engine is None else list(engine.round.enabled),
        }

    def _disturbed(self) -> list[str]:
        reporter = None if self.reports is None else self.reports.interference
        return [] if reporter is None else [f"{one.namespace}/{one.pod}: {one.why}" for one in reporter.disturbed]

    def _rows(self) -> list[Row]:
        if not self._capabilities and self.engine is not None:
            self._capabilities = self.engine.capabilities()
        return capability.rows(self._capabilities)

    def _audit(self, event: AuditEvent) -> None:
        if self._audit_log is not None:
            self._audited(self._audit_log.append(event))

    def _audited(self, fault: Fault | None) -> None:
        code = "" if fault is None else fault.code
        if fault is not None and code != self._audit_said:
            _LOG.warning("the audit log cannot be written: %s", fault)
        self._audit_said = code

    def _asked_kubelet(self, path: str, code: int, seconds: float) -> None:
        self.metrics.kubelet_s.labels("get", path, str(code)).observe(seconds)

    async def _listen(self) -> None:
        """Listen on the port, and try again while it is taken: the agent works without it."""
        if self._settings.address is None:
            return
        host, port = self._settings.address
        while True:
            try:
                self.port = await self.endpoint.listen(host, port)
                _LOG.info("listening on port %d", self.port)
                return
            except OSError as error:
                _LOG.warning("cannot listen on %s:%d, trying again every %.0f s: %s", host, port, SEARCH_S, error)
            await self._clock.sleep(SEARCH_S)
