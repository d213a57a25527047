"""PodTopologySpread spreads pods over topology domains; `filter` and `score` hold its formulas."""

from koord.scheduler.plugins.pod_topology_spread.plugin import PodTopologySpread

__all__ = ["PodTopologySpread"]
