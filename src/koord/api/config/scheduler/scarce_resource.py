"""Arguments of ScarceResourceAvoidance: the resources that pods without need of them should keep away from."""

from __future__ import annotations

from koord.api.config.scheduler.args import PluginArgs


class ScarceResourceAvoidanceArgs(PluginArgs, frozen=True, kw_only=True):
    """ScarceResourceAvoidanceArgs names the resources that pods without need of them should keep away from."""
    resources: tuple[str, ...] = ()


def defaulted(args: ScarceResourceAvoidanceArgs) -> ScarceResourceAvoidanceArgs:
    return args
