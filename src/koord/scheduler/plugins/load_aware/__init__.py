"""LoadAwareScheduling places pods by what nodes really use."""

from koord.scheduler.plugins.load_aware.plugin import LoadAwareScheduling, new_load_aware

__all__ = ["LoadAwareScheduling", "new_load_aware"]
