"""This module makes koord-scheduler's configuration from its flags: a file or the shipped profile, overrides,
and gates.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from koord.api.config import gates as gate_text
from koord.api.config.component import ClientConnection
from koord.api.config.field_error import FieldError
from koord.api.config.gate_tables import SCHEDULER as GATES
from koord.api.config.kubernetes_gates import KUBERNETES
from koord.api.config.scheduler import shipped
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.cli.election import with_election
from koord.cli.flags import Values
from koord.scheduler.assembly import Assembly, load, without_unbuilt
from koord.scheduler.plugins.registry import ENTRY_POINTS, registered

# Of kube-scheduler; a file says these things itself.
_ONLY_WITHOUT_FILE = ("kube-api-burst", "kube-api-content-type", "kube-api-qps", "kubeconfig", "profiling")


class Configured(msgspec.Struct, frozen=True):
    assembly: Assembly
    notes: tuple[str, ...]  # what the operator should read in the log


def configured(values: Values) -> Configured | list[str]:
    """Return the configuration, or everything that is wrong with it, a line each with the field's name."""
    gates = _gates(values)
    if isinstance(gates, list):
        return gates
    factories = registered(entry_points(group=ENTRY_POINTS))
    notes: list[str] = []
    path = values.text("config")
    if path:
        read = _file(path)
        if isinstance(read, list):
            return read
        config = read
        ignored = [name for name in (*_ONLY_WITHOUT_FILE, "contention-profiling") if values.given(name)]
        notes += [f"--{name} is ignored: the file of --config says it" for name in ignored]
    else:
        config, missing = without_unbuilt(_with_deprecated(shipped.configuration(), values), factories)
        if missing:
            notes.append(f"the shipped profile runs without plugins that are still to come: {', '.join(missing)}")
    elected = msgspec.structs.replace(config, leader_election=with_election(config.leader_election, values))
    made = Assembly.of(elected, factories, gates)
    if isinstance(made, list):
        return _listed(path, made)
    if made.unused:
        notes.append(f"arguments without effect, as these plugins are not enabled: {', '.join(made.unused)}")
    foreign = sorted(_foreign_gates(values))
    if foreign:
        notes.append(f"feature gates of Kubernetes that change nothing here: {', '.join(foreign)}")
    return Configured(made, tuple(notes))


def _file(path: str) -> KubeSchedulerConfiguration | list[str]:
    try:
        text = Path(path).read_bytes()
    except OSError as trouble:
        return [f"--config: open {path}: {(trouble.strerror or str(trouble)).lower()}"]
    read = load(text)
    return _listed(path, read) if isinstance(read, list) else read


def _listed(path: str, errors: list[FieldError]) -> list[str]:
    where = f"--config {path}: " if path else ""
    return [f"{where}{error}" for error in errors]


def _with_deprecated(config: KubeSchedulerConfiguration, values: Values) -> KubeSchedulerConfiguration:
    connection = ClientConnection(
        kubeconfig=values.text("kubeconfig"),
        qps=values.ratio("kube-api-qps"),
        burst=values.number("kube-api-burst"),
    )
    profiling = values.switch("profiling")
    contention = values.switch("contention-profiling")
    return msgspec.structs.replace(
        config,
        client_connection=connection,
        enable_profiling=profiling,
        enable_contention_profiling=contention,
    )


def _gates(values: Values) -> dict[str, bool] | list[str]:
    parsed = gate_text.parse(_gate_text(values), GATES, KUBERNETES)
    return [f"--feature-gates: {error}" for error in parsed] if isinstance(parsed, list) else parsed


def _gate_text(values: Values) -> str:
    """Join the gates. Kubernetes names the component before a gate, as in kube:Name=true."""
    parts = [part.strip() for text in values.strings("feature-gates") for part in text.split(",")]
    return ",".join(part.removeprefix("kube:") for part in parts if part)


def _foreign_gates(values: Values) -> set[str]:
    named = {part.partition("=")[0].strip() for part in _gate_text(values).split(",") if part}
    return {name for name in named if name in KUBERNETES and name not in GATES}
