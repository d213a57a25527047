"""DefaultPreemption makes room for pods of higher priority."""

from koord.scheduler.plugins.default_preemption.plugin import DefaultPreemption

__all__ = ["DefaultPreemption"]
