"""FragmentationAware keeps GPUs usable for the pods that the cluster typically runs."""

from koord.scheduler.plugins.fragmentation_aware.plugin import FragmentationAware

__all__ = ["FragmentationAware"]
