"""Whether a tree may be released: one version everywhere, nothing uncommitted, and a section of the changelog."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import msgspec
import yaml

UNRELEASED = "Unreleased"
PYPROJECT = "pyproject.toml"
_NAMED = 5  # files that an error names before it counts the others


class ReleaseState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a tree: the version by the place that states it, files that no commit has, the changelog."""

    versions: dict[str, str]
    changed_files: tuple[str, ...]
    changelog: str

    @property
    def version(self) -> str:
        return self.versions[PYPROJECT]


def reason_to_refuse(state: ReleaseState) -> str:
    """Return in one sentence why the tree cannot be released, or an empty text."""
    differing = {place: version for place, version in state.versions.items() if version != state.version}
    if differing:
        listed = ", ".join(f"{place} has {version or 'none'}" for place, version in differing.items())
        return (
            f"{PYPROJECT} has version {state.version}, but {listed}: run `make release-version VERSION={state.version}`"
        )
    if state.changed_files:
        more = len(state.changed_files) - _NAMED
        listed = ", ".join(state.changed_files[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"files differ from the last commit: {listed}; commit them first"
    section = changelog_section(state.changelog, state.version)
    if not section:
        return (
            f"CHANGELOG.md has no section with entries for {state.version}: "
            f"run `make release-version VERSION={state.version}`, or write it"
        )
    if changelog_section(state.changelog, UNRELEASED):
        return (
            f"CHANGELOG.md has entries under {UNRELEASED}, which this release would hold: move them to {state.version}"
        )
    return ""


def changelog_section(text: str, title: str) -> str:
    """Return the entries under `## title` (a date may follow the title), without blank lines around them."""
    parts = re.split(r"^## +(.*)$", text, flags=re.MULTILINE)
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        if heading.split()[:1] == [title]:
            return body.strip()
    return ""


def read_state(root: Path) -> ReleaseState:
    return ReleaseState(
        versions=read_versions(root),
        changed_files=tuple(line[3:] for line in _git(root, "status", "--porcelain").splitlines()),
        changelog=(root / "CHANGELOG.md").read_text(),
    )


def read_versions(root: Path) -> dict[str, str]:
    """Return what each file states. The image's tag and that of the chart's image come from two of them."""
    chart = yaml.safe_load((root / "charts" / "koord" / "Chart.yaml").read_text())
    package = re.search(r'^__version__ = "(.*)"$', (root / "src" / "koord" / "__init__.py").read_text(), re.MULTILINE)
    labels = re.findall(
        r'image\.version="(.*)"', (root / "tools" / "oci_image" / "Dockerfile").read_text(), re.MULTILINE
    )
    return {
        PYPROJECT: tomllib.loads((root / PYPROJECT).read_text())["project"]["version"],
        "src/koord/__init__.py": package[1] if package else "",
        "charts/koord/Chart.yaml (version)": str(chart["version"]),
        "charts/koord/Chart.yaml (appVersion)": str(chart["appVersion"]),
        "tools/oci_image/Dockerfile": "/".join(sorted(set(labels))),
    }


def commit_time_s(root: Path) -> int:
    return int(_git(root, "log", "-1", "--format=%ct"))


def commit_of(root: Path) -> str:
    return _git(root, "rev-parse", "HEAD").strip()


def _git(root: Path, *args: str) -> str:
    return subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=True).stdout
