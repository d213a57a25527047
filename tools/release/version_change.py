"""Move the project to a version: everything that states one, and the section of the changelog."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tools.release.readiness import PYPROJECT, UNRELEASED, changelog_section, read_versions

# Pages whose commands name files and images of a release, and the chart's recorded renderings.
PAGES = ("docs/install.md", "docs/image.md", "tests/charts/golden/*", "tests/charts/values/edited.yaml")
_VERSION = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}")


def version_error(version: str) -> str:
    """Return what is wrong with a version. Helm and Python write pre-releases in different ways, so there are none."""
    if not _VERSION.fullmatch(version):
        return f'"{version}" is no version of three numbers, such as 0.2.0'
    return ""


def with_section(changelog: str, version: str, day: str) -> str:
    """Return the changelog with the unreleased entries under the version; one that has a section already keeps it."""
    if changelog_section(changelog, version) or not changelog_section(changelog, UNRELEASED):
        return changelog
    return re.sub(
        rf"^## +{UNRELEASED}$", f"## {UNRELEASED}\n\n## {version} - {day}", changelog, count=1, flags=re.MULTILINE
    )


def with_version(text: str, before: str, after: str) -> str:
    """Return a page with one version in the place of another where it stands alone or in a file's or image's name."""
    return re.sub(rf"(?<![0-9.]){re.escape(before)}(?![0-9]|\.[0-9])", after, text)


def change_version(root: Path, version: str, day: str) -> None:
    """Write the version to all places. Other processes write what is generated, since they load the package again."""
    before = read_versions(root)[PYPROJECT]
    pyproject, package, changelog = root / PYPROJECT, root / "src" / "koord" / "__init__.py", root / "CHANGELOG.md"
    pyproject.write_text(
        re.sub(r'^version = ".*"$', f'version = "{version}"', pyproject.read_text(), count=1, flags=re.MULTILINE)
    )
    package.write_text(
        re.sub(r'^__version__ = ".*"$', f'__version__ = "{version}"', package.read_text(), flags=re.MULTILINE)
    )
    changelog.write_text(with_section(changelog.read_text(), version, day))
    for page in (path for pattern in PAGES for path in sorted(root.glob(pattern))):
        page.write_text(with_version(page.read_text(), before, version))
    for command in (["tools.chart"], ["tools.oci_image", "--dockerfile"]):
        subprocess.run([sys.executable, "-m", *command], cwd=root, check=True)
