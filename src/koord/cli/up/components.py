"""This module lists the programs that `koord up` can run inside its process, and makes each from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from koord.api.config import gates
from koord.api.config.component import parse_bind_address
from koord.api.config.gates import KUBERNETES_GATES
from koord.api.kubernetes.builtin_kinds import NODES
from koord.cli import scheduler_setup
from koord.cli.up import local_descheduler, local_manager, local_scheduler
from koord.cli.up.local_agents import LocalAgents
from koord.cli.up.local_dashboard import LocalDashboard
from koord.descheduler.configuration import DESCHEDULER_GATES
from koord.descheduler.configuration import DeschedulerSetup as Descheduling
from koord.embedded.cluster import Component, ComponentContext, ComponentFactory
from koord.embedded.kubelet import node_profile
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.koordlet.feature_gates import KOORDLET_GATES
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import ManagerSettings
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.feature_gates import SCHEDULER_GATES


class LocalNodes:
    """LocalNodes is simulated nodes without agents. Their hardware is reported once the cluster runs: the builders of
    the reports take a tenth of a second to load, and nobody has to wait for them.
    """

    def __init__(self, context: ComponentContext, pools: tuple[SimulatedPool, ...]) -> None:
        self._context = context
        self.fleet = SimulatedFleet(
            context.client,
            context.informers,
            context.clock,
            context.seed,
            pools,
            FleetSettings(reports_node_metrics=True),
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.fleet.start()
        self._task = asyncio.create_task(self._start_reporter(), name="hardware-reporter")

    async def _start_reporter(self) -> None:
        context = self._context
        await context.informers.for_resource(NODES).wait_for_sync()
        from koord.sim.agents.hardware_reporter import SimulatedHardwareReporter

        reporter = SimulatedHardwareReporter(
            context.client, context.informers, context.clock, context.seed, self.fleet.hosts
        )
        reporter.start()
        try:
            await asyncio.Event().wait()
        finally:
            await reporter.stop()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.fleet.stop()


def make_nodes(context: ComponentContext, options: ClusterOptions) -> Component:
    if options.agents:
        return LocalAgents(context, options.pools, _enabled(options.gates["koordlet"]))
    return LocalNodes(context, options.pools)


def _enabled(gates: Mapping[str, bool]) -> frozenset[str]:
    return frozenset(name for name, on in gates.items() if on)


class ClusterOptions(msgspec.Struct, frozen=True):
    """ClusterOptions is what the command line says about the cluster's content."""

    pools: tuple[SimulatedPool, ...]
    scheduler: CompletedConfig
    manager: ManagerSettings
    descheduler: Descheduling
    gates: Mapping[str, Mapping[str, bool]]  # program -> feature gate -> value
    agents: bool  # whether every simulated node runs the node agent
    dashboard: tuple[str, int]  # the address that it listens on


DASHBOARD_LISTEN = "127.0.0.1:0"
PROFILES = Path(__file__).parent / "profiles"
AGENTS_UP_TO = 10  # simulated nodes: so many agents cost a few percent of a CPU, and nobody has to ask for them

# What `--set` understands, with a line of help for each.
SET_OPTIONS = {
    "scheduler.config": "a KubeSchedulerConfiguration file for koord-scheduler",
    "scheduler.feature-gates": "gates of koord-scheduler, as its --feature-gates: name=true,other=false",
    "manager.feature-gates": "gates of koord-manager",
    "descheduler.config": "a DeschedulerConfiguration file; without one only PodMigrationJobs are carried out",
    "descheduler.feature-gates": "gates of koord-descheduler",
    "nodes.agents": "true: every simulated node runs the node agent on a machine of its own; the default up to "
    f"{AGENTS_UP_TO} nodes with koord-manager",
    "koordlet.feature-gates": "gates of these node agents",
    "dashboard.enabled": "false: no dashboard",
    "dashboard.listen": "HOST:PORT of the dashboard, a loopback address; the default is any free port of 127.0.0.1",
}


class ProgramGates(msgspec.Struct, frozen=True):
    """ProgramGates is the feature gates of one program. `on` are those that `koord up` switches on unless it is told
    otherwise, `tolerated` those of other registries that the program's flag accepts.
    """

    known: gates.FeatureGateTable
    on: tuple[str, ...] = ()
    tolerated: frozenset[str] = frozenset()


FEATURE_GATES = {
    "scheduler": ProgramGates(SCHEDULER_GATES, tolerated=KUBERNETES_GATES),
    # Off as Koordinator ships it, and then no pod that asks for a share of a GPU is ever scheduled: the webhook adds
    # koordinator.sh/gpu.shared to its requests, which nodes have only with this gate.
    "manager": ProgramGates(MANAGER_GATES, on=("EnableSyncGPUSharedResource",)),
    "descheduler": ProgramGates(DESCHEDULER_GATES),
    # What an operator adds who wants batch work gone before it hurts.
    "koordlet": ProgramGates(KOORDLET_GATES, on=("BECPUEvict", "BEMemoryEvict")),
}

# In the order of starting.
COMPONENTS: dict[str, Callable[[ComponentContext, ClusterOptions], object]] = {
    "workloads": lambda c, _: ControllerManager(c.client, c.informers, c.clock, c.seed, root_ca=c.root_ca),
    "nodes": make_nodes,
    "manager": lambda c, options: local_manager.LocalManager(c, options.manager),
    "scheduler": lambda c, options: local_scheduler.make_scheduler(c, options.scheduler),
    "descheduler": lambda c, options: local_descheduler.make_descheduler(
        c, options.descheduler, _enabled(options.gates["descheduler"])
    ),
    "dashboard": lambda c, options: LocalDashboard(c, *options.dashboard),
}


def simulated_pools(nodes: int, profile: Path | None) -> tuple[SimulatedPool, ...] | node_profile.InvalidProfile:
    """Return the pools of nodes that the command line asks for; a profile is a file, or the name of a shipped one."""
    if profile is None:
        return node_profile.default_pools(nodes)
    shipped = PROFILES / f"{profile}.yaml"
    if len(profile.parts) == 1 and not profile.exists():
        if not shipped.is_file():
            there_are = f"no such file, and no shipped profile of that name; there are {', '.join(shipped_profiles())}"
            return node_profile.InvalidProfile(source=str(profile), errors=(there_are,))
        profile = shipped
    return node_profile.load_profile(profile)


def shipped_profiles() -> dict[str, str]:
    """Return what each shipped profile is for, by name: the comment that its file begins with."""
    files = sorted(PROFILES.glob("*.yaml"))
    return {file.stem: file.read_text().splitlines()[0].removeprefix("# ") for file in files}


def runs_agents(
    pools: tuple[SimulatedPool, ...], settings: Mapping[str, str], components: Collection[str] = tuple(COMPONENTS)
) -> bool:
    """Return whether nodes run agents: as the setting says, or where they are few and koord-manager tells them what to
    do. Whoever leaves it out wants bare nodes, to install something on.
    """
    stated = settings.get("nodes.agents")
    few = sum(pool.count for pool in pools) <= AGENTS_UP_TO
    return stated == "true" if stated is not None else few and "manager" in components


def choose_components(
    text: str,
    *,
    nodes: int,
    profile: Path | None,
    settings: Mapping[str, str],
    pools: tuple[SimulatedPool, ...] | None = None,
) -> list[tuple[str, ComponentFactory]] | str:
    """Return the makers of the components named in `text` ("all", "", "a,b"), or what is wrong with it. `pools` stands
    in for the nodes that the command line asks for.
    """
    names = list(COMPONENTS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    known = ", ".join(COMPONENTS)
    unknown = [name for name in names if name not in COMPONENTS]
    if unknown:
        return f"--components {text}: no component {', '.join(unknown)}; there are {known}"
    for key in settings:
        if key not in SET_OPTIONS:
            there_are = "; ".join(f"{name}: {what}" for name, what in SET_OPTIONS.items())
            return f"--set {key}: there is no such setting; there are {there_are}"
    stated_agents = settings.get("nodes.agents", "true")
    if stated_agents not in ("true", "false"):
        return f"--set nodes.agents={stated_agents}: must be true or false"
    stated_dashboard = settings.get("dashboard.enabled", "true")
    if stated_dashboard not in ("true", "false"):
        return f"--set dashboard.enabled={stated_dashboard}: must be true or false"
    if stated_dashboard == "false":
        names = [name for name in names if name != "dashboard"]
    listen = settings.get("dashboard.listen", DASHBOARD_LISTEN)
    dashboard = parse_bind_address(listen)
    if dashboard is None or not _is_loopback(dashboard[0]):
        return f"--set dashboard.listen={listen}: expected HOST:PORT of this machine alone, for example 127.0.0.1:8080"
    asked = pools if pools is not None else simulated_pools(nodes, profile)
    if isinstance(asked, node_profile.InvalidProfile):
        return f"--profile {profile}: {'; '.join(asked.errors)}"
    agents = runs_agents(asked, settings, names)
    if not agents and "koordlet.feature-gates" in settings:
        return "--set koordlet.feature-gates: there are no node agents without --set nodes.agents=true"
    switched: dict[str, Mapping[str, bool]] = {}
    for program, of_program in FEATURE_GATES.items():
        key = f"{program}.feature-gates"
        stated = [*(f"{name}=true" for name in of_program.on), settings.get(key, "")]
        parsed = gates.parse_feature_gates(",".join(stated), of_program.known, of_program.tolerated)
        if isinstance(parsed, list):
            return f"--set {key}: {'; '.join(map(str, parsed))}"
        switched[program] = parsed
    file = settings.get("scheduler.config")
    scheduler = scheduler_setup.scheduler_assembly(Path(file) if file else None, switched["scheduler"])
    if isinstance(scheduler, str):
        return f"--set scheduler.config: {scheduler}"
    file = settings.get("descheduler.config")
    descheduler = local_descheduler.descheduler_assembly(Path(file) if file else None)
    if isinstance(descheduler, str):
        return f"--set descheduler.config: {descheduler}"
    options = ClusterOptions(
        asked, scheduler, ManagerSettings(gates=switched["manager"]), descheduler, switched, agents, dashboard
    )
    return [(name, _component_maker(name, options)) for name in COMPONENTS if name in names]


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may mean any address
        return False


def _component_maker(name: str, options: ClusterOptions) -> ComponentFactory:
    make = COMPONENTS[name]
    return lambda context: make(context, options)  # type: ignore[return-value]
