"""This module lists the programs that `koord up` can run inside its process, and makes each from the command
line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from koord.api.config import gates
from koord.api.config.gate_tables import MANAGER
from koord.cli import local_descheduler, local_manager, local_nodes, local_scheduler
from koord.descheduler.assembly import Assembly as Descheduling
from koord.embedded.cluster import Context, Maker
from koord.embedded.kubelet import profile as node_profile
from koord.embedded.kubelet.profile import Pool
from koord.embedded.workloads.workloads import Workloads
from koord.manager.world import Settings as ManagerSettings
from koord.scheduler.assembly import Assembly


class Wish(msgspec.Struct, frozen=True):
    """ClusterOptions is what the command line says about the cluster's content."""

    pools: tuple[Pool, ...]
    scheduler: Assembly
    manager: ManagerSettings
    descheduler: Descheduling
    agents: bool = False  # whether every simulated node runs the node agent


# What `--set` understands, with a line of help for each.
SETTINGS = {
    "scheduler.config": "a KubeSchedulerConfiguration file for koord-scheduler",
    "manager.feature-gates": "gates of koord-manager, as name=true,other=false",
    "descheduler.config": "a DeschedulerConfiguration file; without one only PodMigrationJobs are carried out",
    "nodes.agents": "true: every simulated node runs the node agent's strategies on a machine of its own",
}

# In the order of starting.
COMPONENTS: dict[str, Callable[[Context, Wish], object]] = {
    "workloads": lambda c, _: Workloads(c.client, c.informers, c.clock, c.seed),
    "nodes": lambda c, wish: local_nodes.make(c, wish.pools, agents=wish.agents),
    "manager": lambda c, wish: local_manager.LocalManager(c, wish.manager),
    "scheduler": lambda c, wish: local_scheduler.make(c, wish.scheduler),
    "descheduler": lambda c, wish: local_descheduler.make(c, wish.descheduler),
}


def chosen(
    text: str, *, nodes: int, profile: Path | None, settings: Mapping[str, str]
) -> list[tuple[str, Maker]] | str:
    """Return the makers of the components named in `text` ("all", "", "a,b"), or what is wrong with it."""
    names = list(COMPONENTS) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    known = ", ".join(COMPONENTS)
    unknown = [name for name in names if name not in COMPONENTS]
    if unknown:
        return f"--components {text}: no component {', '.join(unknown)}; there are {known}"
    for key in settings:
        if key not in SETTINGS:
            there_are = "; ".join(f"{name}: {what}" for name, what in SETTINGS.items())
            return f"--set {key}: there is no such setting; there are {there_are}"
    file = settings.get("scheduler.config")
    scheduler = local_scheduler.assembled(Path(file) if file else None)
    if isinstance(scheduler, str):
        return f"--set scheduler.config: {scheduler}"
    file = settings.get("descheduler.config")
    descheduler = local_descheduler.assembled(Path(file) if file else None)
    if isinstance(descheduler, str):
        return f"--set descheduler.config: {descheduler}"
    switched = gates.parse(settings.get("manager.feature-gates", ""), MANAGER)
    if isinstance(switched, list):
        return f"--set manager.feature-gates: {'; '.join(map(str, switched))}"
    pools: tuple[Pool, ...] | node_profile.BadProfile
    pools = node_profile.load(profile) if profile is not None else node_profile.default_pools(nodes)
    if isinstance(pools, node_profile.BadProfile):
        return f"--profile {profile}: {'; '.join(pools.errors)}"
    agents = settings.get("nodes.agents", "false")
    if agents not in ("true", "false"):
        return f"--set nodes.agents={agents}: must be true or false"
    wish = Wish(pools, scheduler, ManagerSettings(gates=switched), descheduler, agents == "true")
    return [(name, _maker(name, wish)) for name in COMPONENTS if name in names]


def _maker(name: str, wish: Wish) -> Maker:
    make = COMPONENTS[name]
    return lambda context: make(context, wish)  # type: ignore[return-value]
