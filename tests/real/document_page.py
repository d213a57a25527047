"""This module reads a page of README or docs as sections: the command that starts a cluster, the commands for a second
terminal, and the files that the page shows for them.

A block `sh` that begins with `make up` or `koord up` starts a section; what comes before the first one, or on a page
without one, is for the cluster of `koord up`. Each line of such a block is a cluster to start, and the commands that
follow are for the last of them. A block `yaml` whose first line is a comment with the name of a file is that file.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from tests.document_blocks import DOCUMENTS, ROOT, Block, fenced_blocks
from tests.real.tutorial_page import TUTORIALS, Step, read_step, with_output

DEFAULT_START = "koord up"
_ENDS_BY_ITSELF = {"--demo", "--list-profiles"}
_FILE = re.compile(r"# (?P<name>[\w-]+\.yaml)\b")


@dataclass(frozen=True)
class Section:
    starts: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()  # all files of the page: name, text
    steps: tuple[Step, ...] = ()

    @property
    def cluster(self) -> str:
        return self.starts[-1]


@dataclass(frozen=True)
class DocumentPage:
    path: Path
    sections: tuple[Section, ...]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))


def document_paths() -> list[Path]:
    """Return the documents that are not tutorials, which have tests of their own."""
    return [path for path in DOCUMENTS if path.parent != TUTORIALS]


def start_lines(block: Block) -> tuple[str, ...]:
    """Return the commands of a block that starts clusters, of any other none."""
    lines = [shlex.split(line, comments=True) for line in block.text.replace("\\\n", " ").splitlines()]
    if not lines or lines[0][:2] not in (["make", "up"], ["koord", "up"]) or _ENDS_BY_ITSELF & {*lines[0]}:
        return ()
    # What else README says beside `make up` is what runs this test.
    return tuple(shlex.join(["koord", *words[1:]]) for words in lines if words[1:2] == ["up"])


def read_document(path: Path) -> DocumentPage:
    sections = [Section((DEFAULT_START,))]
    files: dict[str, str] = {}
    for block in fenced_blocks(path):
        last = sections[-1]
        if block.language == "yaml" and (named := _FILE.match(block.text)):
            files[named["name"]] = block.text
        elif block.language == "output" and last.steps:
            sections[-1] = replace(last, steps=(*last.steps[:-1], with_output(last.steps[-1], block.text)))
        elif block.language == "sh" and not block.shown_by:
            starts = start_lines(block)
            tier, step = ("", None) if starts else read_step(block)
            assert not tier, f"{path.name}: tier= is for tutorials"
            sections[-1:] = [last, Section(starts)] if step is None else [replace(last, steps=(*last.steps, step))]
    used = [one for one in sections if one.steps or one is not sections[0]]
    return DocumentPage(path, tuple(replace(one, files=tuple(files.items())) for one in used))
