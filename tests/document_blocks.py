"""This module reads the blocks of documents: fenced ones with their language, and indented ones, which have none."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
FENCE = re.compile(r"^```(?P<language>\w*)(?P<attributes>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
# What stands before a block that no test of pages runs, and names what does.
_MARK = re.compile(
    r"<!-- Not pasted by tests/real/test_(?:first_pages|tutorials)\.py: [^>]+\. "
    r"`make (?P<target>[\w-]+)` does it\. -->\n+\Z"
)
_INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
_HEREDOC = re.compile(r"<<-?'?(?P<end>\w+)'?[^\n]*\n(?P<text>.*?)^ *(?P=end)$\n?", re.DOTALL | re.MULTILINE)
_SHELL = ("sh", "text")
_SESSION = ("console", "")  # commands after a prompt, and what they print
_PROMPT = re.compile(r"^\$ (.*)$", re.MULTILINE)
_SUBSTITUTION = re.compile(r"\$\(((?:[^()]|\([^()]*\))*)\)")
_SEPARATORS = frozenset(("|", "||", "&&", ";", "&"))


@dataclass(frozen=True)
class Block:
    language: str
    attributes: str
    text: str
    shown_by: str = ""  # the target of make that runs it, where a comment before it says that pages' tests do not


def fenced_blocks(path: Path) -> list[Block]:
    text = path.read_text()
    return [
        Block(
            found["language"],
            found["attributes"].strip(),
            found["text"],
            mark["target"] if (mark := _MARK.search(text, 0, found.start())) else "",
        )
        for found in FENCE.finditer(text)
    ]


def indented_blocks(path: Path) -> list[str]:
    rest = FENCE.sub("", path.read_text())
    return [re.sub(r"^ {4}", "", found[0], flags=re.MULTILINE) for found in _INDENTED.finditer(rest)]


def _shell_texts(path: Path) -> list[str]:
    blocks = fenced_blocks(path)
    shell = [block.text for block in blocks if block.language in _SHELL]
    session = ["\n".join(_PROMPT.findall(block.text)) for block in blocks if block.language in _SESSION]
    return [*shell, *session, *indented_blocks(path)]


def heredocs(path: Path) -> list[str]:
    """Return the texts that commands of a document are given on standard input."""
    return [found["text"] for text in _shell_texts(path) for found in _HEREDOC.finditer(text)]


def commands(path: Path, *programs: str) -> list[list[str]]:
    """Return the command lines of a document whose program is one of `programs`, in words."""
    return [words for text in _shell_texts(path) for words in commands_in(text) if Path(words[0]).name in programs]


def commands_in(text: str) -> list[list[str]]:
    """Return the command lines of a shell text in words, without the texts that they are given."""
    lines = _HEREDOC.sub("\n", text).replace("\\\n", " ").splitlines()
    return [words for line in lines for words in _simple_commands(line.removeprefix("$ "))]


def _simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the commands of a line; one that is no shell, as a picture or a sentence, has none."""
    for found in _SUBSTITUTION.finditer(line):
        yield from _simple_commands(found[1])
    lexer = shlex.shlex(_SUBSTITUTION.sub("substituted", line), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return
    command: list[str] = []
    skip = False
    for word in [*words, ";"]:
        if word in _SEPARATORS:
            if command:
                yield command
            command = []
        elif set(word) <= set("<>&|") and word:
            skip = True  # a redirection takes the next word
        elif skip:
            skip = False
        else:
            command.append(word)
