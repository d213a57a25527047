"""This module settles the flags and configuration of a control-plane program before any connection is made,
leader election included.
"""

from __future__ import annotations

import math

import msgspec

from koord.api.config.component import LeaderElection
from koord.cli.flags import Values
from koord.kube.lease import LeaseConfig
from koord.values import duration


def with_election(given: LeaderElection, values: Values) -> LeaderElection:
    """Apply the flags that were given over a file's leader election."""
    stated: dict[str, bool | str] = {}
    if values.given("leader-elect"):
        stated["leader_elect"] = values.switch("leader-elect")
    for field in ("lease_duration", "renew_deadline", "retry_period"):
        name = f"leader-elect-{field.replace('_', '-')}"
        if values.given(name):
            stated[field] = duration.text(values.number(name))
    for field in ("resource_lock", "resource_name", "resource_namespace"):
        name = f"leader-elect-{field.replace('_', '-')}"
        if values.given(name):
            stated[field] = values.text(name)
    election: LeaderElection = msgspec.structs.replace(given, **stated)
    return election


def lease_of(given: LeaderElection, identity: str) -> LeaseConfig:
    return LeaseConfig(
        name=given.resource_name,
        namespace=given.resource_namespace,
        identity=identity,
        duration_s=math.ceil(duration.parse_seconds(given.lease_duration or "15s")),  # the wire has whole seconds
        renew_deadline_s=duration.parse_seconds(given.renew_deadline or "10s"),
        retry_s=duration.parse_seconds(given.retry_period or "2s"),
    )
