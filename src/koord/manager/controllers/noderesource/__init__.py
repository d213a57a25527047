"""Keeps what each node lends to batch and mid work, its devices and its ratios written on the node."""

from koord.manager.controllers.noderesource.controller import NodeResourceController

__all__ = ["NodeResourceController"]
