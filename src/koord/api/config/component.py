"""This module holds what every component configures alike: leader election, client, profiling, addresses; and fills in
defaults as Go programs do: of pointers that are nil, and of values that are zero.

Components with plugins select those of an extension point from defaults and a profile, and type their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.config.decode import decode_strict
from koord.api.config.field_error import FieldError, duplicate_errors, duration_errors, range_errors, required_error
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


ALL_PLUGINS = "*"
A = TypeVar("A", bound=Model)


class PluginEntry(Model, frozen=True, kw_only=True):
    name: str = ""
    weight: int | None = None  # score points only


class PluginSet(Model, frozen=True, kw_only=True):
    enabled: tuple[PluginEntry, ...] = ()
    disabled: tuple[PluginEntry, ...] = ()

    def disables(self, name: str) -> bool:
        return any(plugin.name in (name, ALL_PLUGINS) for plugin in self.disabled)


class PluginConfig(Model, frozen=True, kw_only=True):
    """PluginConfig is a plugin's arguments. They stay unstructured: their kind may be one that we do not know."""

    name: str = ""
    args: dict[str, Any] = {}


class PluginArgsKind(msgspec.Struct, Generic[A], frozen=True):
    """PluginArgsKind is the shape of a plugin's arguments: their model, defaults and validation."""

    model: type[A]
    defaulted: Callable[[Any], A] = lambda args: args
    validate: Callable[[Any], list[FieldError]] = lambda _: []

    def typed(
        self, plugin: str, raw: dict[str, Any] | None, api_version: str, mismatch: str = ""
    ) -> A | list[FieldError]:
        """Return the defaulted, validated arguments, or all errors. `mismatch` introduces that of another kind."""
        document = raw or {}
        errors = [
            FieldError(field, document[field], f"{mismatch}must be {wanted!r}")
            for field, wanted in (("apiVersion", api_version), ("kind", f"{plugin}Args"))
            if document.get(field, wanted) != wanted
        ]
        given = decode_strict(document, self.model)
        if isinstance(given, list):
            return errors + given
        args = self.defaulted(given)
        return (errors + self.validate(args)) or args


def enable_plugins(*names: str, **weights: int) -> PluginSet:
    """Make a set of enabled plugins in order, with weights where they matter."""
    return PluginSet(enabled=tuple(PluginEntry(name=name, weight=weights.get(name)) for name in names))


def merge_plugin_sets(defaults: PluginSet, custom: PluginSet) -> PluginSet:
    """Merge a custom set over the defaults: defaults that are not disabled keep their place, the rest follow.

    A name that is given twice stays twice, for validation to refuse.
    """
    replacing = {plugin.name: index for index, plugin in enumerate(custom.enabled)}
    kept = [p for p in defaults.enabled if not custom.disables(p.name)]
    placed = {replacing[p.name] for p in kept if p.name in replacing}
    return PluginSet(
        enabled=(
            *(custom.enabled[replacing[p.name]] if p.name in replacing else p for p in kept),
            *(plugin for index, plugin in enumerate(custom.enabled) if index not in placed),
        ),
        disabled=(*custom.disabled, *defaults.disabled),
    )


def expand_multi_point(
    multi_point: PluginSet, at_point: PluginSet, implements: Callable[[str], bool]
) -> tuple[PluginEntry, ...]:
    """Return the plugins of one extension point, in Kubernetes' order.

    First come those that both sets name, as the point orders them; then the others of the multi-point set that
    have this point and are not disabled at it; then the others that the point names. Where a point disables
    all, or disables a plugin that it names itself, the multi-point set has no say, not even about the order.
    """
    if at_point.disables(ALL_PLUGINS):
        return at_point.enabled
    spread = [p for p in multi_point.enabled if not at_point.disables(p.name) and implements(p.name)]
    everywhere = {plugin.name for plugin in spread}
    here = {plugin.name for plugin in at_point.enabled}
    return (
        *(plugin for plugin in at_point.enabled if plugin.name in everywhere),
        *(plugin for plugin in spread if plugin.name not in here),
        *(plugin for plugin in at_point.enabled if plugin.name not in everywhere),
    )


def validate_plugin_configs(configs: tuple[PluginConfig, ...], path: str) -> list[FieldError]:
    nameless = [required_error(f"{path}[{i}].name") for i, config in enumerate(configs) if not config.name]
    return nameless + duplicate_errors(path, (config.name for config in configs if config.name))
