"""Place pods by what nodes really use."""

from koord.scheduler.plugins.load_aware.plugin import LoadAwareScheduling

__all__ = ["LoadAwareScheduling"]
