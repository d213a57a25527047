"""LowNodeLoad balances nodes by their measured usage."""

from koord.descheduler.plugins.low_node_load.plugin import LowNodeLoad

__all__ = ["LowNodeLoad"]
