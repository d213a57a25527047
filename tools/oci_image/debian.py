"""Debian's packages: the lock of versions and hashes, the download through this machine's apt, and what is inside."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import NewType

import msgspec

from tools.oci_image.declaration import Package, stays
from tools.oci_image.tree import MERGED, Entry, Tree, link, merged_path

LOCK = Path(__file__).with_name("packages.lock")
_HEAD = """\
# Debian packages of the image: name, version, architecture, SHA-256 of the file. `make image-lock` writes it again.
"""
Control = NewType("Control", str)


class Locked(msgspec.Struct, frozen=True, order=True):
    """A package as the lock names it."""

    name: str
    version: str
    architecture: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Return the name that apt-get gives the file: a colon of the version is escaped there."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


class PackageError(Exception):
    """A package cannot be had, or is not what the lock says."""


def parse_lock(text: str) -> list[Locked]:
    rows = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return [Locked(*row) for row in rows]


def print_lock(packages: Iterable[Locked]) -> str:
    rows = (f"{one.name} {one.version} {one.architecture} {one.sha256}\n" for one in sorted(packages))
    return _HEAD + "".join(rows)


def machine_architecture() -> str:
    return _run(["dpkg", "--print-architecture"]).strip()


def read_lock(architecture: str) -> dict[str, Locked]:
    """Return the locked packages for an architecture by name."""
    usable = (architecture, "all")
    return {one.name: one for one in parse_lock(LOCK.read_text()) if one.architecture in usable}


def fetch(wanted: Sequence[Locked], cache: Path) -> None:
    """Download what the cache has not, and compare every hash."""
    cache.mkdir(parents=True, exist_ok=True)
    absent = [one for one in wanted if not (cache / one.file_name).is_file()]
    if absent:
        try:
            _download([f"{one.name}={one.version}" for one in absent], cache)
        except PackageError as error:
            raise PackageError(
                f"{error}\nDebian's mirrors drop a version when a newer one replaces it: run `apt-get update`, then "
                f"`make image-lock` where a version is gone"
            ) from error
    for one in wanted:
        path = cache / one.file_name
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != one.sha256:
            raise PackageError(f"{path} has SHA-256 {found}, the lock says {one.sha256}")


def newest(names: Sequence[str], cache: Path) -> list[Locked]:
    """Download the versions that apt prefers now and return them as locked packages."""
    folder = cache / "newest"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _download(names, folder)
    locked = []
    for path in sorted(folder.glob("*.deb")):
        control = HeaderParser().parsestr(read_control(path))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        one = Locked(control["Package"], control["Version"], control["Architecture"], digest)
        path.rename(cache / one.file_name)
        locked.append(one)
    folder.rmdir()
    return locked


def read_control(path: Path) -> Control:
    """Return the control file of a package."""
    with _member(path, "control.tar") as archive:
        held = archive.extractfile("./control")
        assert held is not None, f"{path}: ./control is no file"
        return Control(held.read().decode())


def unpack(package: Package, path: Path) -> Tree:
    """Return the files of a package that stay in the image, on the merged /usr."""
    tree: Tree = {}
    with _member(path, "data.tar") as archive:
        for info in archive:
            where = merged_path(info.name)
            if where == "." or info.isdir() or not stays(package, where):
                continue
            if info.issym():
                tree[where] = link(info.linkname)
            elif info.isreg() or info.islnk():  # the content of a hard link is that of its first name
                held = archive.extractfile(info)
                assert held is not None, f"{path}: {info.name} has no content"
                tree[where] = Entry(held.read(), mode=info.mode & 0o755)
            else:
                raise PackageError(f"{path}: {info.name} is neither file, link nor folder")
    return tree


def certificate_bundle(tree: Tree) -> Tree:
    """Return what ca-certificates' script makes of the certificates: one file, where OpenSSL looks for it."""
    paths = sorted(path for path in tree if path.startswith("usr/share/ca-certificates/") and path.endswith(".crt"))
    bundle = b"".join(tree[path].content.rstrip(b"\n") + b"\n" for path in paths)
    return {
        "etc/ssl/certs/ca-certificates.crt": Entry(bundle),
        "usr/lib/ssl/cert.pem": link("/etc/ssl/certs/ca-certificates.crt"),
    }


def status_file(name: str, control: Control) -> Tree:
    """Return the record by which scanners of images know a package where no dpkg is."""
    return {f"var/lib/dpkg/status.d/{name}": Entry(control.encode())}


def merged_links() -> Tree:
    return {name: link(f"usr/{name}") for name in MERGED}


def _member(path: Path, prefix: str) -> tarfile.TarFile:
    for name, content in _members(path.read_bytes()):
        if name.startswith(prefix):
            if PurePosixPath(name).suffix not in (".xz", ".gz"):
                raise PackageError(f"{path}: {name} is compressed with something that tarfile does not read")
            return tarfile.open(fileobj=io.BytesIO(content))
    raise PackageError(f"{path} has no {prefix}")


def _members(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the members of an ar archive, which a .deb is."""
    if not content.startswith(b"!<arch>\n"):
        raise PackageError("not a Debian package: the magic of ar is missing")
    at = 8
    while at + 60 <= len(content):
        name = content[at : at + 16].decode().strip().rstrip("/")
        size = int(content[at + 48 : at + 58])
        yield name, content[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def _download(names: Sequence[str], folder: Path) -> None:
    # Root's apt would leave its rights for the download and then could not write into a folder of root's.
    _run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *names], cwd=folder)


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    if shutil.which(command[0]) is None:
        raise PackageError(f"no {command[0]} on this machine: the image is built on Debian 12, or with the Dockerfile")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackageError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout
