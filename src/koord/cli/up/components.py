"""This module lists the programs that `koord up` can run inside its process, and makes each from the command
line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from koord.api.config import gates
from koord.api.config.gates import MANAGER_GATES
from koord.cli.up import local_descheduler, local_manager, local_scheduler
from koord.descheduler.configuration import DeschedulerSetup as Descheduling
from koord.embedded.cluster import Component, ComponentContext, ComponentFactory
from koord.embedded.kubelet import node_profile
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.manager.context import ManagerSettings
from koord.scheduler.configuration.completed_config import CompletedConfig


def make_nodes(context: ComponentContext, pools: tuple[SimulatedPool, ...], *, agents: bool) -> Component:
    if agents:
        from koord.cli.up.local_agents import LocalAgents  # a tenth of a second to load, for those who want it

        return LocalAgents(context, pools)
    return SimulatedFleet(
        context.client, context.informers, context.clock, context.seed, pools, FleetSettings(reports_node_metrics=True)
    )


class ClusterOptions(msgspec.Struct, frozen=True):
    """ClusterOptions is what the command line says about the cluster's content."""

    pools: tuple[SimulatedPool, ...]
    scheduler: CompletedConfig
    manager: ManagerSettings
    descheduler: Descheduling
    agents: bool = False  # whether every simulated node runs the node agent


# What `--set` understands, with a line of help for each.
SET_OPTIONS = {
    "scheduler.config": "a KubeSchedulerConfiguration file for koord-scheduler",
    "manager.feature-gates": "gates of koord-manager, as name=true,other=false",
    "descheduler.config": "a DeschedulerConfiguration file; without one only PodMigrationJobs are carried out",
    "nodes.agents": "true: every simulated node runs the node agent's strategies on a machine of its own",
}

# In the order of starting.
COMPONENTS: dict[str, Callable[[ComponentContext, ClusterOptions], object]] = {
    "workloads": lambda c, _: ControllerManager(c.client, c.informers, c.clock, c.seed, root_ca=c.root_ca),
    "nodes": lambda c, options: make_nodes(c, options.pools, agents=options.agents),
    "manager": lambda c, options: local_manager.LocalManager(c, options.manager),
    "scheduler": lambda c, options: local_scheduler.make_scheduler(c, options.scheduler),
    "descheduler": lambda c, options: local_descheduler.make_descheduler(c, options.descheduler),
}


def choose_components(
    text: str, *, nodes: int, profile: Path | None, settings: Mapping[str, str]
) -> list[tuple[str, ComponentFactory]] | str:
    """Return the makers of the components named in `text` ("all", "", "a,b"), or what is wrong with it."""
    names = list(COMPONENTS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    known = ", ".join(COMPONENTS)
    unknown = [name for name in names if name not in COMPONENTS]
    if unknown:
        return f"--components {text}: no component {', '.join(unknown)}; there are {known}"
    for key in settings:
        if key not in SET_OPTIONS:
            there_are = "; ".join(f"{name}: {what}" for name, what in SET_OPTIONS.items())
            return f"--set {key}: there is no such setting; there are {there_are}"
    file = settings.get("scheduler.config")
    scheduler = local_scheduler.scheduler_assembly(Path(file) if file else None)
    if isinstance(scheduler, str):
        return f"--set scheduler.config: {scheduler}"
    file = settings.get("descheduler.config")
    descheduler = local_descheduler.descheduler_assembly(Path(file) if file else None)
    if isinstance(descheduler, str):
        return f"--set descheduler.config: {descheduler}"
    switched = gates.parse_feature_gates(settings.get("manager.feature-gates", ""), MANAGER_GATES)
    if isinstance(switched, list):
        return f"--set manager.feature-gates: {'; '.join(map(str, switched))}"
    pools: tuple[SimulatedPool, ...] | node_profile.InvalidProfile
    pools = node_profile.load_profile(profile) if profile is not None else node_profile.default_pools(nodes)
    if isinstance(pools, node_profile.InvalidProfile):
        return f"--profile {profile}: {'; '.join(pools.errors)}"
    agents = settings.get("nodes.agents", "false")
    if agents not in ("true", "false"):
        return f"--set nodes.agents={agents}: must be true or false"
    options = ClusterOptions(pools, scheduler, ManagerSettings(gates=switched), descheduler, agents == "true")
    return [(name, _component_maker(name, options)) for name in COMPONENTS if name in names]


def _component_maker(name: str, options: ClusterOptions) -> ComponentFactory:
    make = COMPONENTS[name]
    return lambda context: make(context, options)  # type: ignore[return-value]
