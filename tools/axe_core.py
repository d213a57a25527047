"""Fetch axe-core, Deque's accessibility engine (MPL-2.0), with npm into the cache of assets.

Tests load it into pages of the dashboard; it is no part of the wheel or of an image. The version and the hash of its
package are here, so nothing else is ever run.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "4.14.0"
SHA512 = "9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ=="  # as npm writes it
_FILES = ("axe.min.js", "LICENSE")
_TIMEOUT_S = 60


def script(cache: Path) -> Path:
    """Return where the engine lies once it is fetched."""
    return cache / f"axe-core-{VERSION}" / "axe.min.js"


def fetch(cache: Path) -> Path:
    """Fetch the package unless it is there, check its hash and unpack the engine; return its path."""
    target = script(cache)
    if target.is_file():
        return target
    package = _pack()
    found = base64.b64encode(hashlib.sha512(package).digest()).decode()
    if found != SHA512:
        sys.exit(f"assets: axe-core {VERSION} has the hash sha512-{found}, not sha512-{SHA512}")
    folder = target.parent
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for name in reversed(_FILES):  # the engine last: with it the folder is complete
            member = archive.extractfile(f"package/{name}")
            assert member is not None, name
            partial = folder / f"{name}.partial"
            partial.write_bytes(member.read())
            partial.rename(folder / name)
    return target


def _pack() -> bytes:
    """Return the package as npm, with the registry of its own settings, gives it."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("assets: axe-core is fetched with npm, which is not on this machine")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", f"axe-core@{VERSION}", "--pack-destination", folder, "--silent"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode:
            sys.exit(f"assets: npm cannot fetch axe-core {VERSION}: {done.stderr.strip() or done.stdout.strip()}")
        (archive,) = Path(folder).iterdir()
        return archive.read_bytes()
