"""Every command of koord that a document shows is one that the program knows, with options and values that it takes."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from koord.cli.daemons.descheduler_config import descheduler_flags
from koord.cli.daemons.flag_set import FlagParseError, FlagSet
from koord.cli.daemons.koord_device_daemon import DEVICE_DAEMON_FLAGS
from koord.cli.daemons.koord_runtime_proxy import RUNTIME_PROXY_FLAGS
from koord.cli.daemons.koord_yarn_copilot import YARN_COPILOT_FLAGS
from koord.cli.daemons.koord_yarn_operator import YARN_OPERATOR_FLAGS
from koord.cli.daemons.koordlet_flags import KOORDLET_FLAGS, to_double_dash
from koord.cli.daemons.manager_flags import MANAGER_FLAGS
from koord.cli.daemons.scheduler_config import scheduler_flags
from koord.cli.main import cli
from tests.document_blocks import DOCUMENTS, ROOT, commands

DAEMONS: dict[str, FlagSet] = {
    flags.program: flags
    for flags in (
        scheduler_flags(),
        descheduler_flags(),
        MANAGER_FLAGS,
        KOORDLET_FLAGS,
        RUNTIME_PROXY_FLAGS,
        YARN_COPILOT_FLAGS,
        YARN_OPERATOR_FLAGS,
        DEVICE_DAEMON_FLAGS,
    )
}
ELIDED = "..."  # more of the same


def parse_command(words: list[str]) -> str:
    """Return what is wrong with a command line of `koord`; nothing is run."""
    command: click.Command = cli
    context: click.Context | None = None
    names, rest = ["koord"], words[1:]
    try:
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            context = click.Context(command, parent=context, info_name=names[-1])
            found = command.get_command(context, rest[0])
            if found is None:
                return f"{' '.join(names)} has no command {rest[0]}"
            command, names, rest = found, [*names, rest[0]], rest[1:]
        command.make_context(names[-1], list(rest), parent=context)
    except click.exceptions.Exit:  # --help and --version end there
        return ""
    except click.UsageError as wrong:
        return wrong.format_message()
    return ""


def parse_daemon(flags: FlagSet, words: list[str]) -> str:
    rest = words[1:]
    if flags is KOORDLET_FLAGS:
        rest = to_double_dash(rest[1:] if rest[:1] == ["restore"] else rest)
    wrong = flags.parse(rest)
    return str(wrong) if isinstance(wrong, FlagParseError) else ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_known(document: Path) -> None:
    wrong = []
    for words in commands(document, "koord", "kubectl-koord", *DAEMONS):
        words = [word for word in words if word != ELIDED]
        name = Path(words[0]).name
        problem = parse_daemon(DAEMONS[name], words) if name in DAEMONS else parse_command(words)
        if problem:
            wrong.append(f"{' '.join(words)}: {problem}")
    assert wrong == []


def test_wrong_commands_are_found() -> None:
    assert parse_command(["koord", "explain", "pods", "a"]) == "koord explain has no command pods"
    assert "No such option" in parse_command(["koord", "up", "--node", "3"])
    assert parse_command(["koord", "up", "--nodes", "three"])
    assert parse_daemon(MANAGER_FLAGS, ["koord-manager", "--nothing"])
    assert len(DAEMONS) == 8
