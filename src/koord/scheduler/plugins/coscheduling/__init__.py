"""Coscheduling gives the members of a gang their nodes together or not at all; `gang_manager` draws the loop."""

from koord.scheduler.plugins.coscheduling.network_plugin import NetworkCoscheduling, new_coscheduling
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling

__all__ = ["Coscheduling", "NetworkCoscheduling", "new_coscheduling"]
