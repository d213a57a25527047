"""Every block of README and docs is run by a test, or says in the page which target of make shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.document_blocks import DOCUMENTS, ROOT, Block, commands_in, fenced_blocks, indented_blocks
from tests.real.document_page import document_paths, read_document, start_lines
from tests.real.tutorial_page import TUTORIALS, read_page, tutorial_paths

TARGETS = frozenset(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
# Which languages a page may have besides sh and output, and what reads them.
DECODED = {"yaml"}  # test_docs_manifests_decode.py
OF_ONE_PAGE = {
    "python": "docs/plugins.md",  # tests/plugin_page.py
    "toml": "docs/plugins.md",
    "promql": "docs/reference/alerts.md",  # written from the alerts that `make test-charts` gives to promtool
}
OF_THE_YARN_TIER = "28-hadoop-yarn"  # tests/real/yarn/test_tutorial.py
SHOWN = {"text", "ini", "json"}  # pictures, formulas, and files of other programs: nothing to run
PROGRAMS = re.compile(r"koord(let)?|koord-[\w-]+|kubectl|kubelet|helm|make|pip|ctr|docker|yarn|git|sha256sum|ssh|curl")


def holds_a_command(text: str) -> bool:
    """Whether a line is a command: its first word is a program, and what follows is no part of a picture."""
    return any(
        PROGRAMS.fullmatch(words[0].removeprefix(".venv/bin/")) and len(words) > 1 and words[1].isascii()
        for words in commands_in(text)
    )


def problem(page: str, block: Block) -> str:
    """Return why a block is neither run nor shown by something else."""
    if block.shown_by and block.shown_by not in TARGETS:
        return f"make has no target {block.shown_by}"
    if block.language in SHOWN and holds_a_command(block.text):
        return f"a command in a block {block.language}: commands are in blocks sh"
    if block.language in OF_ONE_PAGE:
        return "" if page == OF_ONE_PAGE[block.language] else f"nothing runs {block.language} of this page"
    if block.language not in {"sh", "output", *DECODED, *SHOWN}:
        return f"nothing is known about language {block.language!r}"
    return ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_block_is_left_out(document: Path) -> None:
    page = str(document.relative_to(ROOT))
    wrong = [f"{block.text}{why}" for block in fenced_blocks(document) if (why := problem(page, block))]
    wrong += [f"{text}commands are in blocks sh" for text in indented_blocks(document) if holds_a_command(text)]
    assert wrong == []


def test_every_command_is_a_step_of_its_page_or_marked() -> None:
    """What tests/real pastes is what is there: no page is outside its lists, and no block of a page is dropped."""
    assert {*document_paths(), *tutorial_paths(), TUTORIALS / "README.md"} == {*DOCUMENTS}
    for path in document_paths():
        here = [block for block in fenced_blocks(path) if block.language == "sh" and not block.shown_by]
        steps = [step.commands for section in read_document(path).sections for step in section.steps]
        assert steps == [block.text for block in here if not start_lines(block)]
    for path in tutorial_paths():
        _, *here = (block for block in fenced_blocks(path) if block.language == "sh" and not block.shown_by)
        tiers = ("", "yarn") if path.stem == OF_THE_YARN_TIER else ("",)
        steps = [step.commands for tier in tiers for step in read_page(path, tier).steps]
        assert sorted(steps) == sorted(block.text for block in here), f"{path.name} has a tier that nothing runs"


@pytest.mark.parametrize(
    ("block", "why"),
    [
        pytest.param(Block("", "", "a = b\n"), "nothing is known", id="no-language"),
        pytest.param(Block("text", "", "koord top nodes\n"), "a command", id="command-as-text"),
        pytest.param(Block("text", "", "$ kubectl get pods\n"), "a command", id="session-as-text"),
        pytest.param(Block("sh", "", "true\n", shown_by="test-nothing"), "no target", id="unknown-target"),
        pytest.param(Block("python", "", "print()\n"), "nothing runs", id="language-of-another-page"),
    ],
)
def test_a_block_that_nobody_runs_is_found(block: Block, why: str) -> None:
    assert why in problem("docs/a-page.md", block)


def test_pictures_are_no_commands() -> None:
    assert not problem("docs/a-page.md", Block("text", "", "koord-manager ──writes──> Node\nroom = capacity\n"))


def test_a_mark_names_what_shows_the_block(tmp_path: Path) -> None:
    mark = "<!-- Not pasted by tests/real/test_first_pages.py: it needs a card. `make test-gpu` does it. -->\n"
    page = tmp_path / "page.md"
    page.write_text(f"{mark}```sh\na\n```\n\n```sh\nb\n```\n\n{mark}words\n\n```sh\nc\n```\n")
    assert [block.shown_by for block in fenced_blocks(page)] == ["test-gpu", "", ""]
