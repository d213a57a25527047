"""This module makes koord-descheduler's configuration from its flags: a file or the default, flag overrides,
and gates.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import msgspec
import yaml

from koord.api.config import gates as gate_text
from koord.api.config.component import ClientConnection
from koord.api.config.descheduler.args import API_VERSION
from koord.api.config.descheduler.configuration import KIND, DeschedulerConfiguration
from koord.api.config.field_error import FieldError
from koord.api.config.gate_tables import DESCHEDULER as GATES
from koord.cli.election import with_election
from koord.cli.flags import Values
from koord.descheduler.assembly import Assembly, assemble, load
from koord.descheduler.plugins.registry import ENTRY_POINTS, registered


class Configured(msgspec.Struct, frozen=True):
    assembly: Assembly
    gates: frozenset[str]  # those that are on
    notes: tuple[str, ...]  # what the operator should read in the log


def configured(values: Values) -> Configured | list[str]:
    """Return the configuration, or everything that is wrong with it, a line each with the field's name."""
    gates = gate_text.parse(",".join(values.strings("feature-gates")), GATES)
    if isinstance(gates, list):
        return [f"--feature-gates: {error}" for error in gates]
    path, notes = values.text("config"), []
    config = DeschedulerConfiguration()
    if path:
        found = read(path, "--config")
        if isinstance(found, list):
            return found
        config = found
        ignored = [name for name in ("address", "port") if values.given(name)]
        notes = [f"--{name} is ignored: the file of --config says it" for name in ignored]
    else:
        place = f"{values.text('address')}:{values.number('port')}"
        config = msgspec.structs.replace(config, healthz_bind_address=place, metrics_bind_address=place)
    if values.text("kubeconfig") and not config.client_connection.kubeconfig:
        connection: ClientConnection = msgspec.structs.replace(
            config.client_connection, kubeconfig=values.text("kubeconfig")
        )
        config = msgspec.structs.replace(config, client_connection=connection)
    elected = msgspec.structs.replace(config, leader_election=with_election(config.leader_election, values))
    made = assemble(elected, registered(entry_points(group=ENTRY_POINTS)))
    if isinstance(made, list):
        return _listed(path, made)
    return Configured(made, frozenset(name for name, on in gates.items() if on), tuple(notes))


def read(path: str, flag: str = "") -> DeschedulerConfiguration | list[str]:
    """Read a file strictly and before defaults; or return all that is wrong with it, a line each that starts with
    `flag`.
    """
    where = f"{flag} {path}" if flag else path
    try:
        document = yaml.safe_load(Path(path).read_bytes())
    except OSError as trouble:
        return [f"{f'{flag}: ' if flag else ''}open {path}: {(trouble.strerror or str(trouble)).lower()}"]
    except yaml.YAMLError as trouble:
        return [f"{where}: not YAML: {' '.join(str(trouble).split())}"]
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if isinstance(document, dict) and document.get(field, wanted) != wanted:
            return [f"{where}: {field}: must be {wanted!r}, not {document[field]!r}"]
    found = load(document)
    return [f"{where}: {error}" for error in found] if isinstance(found, list) else found


def _listed(path: str, errors: list[FieldError]) -> list[str]:
    where = f"--config {path}: " if path else ""
    return [f"{where}{error}" for error in errors]
