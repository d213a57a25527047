"""This module holds what every component configures alike: leader election, client, profiling, addresses; and fills in
defaults as Go programs do: of pointers that are nil, and of values that are zero.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from koord.api.config.field_error import FieldError, duration_errors, range_errors, required_error
from koord.api.model import Model
from koord.api.schema_markers import Duration
from koord.values import duration

JITTER = 1.2  # a retry may be stretched by this, and must still come before the deadline

S = TypeVar("S", bound=msgspec.Struct)


def fill_none(given: S, **defaults: Any) -> S:
    """Return the struct with its fields that are None set to the defaults."""
    return msgspec.structs.replace(given, **{k: v for k, v in defaults.items() if getattr(given, k) is None})


def fill_empty(given: S, **defaults: Any) -> S:
    """Return the struct with its fields that are None, zero or empty set to the defaults."""
    return msgspec.structs.replace(given, **{k: v for k, v in defaults.items() if not getattr(given, k)})


class LeaderElectionConfiguration(Model, frozen=True, kw_only=True):
    leader_elect: bool | None = None
    lease_duration: Duration | None = None
    renew_deadline: Duration | None = None
    retry_period: Duration | None = None
    resource_lock: str = ""
    resource_name: str = ""
    resource_namespace: str = ""


class ClientConnectionConfiguration(Model, frozen=True, kw_only=True):
    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = ""
    qps: float = 0.0
    burst: int = 0


def defaulted_election(given: LeaderElectionConfiguration, name: str, namespace: str) -> LeaderElectionConfiguration:
    return LeaderElectionConfiguration(
        leader_elect=True if given.leader_elect is None else given.leader_elect,
        lease_duration=_duration_or_default(given.lease_duration, "15s"),
        renew_deadline=_duration_or_default(given.renew_deadline, "10s"),
        retry_period=_duration_or_default(given.retry_period, "2s"),
        resource_lock=given.resource_lock or "leases",
        resource_name=given.resource_name or name,
        resource_namespace=given.resource_namespace or namespace,
    )


def _duration_or_default(given: str | None, default: str) -> str:
    """Return the default for a duration of zero or none. Malformed text is left for validation to report."""
    try:
        return given if given and duration.parse(given) else default
    except duration.DurationError:
        return given or default


def defaulted_client(given: ClientConnectionConfiguration) -> ClientConnectionConfiguration:
    """Fill in the client's defaults. The content type is JSON: upstream's protobuf buys a Python client nothing."""
    return fill_empty(given, content_type="application/json", qps=50.0, burst=100)


def validate_election(given: LeaderElectionConfiguration, path: str = "leaderElection") -> list[FieldError]:
    """Validate a defaulted election; nothing is checked of one that is switched off."""
    if not given.leader_elect:
        return []
    errors = []
    for name, value in (
        ("leaseDuration", given.lease_duration),
        ("renewDeadline", given.renew_deadline),
        ("retryPeriod", given.retry_period),
    ):
        errors += [required_error(f"{path}.{name}")] if value is None else duration_errors(f"{path}.{name}", value, 1)
    if given.resource_lock != "leases":
        errors.append(FieldError(f"{path}.resourceLock", given.resource_lock, "must be 'leases'"))
    for name, value in (("resourceName", given.resource_name), ("resourceNamespace", given.resource_namespace)):
        errors += [] if value else [required_error(f"{path}.{name}")]
    return errors or _timing_errors(given, path)


def _timing_errors(given: LeaderElectionConfiguration, path: str) -> list[FieldError]:
    lease, renew, retry = (
        duration.parse(text or "0s") for text in (given.lease_duration, given.renew_deadline, given.retry_period)
    )
    if lease <= renew:
        return [FieldError(f"{path}.leaseDuration", given.lease_duration, "must be greater than renewDeadline")]
    if renew <= retry * JITTER:
        rule = f"must be greater than retryPeriod times {JITTER}"
        return [FieldError(f"{path}.renewDeadline", given.renew_deadline, rule)]
    return []


def validate_client(given: ClientConnectionConfiguration, path: str = "clientConnection") -> list[FieldError]:
    return range_errors(f"{path}.burst", given.burst, low=0)


def parse_bind_address(text: str) -> tuple[str, int] | None:
    """Parse host:port; the host may be empty, which is every interface, or stand in brackets. None is no address."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        return None
    return host.strip("[]"), int(port)
