"""What is known of a build: from the file that it wrote, from git, and nothing where there is neither."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord import __version__
from koord.version import (
    CLEAN,
    DIRTY,
    UNKNOWN,
    BuildInfo,
    build_info,
    describe_sources,
    print_build_file,
    read_build_file,
)

ROOT = Path(__file__).resolve().parents[1]
AT_S = 1_700_000_000
AT = "2023-11-14T22:13:20Z"


def git(folder: Path, *args: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-C", str(folder), *args]
    environ = {"PATH": "/usr/bin:/bin", "GIT_COMMITTER_DATE": f"{AT_S} +0100", "HOME": str(folder)}
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_checkout_is_asked(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert describe_sources(checkout, {}) == BuildInfo(__version__, commit, CLEAN, AT)
    (checkout / "new").write_text("")
    assert describe_sources(checkout, {}).tree_state == DIRTY
    assert str(describe_sources(checkout, {})) == f"{__version__} (commit {commit}-dirty, built {AT})"


def test_the_epoch_of_a_reproducible_build_is_its_date(checkout: Path) -> None:
    assert describe_sources(checkout, {"SOURCE_DATE_EPOCH": "0"}).date == "1970-01-01T00:00:00Z"


def test_elsewhere_nothing_is_known_unless_it_is_told(tmp_path: Path) -> None:
    assert describe_sources(tmp_path, {}) == BuildInfo(__version__, UNKNOWN, UNKNOWN, UNKNOWN)
    told = describe_sources(tmp_path, {"KOORD_COMMIT": "abc", "SOURCE_DATE_EPOCH": str(AT_S)})
    assert told == BuildInfo(__version__, "abc", UNKNOWN, AT)


def test_a_repository_that_git_cannot_read_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    assert describe_sources(tmp_path, {}).commit == UNKNOWN


@given(st.builds(BuildInfo, st.just(__version__), *(st.text(min_size=1) for _ in range(3))))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, info: BuildInfo) -> None:
    path = tmp_path_factory.getbasetemp() / "build.json"
    path.write_text(print_build_file(info))
    assert read_build_file(path) == info


@pytest.mark.parametrize("text", ["", "[]", "{", '{"commit": null}', '{"other": 1}'])
def test_a_damaged_file_tells_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "build.json"
    path.write_text(text)
    assert read_build_file(path) == BuildInfo(__version__)


def test_no_file_is_no_answer(tmp_path: Path) -> None:
    assert read_build_file(tmp_path / "build.json") is None


def test_the_wheel_carries_its_commit(tmp_path: Path) -> None:
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]
    subprocess.run([*built, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = json.loads(archive.read("koord/build.json"))
    here = describe_sources(ROOT, {})
    assert found == {"commit": here.commit, "tree_state": here.tree_state, "date": here.date}
    again = tmp_path / "again"
    subprocess.run([*built, str(again)], cwd=ROOT, check=True, capture_output=True)
    assert (again / wheel.name).read_bytes() == wheel.read_bytes()


PROGRAMS = (
    "koord_scheduler",
    "koord_manager",
    "koord_descheduler",
    "koordlet",
    "koord_runtime_proxy",
    "koord_device_daemon",
    "koord_yarn_copilot",
    "koord_yarn_operator",
)


@pytest.mark.parametrize("module", [*(f"koord.cli.daemons.{name}" for name in PROGRAMS), "koord"])
def test_every_program_tells_its_build(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    name = module.rpartition(".")[2].replace("_", "-")
    assert re.fullmatch(rf"{name} v?{re.escape(str(build_info()))}\n", done.stdout)


def test_the_raw_form_has_every_field() -> None:
    command = [sys.executable, "-m", "koord.cli.daemons.koordlet", "--version=raw"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    info = build_info()
    for part in (
        'Program:"koordlet"',
        f'Version:"v{__version__}"',
        f'GitCommit:"{info.commit}"',
        f'GitTreeState:"{info.tree_state}"',
        f'BuildDate:"{info.date}"',
        'Python:"3.',
    ):
        assert part in done.stdout
