"""Arguments of NodeNUMAResource."""

from __future__ import annotations

import msgspec
from msgspec import field

from koord.api.annotations.resource_spec import FULL_PCPUS, SPREAD_BY_PCPUS
from koord.api.config.field_error import FieldError, one_of
from koord.api.config.scheduler.args import (
    LEAST_ALLOCATED,
    LEAST_CPU_AND_MEMORY,
    MOST_ALLOCATED,
    PluginArgs,
    ScoringStrategy,
    defaulted_strategy,
    validate_strategy,
)


class NodeNUMAResourceArgs(PluginArgs, frozen=True, kw_only=True):
    """NodeNUMAResourceArgs: an explicitly empty bind policy leaves LSE and LSR pods without a policy of their own
    unbound.
    """

    default_cpu_bind_policy: str | None = field(default=None, name="defaultCPUBindPolicy")
    scoring_strategy: ScoringStrategy | None = None
    numa_scoring_strategy: ScoringStrategy | None = None


def defaulted(args: NodeNUMAResourceArgs) -> NodeNUMAResourceArgs:
    policy = args.default_cpu_bind_policy
    return msgspec.structs.replace(
        args,
        default_cpu_bind_policy=FULL_PCPUS if policy is None else policy,
        scoring_strategy=defaulted_strategy(args.scoring_strategy, LEAST_CPU_AND_MEMORY),
        numa_scoring_strategy=defaulted_strategy(args.numa_scoring_strategy, LEAST_CPU_AND_MEMORY),
    )


def validate(args: NodeNUMAResourceArgs) -> list[FieldError]:
    types = (LEAST_ALLOCATED, MOST_ALLOCATED)
    return [
        *one_of("defaultCPUBindPolicy", args.default_cpu_bind_policy, ("", FULL_PCPUS, SPREAD_BY_PCPUS)),
        *validate_strategy(args.scoring_strategy, "scoringStrategy", types),
        *validate_strategy(args.numa_scoring_strategy, "numaScoringStrategy", types),
    ]
