"""Every flag of koord-descheduler is read by something, or says why it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from koord.cli.daemons.descheduler_config import (
    DESCHEDULER_PROGRAM,
    DeschedulerConfigured,
    descheduler_configuration,
    descheduler_flags,
)
from koord.cli.daemons.flag_set import FlagParseError, FlagSet, FlagValues
from koord.cli.daemons.koord_descheduler import run_descheduler
from koord.cli.daemons.lifecycle import run_program
from koord.cli.daemons.serving_flags import FlagError
from koord.cli.daemons.startup import bootstrap
from koord.telemetry.logs import Logs

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
"""


class ReadValues(FlagValues):
    """Values that remember which of them were asked for."""

    def __init__(self, values: FlagValues, read: set[str]) -> None:
        super().__init__(Remembering(values._values, read), values._given)
        self._read = read

    def is_set(self, name: str) -> bool:
        self._read.add(name)
        return super().is_set(name)


class Remembering(Mapping[str, Any]):
    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        self._values = values
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class ReadFlags(FlagSet):
    """The flags of the program, whose values remember who asked."""

    def __init__(self) -> None:
        given = descheduler_flags()
        everywhere = ("help", "version")
        sections = {
            title: [flag for flag in flags if flag.name not in everywhere] for title, flags in given._sections.items()
        }
        super().__init__(given.program, given._about, sections)
        self.read: set[str] = set()

    def parse(self, argv: Sequence[str]) -> FlagValues | FlagParseError:
        values = super().parse(argv)
        return values if isinstance(values, FlagParseError) else ReadValues(values, self.read)


def test_every_flag_is_read_or_says_why_it_changes_nothing(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    flags = ReadFlags()

    def start(values: FlagValues, logs: Logs) -> int:
        made = descheduler_configuration(values)
        assert isinstance(made, DeschedulerConfigured)
        stand = bootstrap(DESCHEDULER_PROGRAM, values, {}, made.assembly.config.client_connection.kubeconfig)
        assert not isinstance(stand, FlagError), stand
        assert run_descheduler(values, logs, {}) == 0
        return 0

    argv = [f"--kubeconfig={kubeconfig}", f"--write-config-to={tmp_path / 'out.yaml'}"]
    assert run_program(flags, argv, start) == 0
    silent = [name for name, flag in flags.flags.items() if name not in flags.read and not flag.no_effect_reason]
    assert silent == []


@pytest.mark.parametrize("text", ["Nope=true", "DisablePVCReservation=maybe", "DisablePVCReservation"])
def test_a_gate_that_is_not_known_or_not_readable_is_one_line(text: str) -> None:
    values = descheduler_flags().parse([f"--feature-gates={text}"])
    assert isinstance(values, FlagValues)
    said = descheduler_configuration(values)
    assert isinstance(said, list)
    (line,) = said
    assert line.startswith(f"--feature-gates: {text.partition('=')[0]} ")
    assert "null" not in line
