"""InterPodAffinity places pods by the pods that run near them; `filter` and `score` hold its rules."""

from koord.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity

__all__ = ["InterPodAffinity"]
