"""InterPodAffinity: see `plugin` for the plugin, `filter` and `score` for its rules."""

from koord.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity

__all__ = ["InterPodAffinity"]
