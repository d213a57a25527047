"""The whole control plane in virtual time: an API server, simulated nodes, and two replicas of every program.

Each replica is a process of its own, with its own connection, lease and caches, built as its command builds it. The
API server, the workload controllers and the kubelets are the world around them: the server can be killed too.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections import Counter
from collections.abc import Callable

from koord.api.config import gates
from koord.api.kubernetes.builtin_kinds import CUSTOM_RESOURCE_DEFINITIONS
from koord.api.schema import crd_manifests
from koord.cli import scheduler_setup
from koord.cli.up import local_manager
from koord.descheduler.configuration import DeschedulerSetup
from koord.descheduler.context import DeschedulerContext, DeschedulerMetrics
from koord.descheduler.program import Descheduler
from koord.descheduler.snapshot_source import register_transforms as descheduler_transforms
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.config.connection import Connection as ClusterConnection
from koord.kube.config.connection import SettingOrigin
from koord.kube.controller.process import ControllerProcess, ControllerProgram, ProcessSettings
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.leader_election import LeaseConfig
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.fenced_socket import WriteFence
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.program import Manager
from koord.manager.program import register_transforms as manager_transforms
from koord.manager.reconcile_loop import NAMESPACE, ManagerContext, ManagerSettings
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.scheduler import Scheduler
from koord.telemetry.clock import Clock, LoopClock
from koord.telemetry.metrics import MetricRegistry
from tests.simulation.network import Connection, DirectConnection, EvictionAnswer, SimulatedServer, Weather
from tests.simulation.process_loop import SimulatedProcess
from tests.simulation.workload import POOL

ProgramFactory = Callable[[ControllerProcess, int], ControllerProgram]

STOP_S = (3.0, 45.0)  # how long a stopped process stands still: shorter and longer than its lease
DOWN_S = (0.5, 20.0)  # how long a killed one is away


class Replica:
    """One place in a deployment: a process runs there, and the next one after it was killed or has ended."""

    def __init__(self, plane: ControlPlane, program: str, number: int, factory: ProgramFactory) -> None:
        self._plane = plane
        self._program = program
        self._number = number
        self._factory = factory
        self._starts = 0
        self.process: SimulatedProcess | None = None
        self.connections: list[Connection] = []

    def start(self) -> None:
        plane = self._plane
        self._starts += 1
        identity = f"{self._program}-{self._number}-{self._starts}"
        process = SimulatedProcess(identity)
        process.on_killed = lambda: self._killed(process)
        process.on_stopped = lambda: self._stopped(process)
        self.process = process
        self.connections = []

        def connect(connection: ClusterConnection, clock: Clock, *, fence: WriteFence | None) -> Connection:
            made = Connection(plane.server, plane.weather, clock, process, fence)
            made.evictions = plane.evictions
            self.connections.append(made)
            return made

        async def run() -> None:
            settings = ProcessSettings(
                name=self._program,
                user_agent=self._program,
                connection=ClusterConnection(server="http://simulated", origin=SettingOrigin("simulation", "server")),
                qps=0,
                burst=0,
                identity=identity,
                lease=LeaseConfig(name=self._program, namespace=NAMESPACE, identity=identity),
                addresses=(),
                registry=MetricRegistry(),
            )
            seed = plane.chance.getrandbits(32)
            controller_process = ControllerProcess(settings, plane.clock, connect=connect, seed=seed)
            program = self._factory(controller_process, seed)
            await controller_process.run(program, asyncio.Event())

        task = process.spawn(run())
        task.add_done_callback(lambda ended: self._ended(process, ended))

    def trouble(self) -> None:
        """Kill or stop the process a random number of steps from now."""
        process, chance = self.process, self._plane.chance
        if process is None or process.killed or process.stopped:
            return
        at = process.steps + 1 + int(chance.expovariate(1 / 400))
        if chance.random() < 0.5:
            process.kill_at = at
        else:
            process.stop_at = at

    def calm(self) -> None:
        """Take back what `trouble` had planned, and let a stopped process go on."""
        if self.process is not None:
            self.process.kill_at = self.process.stop_at = 0

    def _killed(self, process: SimulatedProcess) -> None:
        self._plane.faults["kill -9"] += 1
        self._plane.later(0.0, lambda: self._bury(process))
        self._plane.later(self._plane.chance.uniform(*DOWN_S), self.start)

    def _bury(self, process: SimulatedProcess) -> None:
        for connection in self.connections:
            connection.cut()
        process.bury()

    def _stopped(self, process: SimulatedProcess) -> None:
        self._plane.faults["stop"] += 1
        self._plane.later(self._plane.chance.uniform(*STOP_S), process.resume)

    def _ended(self, process: SimulatedProcess, task: asyncio.Task[None]) -> None:
        """Start the next process, as a kubelet does, when one has lost its lease and ended."""
        if process.killed or self._plane.closing:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._plane.crashes.append(f"{process.name}: {error!r}")
            logging.getLogger(__name__).error("%s crashed", process.name, exc_info=error)
        process.killed = True
        self._plane.faults["restart"] += 1
        self._plane.later(0.0, lambda: self._bury(process))
        self._plane.later(self._plane.chance.uniform(*DOWN_S), self.start)


class ControlPlane:
    def __init__(self, clock: LoopClock, seed: int, scheduler: CompletedConfig, descheduler: DeschedulerSetup) -> None:
        self.clock = clock
        self.chance = random.Random(seed)
        self.weather = Weather(random.Random(seed + 1))
        self.server = SimulatedServer(clock, random.Random(seed + 2))
        self.faults: Counter[str] = self.weather.faults
        self.crashes: list[str] = []
        self.evictions: list[EvictionAnswer] = []
        self.closing = False
        self._seed = seed
        self.loop = asyncio.get_running_loop()
        self.client = Client(DirectConnection(self.server), clock=clock, qps=0, burst=0, chance=random.Random(seed))
        self._informers = InformerFactory(self.client, clock, seed=seed)
        self._controllers = ControllerManager(self.client, self._informers, clock, seed)
        self._fleet = SimulatedFleet(
            self.client, self._informers, clock, seed, (POOL,), FleetSettings(reports_node_metrics=True)
        )
        programs: dict[str, ProgramFactory] = {
            "koord-scheduler": lambda p, s: build_scheduler(p, s, scheduler),
            "koord-manager": build_manager,
            "koord-descheduler": lambda p, s: build_descheduler(p, s, descheduler),
        }
        self.replicas = [Replica(self, name, number, make) for name, make in programs.items() for number in range(2)]

    async def start(self) -> None:
        await self.server.start()
        for manifest in crd_manifests():
            unwrap(await self.client.apply(CUSTOM_RESOURCE_DEFINITIONS, manifest, field_manager="koord", force=True))
        await local_manager.install_defaults(self.client, ManagerSettings())
        await self._controllers.start()
        await self._fleet.start()
        self._informers.start()
        for replica in self.replicas:
            replica.start()

    async def stop(self) -> None:
        self.closing = True
        for replica in self.replicas:
            if replica.process is not None:
                replica.process.killed = True
                replica.process.bury()
        await self._controllers.stop()
        await self._fleet.stop()
        await self._informers.stop()
        await self.server.kill()

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something as the world, not as the process in whose step this is called."""
        self.loop.call_later(seconds, lambda: None if self.closing else act(), context=contextvars.Context())

    async def restart_server(self) -> None:
        self.faults["server restart"] += 1
        await self.server.kill()
        await self.clock.sleep(self.chance.uniform(0.1, 8.0))
        await self.server.start()


