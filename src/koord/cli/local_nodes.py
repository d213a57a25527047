"""This module lists the programs that `koord up` can run inside its process, and makes each from the command
line.
"""

from __future__ import annotations

from koord.embedded.cluster import Component, Context
from koord.embedded.kubelet.fleet import Fleet
from koord.embedded.kubelet.fleet import Settings as FleetSettings
from koord.embedded.kubelet.profile import Pool


def make(context: Context, pools: tuple[Pool, ...], *, agents: bool) -> Component:
    if agents:
        from koord.cli.local_agents import LocalAgents  # a tenth of a second to load, for those who want it

        return LocalAgents(context, pools)
    return Fleet(context.client, context.informers, context.clock, context.seed, pools, FleetSettings(reports=True))
