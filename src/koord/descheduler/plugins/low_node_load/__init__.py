"""LowNodeLoad: balance by what nodes really use."""

from koord.descheduler.plugins.low_node_load.plugin import LowNodeLoad

__all__ = ["LowNodeLoad"]
