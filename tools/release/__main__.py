"""Build the files of a release into dist/: `python -m tools.release`. docs/upgrade.md says the rest.

With `--set-version VERSION` move the project to a version instead.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from koord.version import DATE_VARIABLE
from tools.oci_image.build import ImageError
from tools.oci_image.bytecode import CompileError
from tools.oci_image.debian import PackageError
from tools.oci_image.tree import ConflictError
from tools.oci_image.wheels import WheelError
from tools.release.build import CHECKSUMS, ReleaseError, build_files, check_files, checksum_lines
from tools.release.readiness import commit_of, commit_time_s, read_state, reason_to_refuse
from tools.release.version_change import change_version, version_error
from tools.wheel import ROOT
from tools.wheel import WheelError as ProjectWheelError

_BUILD_ERRORS = (ReleaseError, ImageError, CompileError, ConflictError, WheelError, ProjectWheelError, PackageError)


def release(root: Path, to: Path) -> str:
    """Build and check everything, then put it into the folder, or return why not and leave the folder as it was."""
    state = read_state(root)
    if refusal := reason_to_refuse(state):
        return refusal
    commit, time_s = commit_of(root), commit_time_s(root)
    os.environ.setdefault(DATE_VARIABLE, str(time_s))  # one time for wheel, images and chart
    folder = Path(tempfile.mkdtemp(prefix="koord-release-"))
    try:
        build_files(root, folder, int(os.environ[DATE_VARIABLE]))
        check_files(folder, state.version, commit)
        lines = checksum_lines(folder)
        (folder / CHECKSUMS).write_text(lines)
        to.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            shutil.move(path, to / path.name)
    except _BUILD_ERRORS as error:
        return str(error)
    finally:
        shutil.rmtree(folder)
    print(f"koord {state.version} of {commit}, in {to}:\n{lines}", end="")
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder of the files (dist)")
    parser.add_argument("--set-version", metavar="VERSION", help="move the project to this version instead")
    given = parser.parse_args()
    try:
        if given.set_version is not None:
            failure = version_error(given.set_version)
            if not failure:
                change_version(ROOT, given.set_version, time.strftime("%Y-%m-%d", time.gmtime()))
        else:
            failure = release(ROOT, given.to)
    except subprocess.CalledProcessError as error:
        failure = f"{' '.join(map(str, error.cmd))} ended with {error.returncode}: {error.stderr or ''}".strip()
    if failure:
        print(f"release: {failure}", file=sys.stderr)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
