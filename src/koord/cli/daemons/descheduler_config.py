"""This module holds koord-descheduler's flags, and makes its configuration from them: a file or the default, flag
overrides, and gates.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from koord.api.config import gates as gate_text
from koord.api.config.component import ClientConnectionConfiguration
from koord.api.config.descheduler.configuration import KIND, DeschedulerConfiguration
from koord.api.config.descheduler.plugin_args import API_VERSION
from koord.api.config.field_error import FieldError
from koord.api.koordinator.protocol import DESCHEDULER_NAME
from koord.cli.daemons import flag_set as kind
from koord.cli.daemons.flag_set import Flag, FlagSet, FlagValues
from koord.cli.daemons.lifecycle import LOGGING_FLAGS
from koord.cli.daemons.serving_flags import (
    AUTHENTICATION_FLAGS,
    AUTHORIZATION_FLAGS,
    METRICS_FLAGS,
    SECURE_SERVING_FLAGS,
)
from koord.cli.daemons.startup import LEADER_ELECTION_FLAGS, apply_election_flags
from koord.descheduler.configuration import DESCHEDULER_GATES, DeschedulerSetup, build_setup, load_config
from koord.descheduler.plugins.registry import ENTRY_POINT_GROUP, load_registry
from koord.values.json_text import MalformedText
from koord.values.yaml_text import load_yaml

DESCHEDULER_PROGRAM = DESCHEDULER_NAME
DESCHEDULER_SECURE_PORT = 10258
_ABOUT = """
koord-descheduler looks for pods that had better run elsewhere and moves them: it reserves a place first, then evicts.
Without --config it runs the migration controller alone, which carries out PodMigrationJobs that others create.
"""
_MISC = (
    Flag("config", kind.TEXT, "The path to the configuration file (DeschedulerConfiguration)."),
    Flag("kubeconfig", kind.TEXT, "Path to a kubeconfig file. Ignored when --config names one."),
    Flag("master", kind.TEXT, "The address of the Kubernetes API server (overrides any value in kubeconfig)"),
    Flag("write-config-to", kind.TEXT, "If set, write the configuration values to this file and exit."),
)
_INSECURE = (
    Flag("address", kind.ADDRESS, "The IP address on which to listen for --port. Ignored with --config.", "0.0.0.0"),
    Flag("port", kind.INTEGER, "The port on which to serve HTTP; 0 is none. Ignored with --config.", 10251),
)
_GATES = (
    Flag(
        "feature-gates",
        kind.GATES,
        "A set of key=value pairs that describe feature gates. Options are:\n"
        + gate_text.describe_feature_gates(DESCHEDULER_GATES),
    ),
)


def descheduler_flags() -> FlagSet:
    return FlagSet(
        DESCHEDULER_PROGRAM,
        _ABOUT,
        {
            "Misc": _MISC,
            "Secure serving": _with_defaults(SECURE_SERVING_FLAGS, {"secure-port": DESCHEDULER_SECURE_PORT}),
            "Insecure serving": _INSECURE,
            "Authentication": AUTHENTICATION_FLAGS,
            "Authorization": AUTHORIZATION_FLAGS,
            "Leader election": _with_defaults(LEADER_ELECTION_FLAGS, {"leader-elect-resource-name": DESCHEDULER_NAME}),
            "Feature gate": _GATES,
            "Metrics": METRICS_FLAGS,
            "Logs": LOGGING_FLAGS,
        },
    )


def _with_defaults(flags: tuple[Flag, ...], defaults: dict[str, object]) -> tuple[Flag, ...]:
    """Return the same flags with other defaults."""
    return tuple(
        msgspec.structs.replace(flag, default=defaults[flag.name]) if flag.name in defaults else flag for flag in flags
    )


class DeschedulerConfigured(msgspec.Struct, frozen=True):
    assembly: DeschedulerSetup
    gates: frozenset[str]  # those that are on
    notes: tuple[str, ...]  # what the operator should read in the log


def descheduler_configuration(values: FlagValues) -> DeschedulerConfigured | list[str]:
    """Return the configuration, or everything that is wrong with it, a line each with the field's name."""
    gates = gate_text.parse_feature_gates(",".join(values.strings("feature-gates")), DESCHEDULER_GATES)
    if isinstance(gates, list):
        return [f"--feature-gates: {error}" for error in gates]
    path = values.text("config")
    notes = gate_text.feature_gate_warnings(gates, DESCHEDULER_GATES)
    config = DeschedulerConfiguration()
    if path:
        found = read_descheduler_config(path, "--config")
        if isinstance(found, list):
            return found
        config = found
        ignored = [name for name in ("address", "port") if values.is_set(name)]
        notes += [f"--{name} is ignored: the file of --config says it" for name in ignored]
    else:
        place = f"{values.text('address')}:{values.number('port')}"
        config = msgspec.structs.replace(config, healthz_bind_address=place, metrics_bind_address=place)
    if values.text("kubeconfig") and not config.client_connection.kubeconfig:
        connection: ClientConnectionConfiguration = msgspec.structs.replace(
            config.client_connection, kubeconfig=values.text("kubeconfig")
        )
        config = msgspec.structs.replace(config, client_connection=connection)
    elected = msgspec.structs.replace(config, leader_election=apply_election_flags(config.leader_election, values))
    plugins = load_registry(entry_points(group=ENTRY_POINT_GROUP))
    notes += plugins.warnings
    made = build_setup(elected, plugins.factories)
    if isinstance(made, list):
        return _error_lines(path, made)
    return DeschedulerConfigured(made, frozenset(name for name, on in gates.items() if on), tuple(notes))


def read_descheduler_config(path: str, flag: str = "") -> DeschedulerConfiguration | list[str]:
    """Read a file strictly and before defaults; or return all that is wrong with it, a line each that starts with
    `flag`.
    """
    where = f"{flag} {path}" if flag else path
    try:
        document = load_yaml(Path(path).read_bytes())
    except OSError as trouble:
        return [f"{f'{flag}: ' if flag else ''}open {path}: {(trouble.strerror or str(trouble)).lower()}"]
    if isinstance(document, MalformedText):
        return [f"{where} {document}"]
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if isinstance(document, dict) and document.get(field, wanted) != wanted:
            return [f"{where}: {field}: must be {wanted!r}, not {document[field]!r}"]
    found = load_config(document)
    return [f"{where}: {error}" for error in found] if isinstance(found, list) else found


def _error_lines(path: str, errors: list[FieldError]) -> list[str]:
    where = f"--config {path}: " if path else ""
    return [f"{where}{error}" for error in errors]
