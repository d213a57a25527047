"""FragmentationAware: keep GPUs of use to the pods of this cluster."""

from koord.scheduler.plugins.fragmentation_aware.plugin import FragmentationAware

__all__ = ["FragmentationAware"]
