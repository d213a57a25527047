"""Arguments of NodeResourcesFitPlus: an allocation strategy and a weight per resource."""

from __future__ import annotations

from koord.api.config.scheduler.args import PluginArgs
from koord.api.model import Model


class ResourceType(Model, frozen=True, kw_only=True):
    type: str = ""
    weight: int = 0


class NodeResourcesFitPlusArgs(PluginArgs, frozen=True, kw_only=True):
    """NodeResourcesFitPlusArgs has no defaults, and upstream validates nothing: an unknown type scores 0."""

    resources: dict[str, ResourceType] = {}


def defaulted(args: NodeResourcesFitPlusArgs) -> NodeResourcesFitPlusArgs:
    return args
