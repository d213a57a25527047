"""DynamicResources allocates devices to the ResourceClaims of pods, as drivers publish them in ResourceSlices."""

from koord.scheduler.plugins.dynamic_resources.plugin import DynamicResources

__all__ = ["DynamicResources"]
