"""This module holds the arguments of Koordinator's smaller scheduler plugins: Coscheduling, NodeNUMAResource,
DeviceShare, NodeResourcesFitPlus, ScarceResourceAvoidance and SchedulingHint.
"""

from __future__ import annotations

import msgspec

from koord.api.annotations.gang import MATCH_POLICIES, ONCE_SATISFIED
from koord.api.config.field_error import FieldError, duration_at_least, one_of, within
from koord.api.config.scheduler.args import PluginArgs
from koord.api.marker import Duration


class CoschedulingArgs(PluginArgs, frozen=True, kw_only=True):
    default_timeout: Duration | None = None
    controller_workers: int | None = None
    skip_check_schedule_cycle: bool | None = None  # accepted for old files, without effect
    enable_preemption: bool | None = None
    aware_network_topology: bool | None = None
    default_match_policy: str | None = None


def defaulted(args: CoschedulingArgs) -> CoschedulingArgs:
    return msgspec.structs.replace(
        args,
        default_timeout=args.default_timeout or "600s",
        controller_workers=1 if args.controller_workers is None else args.controller_workers,
        enable_preemption=args.enable_preemption or False,
        aware_network_topology=args.aware_network_topology or False,
        default_match_policy=args.default_match_policy or ONCE_SATISFIED,
    )


def validate(args: CoschedulingArgs) -> list[FieldError]:
    return [
        *duration_at_least("defaultTimeout", args.default_timeout),
        *within("controllerWorkers", args.controller_workers, low=1),
        *one_of("defaultMatchPolicy", args.default_match_policy, MATCH_POLICIES),
    ]
