"""Whether a tree may be released, and how it is moved to a version."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord import __version__
from tools.release.readiness import ReleaseState, changelog_section, read_versions, reason_to_refuse
from tools.release.version_change import version_error, with_section, with_version
from tools.wheel import ROOT

CHANGELOG = """\
# Changelog

Newest first.

## Unreleased

## 1.2.0 - 2026-03-01

- a thing
  that is long

## 1.1.0

- older
"""
READY = ReleaseState(versions={"pyproject.toml": "1.2.0", "Chart.yaml": "1.2.0"}, changed_files=(), changelog=CHANGELOG)


def test_a_tree_with_everything_is_released() -> None:
    assert reason_to_refuse(READY) == ""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"versions": {"pyproject.toml": "1.2.0", "Chart.yaml": "1.1.0"}}, "but Chart.yaml has 1.1.0"),
        ({"versions": {"pyproject.toml": "1.2.0", "package": ""}}, "but package has none"),
        ({"changed_files": ("a.py",)}, "files differ from the last commit: a.py; commit them first"),
        ({"changed_files": tuple("abcdefg")}, "a, b, c, d, e and 2 more"),
        ({"changelog": CHANGELOG.replace("## 1.2.0", "## 1.2.1")}, "no section with entries for 1.2.0"),
        ({"changelog": CHANGELOG.replace("- a thing\n  that is long\n", "")}, "no section with entries for 1.2.0"),
        ({"changelog": CHANGELOG.replace("## Unreleased\n", "## Unreleased\n\n- more\n")}, "entries under Unreleased"),
    ],
)
def test_each_lack_is_one_sentence(changed: dict[str, object], words: str) -> None:
    said = reason_to_refuse(msgspec.structs.replace(READY, **changed))
    assert words in said
    assert "\n" not in said


def test_sections_end_where_the_next_begins() -> None:
    assert changelog_section(CHANGELOG, "1.2.0") == "- a thing\n  that is long"
    assert changelog_section(CHANGELOG, "1.1.0") == "- older"
    assert changelog_section(CHANGELOG, "1.1") == ""
    assert changelog_section("", "1.1") == ""


def test_unreleased_entries_become_the_section() -> None:
    before = CHANGELOG.replace("## Unreleased\n", "## Unreleased\n\n- new\n")
    after = with_section(before, "1.3.0", "2026-04-01")
    assert changelog_section(after, "1.3.0") == "- new"
    assert changelog_section(after, "Unreleased") == ""
    assert changelog_section(after, "1.2.0") == changelog_section(before, "1.2.0")
    assert with_section(after, "1.3.0", "2026-04-02") == after


@given(st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){2}", fullmatch=True))
def test_versions_are_replaced_alone(other: str) -> None:
    text = "koord:0.1.0 koord-0.1.0-image.tar 10.1.0 0.1.01 0.1.0.1 (0.1.0)."
    made = with_version(text, "0.1.0", other)
    assert made == f"koord:{other} koord-{other}-image.tar 10.1.0 0.1.01 0.1.0.1 ({other})."


@pytest.mark.parametrize("wrong", ["", "1", "1.2", "v1.2.3", "1.2.3-rc.1", "1.2.3\n", "01.2.3", "1.2.3.4"])
def test_what_is_no_version_is_refused(wrong: str) -> None:
    assert version_error(wrong)


def test_this_tree_has_one_version() -> None:
    versions = read_versions(ROOT)
    assert len(versions) == 5
    assert set(versions.values()) == {__version__}
