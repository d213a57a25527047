"""`koord completion` prints scripts, and the scripts' questions are answered."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from koord.cli.main import cli


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --no-files")]
)
def test_each_shell_has_a_script(shell: str, word: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert word in done.stdout
    assert "_KOORD_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("words", "at", "expected"),
    [
        ("koord ga", "1", "plain,gang"),
        ("koord top no", "2", "plain,nodes"),
        ("koord top nodes --wa", "3", "plain,--watch"),
        ("koord completion z", "2", "plain,zsh"),
    ],
)
def test_commands_and_options_are_completed(words: str, at: str, expected: str) -> None:
    environment = {"_KOORD_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": at}
    done = CliRunner().invoke(cli, [], env=environment, prog_name="koord")
    assert done.stdout.split() == [expected]


def test_another_shell_is_refused_with_the_choices() -> None:
    done = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in done.stderr
