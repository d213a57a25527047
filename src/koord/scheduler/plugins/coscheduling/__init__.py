"""Gangs: pods that get their nodes together or not at all. The loop is drawn in `koord.policy.gang.round`."""

from koord.scheduler.plugins.coscheduling.network_plugin import NetworkCoscheduling, coscheduling
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling

__all__ = ["Coscheduling", "NetworkCoscheduling", "coscheduling"]
