"""LoadAwareScheduling places pods by what nodes really use."""

from koord.scheduler.plugins.load_aware.least_loaded import load_aware
from koord.scheduler.plugins.load_aware.plugin import LoadAwareScheduling

__all__ = ["LoadAwareScheduling", "load_aware"]
