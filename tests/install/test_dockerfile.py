"""The Dockerfile gives the files, owners, modes and times of `make image`, and the same configuration.

Buildah builds it in place of Docker, from a base that debootstrap makes of Debian's packages: no registry of images is
asked. The base stands for Debian's own, of which the Dockerfile needs apt and a shell.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.version import BUILD_FILE, COMMIT_VARIABLE, DATE_VARIABLE
from tests.real import test_image
from tools.oci_image.build import ROOT, Product, build, cache_folder, commit_time_s
from tools.oci_image.declaration import FLAVOURS
from tools.oci_image.dockerfile import DOCKERFILE
from tools.oci_image.wheels import SITE

pytestmark = [pytest.mark.real, pytest.mark.machine]

FLAVOUR = "agent"
SUITE = "bookworm"
SOURCES = Path("/etc/apt/sources.list.d")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
INSIDE = "/authorities.crt"  # this machine's certificate authorities, at a path that no package of the base has
BUILD_RECORD = f"{SITE}/koord/{BUILD_FILE}"


class File(msgspec.Struct, frozen=True):
    """What an image says of one path."""

    kind: bytes
    mode: int
    owner: tuple[int, int]
    time_s: int
    target: str
    sha256: str


class Storage:
    """The images of one test, in folders of its own: nothing is left among the images of the machine."""

    def __init__(self, folder: Path) -> None:
        self._flags = ("--root", str(folder / "root"), "--runroot", str(folder / "run"), "--storage-driver", "vfs")

    def buildah(self, *args: str) -> str:
        done = subprocess.run(
            ["buildah", *self._flags, *args], cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
        )
        assert done.returncode == 0, f"buildah {' '.join(args)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout.strip()


def missing() -> str:
    """Return why the Dockerfile cannot be built here; empty when it can."""
    if os.geteuid() != 0:
        return "debootstrap and buildah's chroot need root"
    for tool in ("buildah", "debootstrap"):
        if shutil.which(tool) is None:
            return f"no {tool} on this machine: install Debian's package {tool}"
    return test_image.missing()


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """Images of buildah, among them a base with the name that the Dockerfile builds from."""
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("dockerfile")
    system = folder / "system"
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", SUITE, str(system)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"debootstrap made no base: {done.stdout.strip().splitlines()[-1]}")
    if SOURCES.is_dir():  # security updates, which the lock has, are not among debootstrap's own sources
        shutil.copytree(SOURCES, system / SOURCES.relative_to("/"), dirs_exist_ok=True)
    (base,) = [line.split()[1] for line in DOCKERFILE.read_text().splitlines() if line.endswith(" AS source")]
    images = Storage(folder)
    container = images.buildah("from", "scratch")
    images.buildah("add", container, str(system), "/")
    # pip in the build trusts what pip on this machine trusts: a company's proxy has an authority of its own.
    images.buildah("config", "--env", f"PIP_CERT={INSIDE}", "--env", f"SSL_CERT_FILE={INSIDE}", container)
    images.buildah("commit", "--rm", container, f"docker.io/library/{base}")
    shutil.rmtree(system)
    yield images
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def product() -> Product:
    return build(FLAVOURS[FLAVOUR], cache_folder())


@pytest.fixture(scope="module")
def built(storage: Storage, product: Product, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the archive of the image that the Dockerfile gives."""
    commit = image_parts(io.BytesIO(product.image.content))[0]["Labels"]["org.opencontainers.image.revision"]
    arguments = {DATE_VARIABLE: str(commit_time_s()), COMMIT_VARIABLE: commit}
    storage.buildah(
        *("bud", "--isolation", "chroot", "--network", "host", "--pull-never", "--target", FLAVOUR),
        *("--volume", f"{AUTHORITIES}:{INSIDE}:ro", "--ignorefile", f"{DOCKERFILE}.dockerignore"),
        *(word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")),
        *("--file", str(DOCKERFILE), "--tag", "koord-agent:of-dockerfile", "."),
    )
    archive = tmp_path_factory.mktemp("archive") / "image.tar"
    storage.buildah("push", "koord-agent:of-dockerfile", f"oci-archive:{archive}")
    return archive


def image_parts(archive: io.BytesIO) -> tuple[dict[str, Any], dict[str, File], dict[str, bytes]]:
    """Return the configuration of an OCI archive, its files by path, and the contents of those with a JSON name."""
    with tarfile.open(fileobj=archive) as outer:

        def blob(digest: str) -> bytes:
            held = outer.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert held is not None, digest
            return held.read()

        index = outer.extractfile("index.json")
        assert index is not None
        manifest = json.loads(blob(json.load(index)["manifests"][0]["digest"]))
        config = json.loads(blob(manifest["config"]["digest"]))["config"]
        files: dict[str, File] = {}
        records: dict[str, bytes] = {}
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(blob(layer["digest"]))) as inner:
                for info in inner:
                    path = info.name.strip("/").removeprefix("./")
                    held = inner.extractfile(info) if info.isreg() else None
                    content = held.read() if held else b""
                    if path.endswith(".json"):
                        records[path] = content
                    files[path] = File(
                        kind=info.type,
                        mode=info.mode & 0o7777,
                        owner=(info.uid, info.gid),
                        time_s=int(info.mtime),
                        target=info.linkname,
                        sha256=hashlib.sha256(content).hexdigest(),
                    )
    files.pop("", None)
    files.pop(".", None)
    return config, files, records


def test_the_dockerfile_gives_the_same_files(product: Product, built: Path) -> None:
    _, ours, our_records = image_parts(io.BytesIO(product.image.content))
    _, theirs, their_records = image_parts(io.BytesIO(built.read_bytes()))
    assert sorted(ours.keys() - theirs.keys()) == []
    assert sorted(theirs.keys() - ours.keys()) == []
    different = {path: (one, theirs[path]) for path, one in ours.items() if one != theirs[path]}
    # Git's folder is not in the context of a build: whether the tree is that of the commit is not known there.
    record, other = (json.loads(records[BUILD_RECORD]) for records in (our_records, their_records))
    assert {**record, "tree_state": ""} == {**other, "tree_state": ""}
    different.pop(BUILD_RECORD, None)
    assert different == {}


def test_the_dockerfile_gives_the_same_configuration(product: Product, built: Path) -> None:
    ours, _, _ = image_parts(io.BytesIO(product.image.content))
    theirs, _, _ = image_parts(io.BytesIO(built.read_bytes()))
    theirs["Labels"] = {key: value for key, value in theirs["Labels"].items() if not key.startswith("io.buildah")}
    assert theirs == ours
