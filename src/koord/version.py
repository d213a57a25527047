"""This module says which version of koord runs, of which commit it is and when that was built.

A wheel and an image carry `build.json`, which the build writes. A checkout asks git. Elsewhere both are unknown, and
are said to be. The standard library is enough for it: the build calls it where no other is installed.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from koord import __version__

UNKNOWN = "unknown"
CLEAN, DIRTY = "clean", "dirty"
BUILD_FILE = "build.json"
COMMIT_VARIABLE = "KOORD_COMMIT"  # names the commit of sources that lie in no repository, as in a Docker build
DATE_VARIABLE = "SOURCE_DATE_EPOCH"  # of reproducible-builds.org: seconds since 1970, instead of the commit's time

_GIT_TIMEOUT_S = 10.0
_PACKAGE = Path(__file__).resolve().parent


class BuildInfo(NamedTuple):
    """BuildInfo is what is known of a build; each text may be `unknown`."""

    version: str
    commit: str = UNKNOWN
    tree_state: str = UNKNOWN  # clean, or dirty where files differed from the commit
    date: str = UNKNOWN  # RFC 3339, in UTC

    def __str__(self) -> str:
        changed = "-dirty" if self.tree_state == DIRTY else ""
        return f"{self.version} (commit {self.commit}{changed}, built {self.date})"


@functools.cache
def build_info() -> BuildInfo:
    """Return what is known of the code that runs. In a checkout the first call runs git."""
    return read_build_file(_PACKAGE / BUILD_FILE) or describe_sources(_PACKAGE.parents[1], {})


def describe_sources(root: Path, environ: Mapping[str, str]) -> BuildInfo:
    """Return what is known of sources that are about to be built, or that run as they are."""
    found = _ask_git(root) or BuildInfo(__version__, environ.get(COMMIT_VARIABLE, "") or UNKNOWN)
    given = environ.get(DATE_VARIABLE, "")
    return found._replace(date=format_time(int(given))) if given else found


def read_build_file(path: Path) -> BuildInfo | None:
    """Return what a build wrote, or None where there is no such file. One that is damaged tells nothing."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        read = json.loads(text)
    except ValueError:
        return BuildInfo(__version__)
    known = read if isinstance(read, dict) else {}
    return BuildInfo(__version__, *(str(known.get(name) or UNKNOWN) for name in BuildInfo._fields[1:]))


def print_build_file(info: BuildInfo) -> str:
    """Return the text of build.json. The version is not in it: the package itself has that."""
    return json.dumps({name: value for name, value in info._asdict().items() if name != "version"}, indent=2) + "\n"


def format_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ask_git(root: Path) -> BuildInfo | None:
    """Return commit, state and time of a checkout; None where this is none, or git is missing or refuses to read it."""
    if not (root / ".git").exists():
        return None
    try:
        commit, _, seconds = _git(root, "log", "-1", "--format=%H %ct").strip().partition(" ")
        changed = _git(root, "status", "--porcelain")
        return BuildInfo(__version__, commit, DIRTY if changed else CLEAN, format_time(int(seconds)))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _git(root: Path, *args: str) -> str:
    # Asking for the state may write the index; a program that only looks must not.
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(root), *args]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    return done.stdout
