"""This module settles the flags and configuration of a control-plane program before any connection is made,
leader election included.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from koord.api.config.component import LeaderElectionConfiguration
from koord.api.koordinator import protocol
from koord.cli.daemons import flag_set as kind
from koord.cli.daemons.flag_set import Flag, FlagSet, FlagValues
from koord.cli.daemons.lifecycle import report_errors
from koord.cli.daemons.serving_flags import FlagError, metrics_registry_from_flags, port_errors, secure_addresses
from koord.kube.config import loader
from koord.kube.config.connection import BadConfig, Connection
from koord.kube.controller.process import ControllerProcess, ControllerProgram, ListenAddress, StartupError
from koord.kube.leader_election import LeaseConfig
from koord.telemetry.clock import WallClock
from koord.telemetry.metrics import MetricRegistry
from koord.values import duration

_SECOND = 1_000_000_000

LEADER_ELECTION_FLAGS = (
    Flag("leader-elect", kind.BOOLEAN, "Work only while holding the lease. Needed for more than one replica.", True),
    Flag("leader-elect-lease-duration", kind.DURATION, "After so long without renewal others may lead.", 15 * _SECOND),
    Flag("leader-elect-renew-deadline", kind.DURATION, "After so long without renewal the leader stops.", 10 * _SECOND),
    Flag("leader-elect-resource-lock", kind.TEXT, "What is locked. Supported options are 'leases'.", "leases"),
    Flag("leader-elect-resource-name", kind.TEXT, "Name of the lease.", protocol.SCHEDULER),
    Flag("leader-elect-resource-namespace", kind.TEXT, "Namespace of the lease.", protocol.NAMESPACE),
    Flag("leader-elect-retry-period", kind.DURATION, "Time between attempts to get or renew it.", 2 * _SECOND),
)


def apply_election_flags(given: LeaderElectionConfiguration, values: FlagValues) -> LeaderElectionConfiguration:
    """Apply the flags that were given over a file's leader election."""
    stated: dict[str, bool | str] = {}
    if values.is_set("leader-elect"):
        stated["leader_elect"] = values.switch("leader-elect")
    for field in ("lease_duration", "renew_deadline", "retry_period"):
        name = f"leader-elect-{field.replace('_', '-')}"
        if values.is_set(name):
            stated[field] = duration.text(values.number(name))
    for field in ("resource_lock", "resource_name", "resource_namespace"):
        name = f"leader-elect-{field.replace('_', '-')}"
        if values.is_set(name):
            stated[field] = values.text(name)
    election: LeaderElectionConfiguration = msgspec.structs.replace(given, **stated)
    return election


def lease_config(given: LeaderElectionConfiguration, identity: str) -> LeaseConfig | None:
    """Return the lease to hold, or None without election."""
    if not given.leader_elect:
        return None
    return LeaseConfig(
        name=given.resource_name,
        namespace=given.resource_namespace,
        identity=identity,
        duration_s=math.ceil(duration.parse_seconds(given.lease_duration or "15s")),  # the wire has whole seconds
        renew_deadline_s=duration.parse_seconds(given.renew_deadline or "10s"),
        retry_s=duration.parse_seconds(given.retry_period or "2s"),
    )


_LOG = logging.getLogger(__name__)


class UsableConfig(Protocol):
    """UsableConfig is a configuration that can be used."""

    @property
    def notes(self) -> Sequence[str]:
        """Return what the operator should read in the log."""


R = TypeVar("R", bound=UsableConfig)


class Bootstrap(msgspec.Struct, frozen=True, kw_only=True):
    """Bootstrap is what every control-plane program needs to start."""

    connection: Connection
    registry: MetricRegistry
    secure_addresses: tuple[ListenAddress, ...]  # none, or the one of --secure-port


def settle_configuration(
    flags: FlagSet, values: FlagValues, configured: Callable[[FlagValues], R | list[str]]
) -> R | int:
    """Return the configuration, or the exit code after printing what is wrong, one line each."""
    for name, why in flags.set_without_effect(values):
        _LOG.info("--%s has no effect: %s", name, why)
    wrong = port_errors(values, "port", "secure-port")
    ready = configured(values)
    if isinstance(ready, list) or wrong:
        return report_errors(flags.program, wrong + (ready if isinstance(ready, list) else []))
    for note in ready.notes:
        _LOG.warning("%s", note)
    return ready


def write_config(program: str, text: str, path: Path) -> int:
    """Write the configuration for --write-config-to and return the exit code."""
    try:
        path.write_text(text)
    except OSError as trouble:
        return report_errors(program, [f"--write-config-to: open {path}: {(trouble.strerror or str(trouble)).lower()}"])
    _LOG.info("wrote configuration to %s", path)
    return 0


def bootstrap(program: str, values: FlagValues, environ: Mapping[str, str], kubeconfig: str) -> Bootstrap | FlagError:
    registry = metrics_registry_from_flags(values)
    if isinstance(registry, FlagError):
        return registry
    secure = secure_addresses(values, environ, program)
    if isinstance(secure, FlagError):
        return secure
    try:
        connection = loader.daemon_connection(environ, WallClock(), kubeconfig=kubeconfig, master=values.text("master"))
    except BadConfig as bad:
        return FlagError(str(bad))
    return Bootstrap(connection=connection, registry=registry, secure_addresses=secure)


async def run_process(process: ControllerProcess, program: ControllerProgram, stop: asyncio.Event) -> int:
    """Run the program and return the exit code; print why it could not start."""
    try:
        return await process.run(program, stop)
    except StartupError as why:
        return report_errors(process.settings.name, [str(why)])
