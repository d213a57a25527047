"""Keep batch and mid resources, devices and ratios written on each node."""

from koord.manager.controllers.noderesource.controller import NodeResourceController

__all__ = ["NodeResourceController"]
