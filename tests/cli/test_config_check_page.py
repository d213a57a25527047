"""The page about slo-controller-config shows a file and what `koord config check` prints about it: both are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from koord.api.config.slo import slo_documents
from koord.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "slo-controller-config.md"


@pytest.fixture
def blocks() -> list[str]:
    return re.findall(r"^```(?:yaml|output)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def printed(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    (folder / "slo.yaml").write_text(text)
    return CliRunner().invoke(cli, ["config", "check", "slo.yaml"]).output


def test_the_page_shows_what_is_printed(blocks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example, good, bad = blocks
    assert printed(example, tmp_path, monkeypatch) == good
    start, _, end = example.rpartition("    {")
    wrong = start + "    {" + end.replace("enable", "enabled").replace("60", "160")
    assert printed(wrong, tmp_path, monkeypatch) == bad


def test_the_page_names_every_key() -> None:
    assert all(f"`{key}`" in PAGE.read_text() for key in slo_documents.KEYS)
