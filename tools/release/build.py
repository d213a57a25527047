"""Build the files of a release, compare what they say of themselves, and list their checksums."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import yaml

from koord.version import BUILD_FILE
from tools import wheel as project_wheel
from tools.oci_image.__main__ import write_images
from tools.oci_image.build import REVISION_LABEL
from tools.oci_image.declaration import FLAVOURS
from tools.oci_image.tree import Entry, Tree, to_tar
from tools.oci_image.wheels import metadata

CHECKSUMS = "SHA256SUMS"
CHART = Path("charts") / "koord"


class ReleaseError(Exception):
    """A file of the release is not what it should be."""


def build_files(root: Path, folder: Path, time_s: int) -> None:
    """Write every file of the release but the checksums into a folder."""
    project_wheel.build_wheel(folder)
    write_images(list(FLAVOURS), folder)
    name, content = chart_archive(root, time_s)
    (folder / name).write_bytes(content)


def chart_archive(root: Path, time_s: int) -> tuple[str, bytes]:
    """Return the chart as Helm installs it, and its name. Unlike `helm package`, it gives the same bytes each time."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", str(CHART)], capture_output=True, text=True, check=True
    )
    paths = [Path(name) for name in listed.stdout.split("\0") if name]
    tree: Tree = {f"koord/{path.relative_to(CHART)}": Entry((root / path).read_bytes()) for path in paths}
    version = yaml.safe_load(tree["koord/Chart.yaml"].content)["version"]
    return f"koord-{version}.tgz", gzip.compress(to_tar(tree, time_s), 9, mtime=0)


def check_files(folder: Path, version: str, commit: str) -> None:
    """Raise ReleaseError unless each file says that it is of this version and, where it says so, of this commit."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as archive:
                built = json.loads(archive.read(f"koord/{BUILD_FILE}"))
            found[path.name] = (metadata(path)["Version"], built["commit"])
        elif path.name.endswith("-image.tar"):
            found[path.name] = _image_labels(path)
        elif path.suffix == ".tgz":
            chart = yaml.safe_load(_member(path, "koord/Chart.yaml"))
            found |= {f"{path.name} ({key})": (str(chart[key]), commit) for key in ("version", "appVersion")}
        elif path.name.endswith(".cdx.json"):
            bill = json.loads(path.read_text())
            found[path.name] = (bill["metadata"]["component"]["version"], commit)
    for name, stated in found.items():
        if stated != (version, commit):
            raise ReleaseError(f"{name} is of version {stated[0]} and commit {stated[1]}, not {version} of {commit}")


def checksum_lines(folder: Path) -> str:
    """Return the checksums of all files in the form that `sha256sum --check` reads."""
    paths = [path for path in sorted(folder.iterdir()) if path.name != CHECKSUMS]
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)


def _image_labels(path: Path) -> tuple[str, str]:
    (manifest,) = json.loads(_member(path, "index.json"))["manifests"]
    described = json.loads(_member(path, _blob(manifest["digest"])))
    labels = json.loads(_member(path, _blob(described["config"]["digest"])))["config"]["Labels"]
    name = manifest["annotations"]["io.containerd.image.name"]
    version = labels["org.opencontainers.image.version"]
    return (version if name.endswith(f":{version}") else name), labels[REVISION_LABEL]


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _member(path: Path, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
        held = archive.extractfile(name)
        if held is None:
            raise ReleaseError(f"{path.name}: {name} is no file")
        return held.read()
