"""This module holds koord-descheduler's flags, and makes its configuration from them: a file or the default,
flag overrides, and gates.
"""

from __future__ import annotations

import msgspec

from koord.api.config.gate_tables import DESCHEDULER as GATES
from koord.api.protocol import DESCHEDULER_NAME
from koord.cli import flag_kind as kind
from koord.cli.flags import Flag, FlagSet
from koord.cli.flags_logging import LOGGING
from koord.cli.flags_scheduler import LEADER_ELECTION
from koord.cli.flags_serving import AUTHENTICATION, AUTHORIZATION, METRICS, SECURE_SERVING

PROGRAM = DESCHEDULER_NAME
SECURE_PORT = 10258
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
        + "\n".join(
            f"{name}=true|false ({gate.stage.upper()} - default={str(gate.default).lower()})"
            for name, gate in sorted(GATES.items())
        ),
    ),
)


def descheduler_flags() -> FlagSet:
    return FlagSet(
        PROGRAM,
        _ABOUT,
        {
            "Misc": _MISC,
            "Secure serving": _renamed(SECURE_SERVING, {"secure-port": SECURE_PORT}),
            "Insecure serving": _INSECURE,
            "Authentication": AUTHENTICATION,
            "Authorization": AUTHORIZATION,
            "Leader election": _renamed(LEADER_ELECTION, {"leader-elect-resource-name": DESCHEDULER_NAME}),
            "Feature gate": _GATES,
            "Metrics": METRICS,
            "Logs": LOGGING,
        },
    )


def _renamed(flags: tuple[Flag, ...], defaults: dict[str, object]) -> tuple[Flag, ...]:
    """Return the same flags with other defaults."""
    return tuple(
        msgspec.structs.replace(flag, default=defaults[flag.name]) if flag.name in defaults else flag for flag in flags
    )
