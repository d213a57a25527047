"""This module reads a page of docs/tutorials as a list of commands and the output that the page shows for them, runs
them in one shell as a reader would paste them, and compares.

A block `sh` is run; `sh exit=1` is one that must end so, `sh until=WORD` has programs that run until Ctrl-C, which
they get once they printed that word, and `sh tier=yarn` is one that only that tier of the tests can run. A block
`output` after it is all that it printed: a line `...` stands for any lines, `...` within a line for any text, and the
number of blanks between words does not count, as columns are as wide as their longest value.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.document_blocks import ROOT, Block, fenced_blocks

TUTORIALS = ROOT / "docs" / "tutorials"
ANY = "..."
_MARK = "\x1e"  # no program prints it


@dataclass(frozen=True)
class Step:
    commands: str
    exit_code: int
    output: str | None = None  # None: the page shows none
    until: str = ""

    @property
    def script(self) -> str:
        if not self.until:
            return self.commands
        program = f"{shlex.quote(sys.executable)} -m tests.real.run_until {shlex.quote(self.until)}"
        lines = self.commands.replace("\\\n", " ").splitlines()
        return "".join(f"{program} {shlex.quote(line)}\n" for line in lines)


def read_step(block: Block) -> tuple[str, Step]:
    """Return the tier that runs a block, and what it does."""
    stated = re.fullmatch(r"(?:tier=(\w+))?(?: ?exit=(\d+))?(?: ?until=(\S+))?", block.attributes)
    assert stated is not None, f"```sh {block.attributes}: only tier=NAME, exit=N and until=WORD are known"
    return stated[1] or "", Step(block.text, int(stated[2] or 0), until=stated[3] or "")


def with_output(step: Step, output: str) -> Step:
    assert step.output is None, f"two outputs of {step.commands}"
    return replace(step, output=output)


@dataclass(frozen=True)
class TutorialPage:
    path: Path
    start: str  # the command of the first terminal
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return self.path.stem


def tutorial_paths() -> list[Path]:
    return sorted(TUTORIALS.glob("[0-9][0-9]-*.md"))


def read_page(path: Path, tier: str = "") -> TutorialPage:
    """Read the blocks of a tier. The first block `sh` starts the cluster, the others are for a second terminal."""
    start = ""
    found: list[tuple[str, Step]] = []
    for block in fenced_blocks(path):
        if block.language == "sh" and not start:
            start = " ".join(block.text.replace("\\\n", " ").split())
        elif block.language == "sh" and not block.shown_by:
            found.append(read_step(block))
        elif block.language == "output":
            assert found, f"{path.name}: output before any command"
            of, step = found[-1]
            found[-1] = (of, with_output(step, block.text))
    return TutorialPage(path, start, tuple(step for of, step in found if of == tier))


def matches(expected: str, printed: str) -> bool:
    lines = [_words(line) for line in expected.splitlines()]
    pattern = "".join("(?:.*\n)*?" if line == ANY else _line_pattern(line) + "\n" for line in lines)
    text = "".join(_words(line) + "\n" for line in printed.splitlines())
    return re.fullmatch(pattern, text) is not None


def _words(line: str) -> str:
    return " ".join(line.split())


def _line_pattern(line: str) -> str:
    return ".*?".join(map(re.escape, line.split(ANY)))


@contextmanager
def _path_with_koord() -> Iterator[str]:
    """Give a PATH where `koord` is that of this interpreter, as an activated environment has it."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "koord"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m koord "$@"\n')
        program.chmod(0o755)
        yield f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"


def run_page(page: TutorialPage, kubeconfig: Path, timeout_s: float) -> list[str]:
    return run_steps(page.steps, kubeconfig, timeout_s)


def run_steps(steps: Sequence[Step], kubeconfig: Path, timeout_s: float, cwd: Path = ROOT) -> list[str]:
    """Run the steps of a page in one shell, until one does not do what the page says; return what was wrong."""
    script = ["exec 2>&1"]
    for number, step in enumerate(steps):
        # Not a subshell, so that variables last, as they do in a terminal.
        script += [f"printf '{_MARK}{number}\\n'", "set -e -o pipefail" if step.exit_code == 0 else "set +e"]
        script += [step.script, f"printf '{_MARK}exit %d\\n' $?", "set +e"]
    with _path_with_koord() as path, tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path, "COLUMNS": "200", "TMPDIR": home}
        env["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
        try:
            done = subprocess.run(
                ["bash", "-c", "\n".join(script)],
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                timeout=timeout_s,
                check=False,
            )
            printed = done.stdout
        except subprocess.TimeoutExpired as late:
            printed = (late.stdout or b"").decode() + f"\n(cut off after {timeout_s:.0f} s)\n"
    ran = dict(_by_step(printed))
    wrong: list[str] = []
    for number, step in enumerate(steps):
        said, code = ran.get(number, ("(it was not reached)\n", None))
        if code != step.exit_code:
            wrong.append(f"{step.commands}ended with {code}, not {step.exit_code}, and printed\n{said}")
            break  # what follows needs it
        if step.output is not None and not matches(step.output, said):
            wrong.append(f"{step.commands}printed\n{said}where the page has\n{step.output}")
    return wrong


def _by_step(printed: str) -> Iterator[tuple[int, tuple[str, int | None]]]:
    for part in re.split(rf"{_MARK}(?=\d)", printed)[1:]:
        number, _, said = part.partition("\n")
        text, ended, code = said.partition(f"{_MARK}exit ")
        yield int(number), (text, int(code) if ended else None)
