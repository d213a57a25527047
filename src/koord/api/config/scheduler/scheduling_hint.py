"""Arguments of SchedulingHint."""

from __future__ import annotations

import msgspec

from koord.api.config.field_error import FieldError, within
from koord.api.config.scheduler.args import PluginArgs


class SchedulingHintArgs(PluginArgs, frozen=True, kw_only=True):
    max_hint_nodes: int | None = None


def defaulted(args: SchedulingHintArgs) -> SchedulingHintArgs:
    return msgspec.structs.replace(args, max_hint_nodes=100 if args.max_hint_nodes is None else args.max_hint_nodes)


def validate(args: SchedulingHintArgs) -> list[FieldError]:
    return within("maxHintNodes", args.max_hint_nodes, above=0)
