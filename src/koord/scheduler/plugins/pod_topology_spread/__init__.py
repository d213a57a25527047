"""PodTopologySpread: see `plugin` for the plugin, `filter` and `score` for its formulas."""

from koord.scheduler.plugins.pod_topology_spread.plugin import PodTopologySpread

__all__ = ["PodTopologySpread"]
