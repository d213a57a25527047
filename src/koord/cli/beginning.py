"""This module settles the flags and configuration of a control-plane program before any connection is made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from koord.cli import reaching
from koord.cli.flags import FlagSet, Values
from koord.cli.flags_serving import Wrong, certificate_of, port_trouble, registry_of
from koord.cli.program import refuse
from koord.kube.connection import BadConfig, Connection
from koord.telemetry.certificate import ServingCertificate
from koord.telemetry.clock import WallClock
from koord.telemetry.metrics.registry import Registry

_LOG = logging.getLogger(__name__)


class Ready(Protocol):
    """UsableConfig is a configuration that can be used."""

    @property
    def notes(self) -> Sequence[str]:
        """Return what the operator should read in the log."""


R = TypeVar("R", bound=Ready)


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """Bootstrap is what every control-plane program needs to start."""

    connection: Connection
    registry: Registry
    certificate: ServingCertificate | None


def settled(flags: FlagSet, values: Values, configured: Callable[[Values], R | list[str]]) -> R | int:
    """Return the configuration, or the exit code after printing what is wrong, one line each."""
    for name, why in flags.unused(values):
        _LOG.info("--%s has no effect: %s", name, why)
    wrong = port_trouble(values, "port", "secure-port")
    ready = configured(values)
    if isinstance(ready, list) or wrong:
        return refuse(flags.program, wrong + (ready if isinstance(ready, list) else []))
    for note in ready.notes:
        _LOG.warning("%s", note)
    return ready


def write_config(program: str, text: str, path: Path) -> int:
    """Write the configuration for --write-config-to and return the exit code."""
    try:
        path.write_text(text)
    except OSError as trouble:
        return refuse(program, [f"--write-config-to: open {path}: {(trouble.strerror or str(trouble)).lower()}"])
    _LOG.info("wrote configuration to %s", path)
    return 0


def ground(program: str, values: Values, environ: Mapping[str, str], kubeconfig: str) -> Ground | Wrong:
    registry = registry_of(values)
    if isinstance(registry, Wrong):
        return registry
    certificate = certificate_of(values, program) if values.number("secure-port") else None
    if isinstance(certificate, Wrong):
        return certificate
    try:
        connection = reaching.connection(environ, WallClock(), kubeconfig=kubeconfig, master=values.text("master"))
    except BadConfig as bad:
        return Wrong(str(bad))
    return Ground(connection=connection, registry=registry, certificate=certificate)
