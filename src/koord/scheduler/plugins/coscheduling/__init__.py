"""Gangs: pods that get their nodes together or not at all. The loop is drawn in `koord.policy.gang.round`."""

from koord.scheduler.plugins.coscheduling.plugin import Coscheduling, coscheduling

__all__ = ["Coscheduling", "coscheduling"]