def build_scheduler(process: ControllerProcess, seed: int, config: CompletedConfig) -> ControllerProgram:
    return Scheduler(
        process.client,
        process.informers,
        process.clock,
        config,
        seed=seed,
        instance=process.settings.identity,
        registry=process.settings.registry,
    )


def build_manager(process: ControllerProcess, seed: int) -> ControllerProgram:
    settings = ManagerSettings(gates=gates.default_feature_gates(MANAGER_GATES))
    manager_transforms(process.informers, settings)
    context = ManagerContext(
        client=process.client,
        informers=process.informers,
        clock=process.clock,
        recorder=_recorder(process, "koord-manager", seed),
        settings=settings,
        rng=random.Random(seed),
    )
    return Manager(
        context,
        registry=process.settings.registry,
        seed=seed,
        webhook_client=process.unfenced_client(),
        leads=process.may_write,
    )


def build_descheduler(process: ControllerProcess, seed: int, setup: DeschedulerSetup) -> ControllerProgram:
    descheduler_transforms(process.informers)
    context = DeschedulerContext(
        client=process.client,
        informers=process.informers,
        clock=process.clock,
        recorder=_recorder(process, "koord-descheduler", seed),
        metrics=DeschedulerMetrics(process.settings.registry),
        identity=process.settings.identity,
        rng=random.Random(seed),
    )
    return Descheduler(context, setup)


def _recorder(process: ControllerProcess, controller: str, seed: int) -> EventRecorder:
    return EventRecorder(
        process.client,
        process.clock,
        controller=controller,
        instance=process.settings.identity,
        rng=random.Random(seed),
    )


def scheduler_config() -> CompletedConfig:
    made = scheduler_setup.scheduler_assembly()
    assert isinstance(made, CompletedConfig), made
    return made
