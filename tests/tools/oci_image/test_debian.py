"""Debian's packages: the lock, and which files of a .deb stay."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from tools.oci_image.debian import (
    LOCK,
    Locked,
    PackageError,
    certificate_bundle,
    fetch,
    parse_lock,
    print_lock,
    read_control,
    read_lock,
    unpack,
)
from tools.oci_image.declaration import Package, every_package
from tools.oci_image.tree import Entry, link


def tar_of(files: dict[str, bytes], links: dict[str, str]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:xz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o4755
            archive.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return held.getvalue()


def make_package(path: Path, files: dict[str, bytes], links: dict[str, str]) -> None:
    control = b"Package: one\nVersion: 1:2-3\nArchitecture: amd64\n"
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": tar_of({"./control": control}, {}),
        "data.tar.xz": tar_of(files, links),
    }
    content = b"!<arch>\n"
    for name, member in members.items():
        content += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(member):<10}`\n".encode() + member
        content += b"\n" * (len(member) % 2)
    path.write_bytes(content)


def test_files_that_stay_lie_below_usr_without_their_documents(tmp_path: Path) -> None:
    path = tmp_path / "one.deb"
    files = {
        "./bin/run": b"run",
        "./usr/share/man/man1/run.1": b"manual",
        "./usr/share/doc/one/copyright": b"licence",
        "./usr/share/doc/one/changelog": b"changes",
        "./usr/sbin/other": b"other",
    }
    make_package(path, files, {"./lib/libone.so.1": "libone.so.1.2"})
    whole = unpack(Package("one"), path)
    assert set(whole) == {"usr/bin/run", "usr/share/doc/one/copyright", "usr/sbin/other", "usr/lib/libone.so.1"}
    assert whole["usr/bin/run"] == Entry(b"run", mode=0o755)  # without the set-user-ID bit
    assert whole["usr/lib/libone.so.1"] == link("libone.so.1.2")
    assert set(unpack(Package("one", keep=("usr/bin/*",)), path)) == {"usr/bin/run", "usr/share/doc/one/copyright"}
    assert "Version: 1:2-3" in read_control(path)


def test_another_file_than_the_lock_says_is_refused(tmp_path: Path) -> None:
    one = Locked("one", "1:2-3", "amd64", "0" * 64)
    assert one.file_name == "one_1%3a2-3_amd64.deb"
    (tmp_path / one.file_name).write_bytes(b"something else")
    with pytest.raises(PackageError, match=f"the lock says {'0' * 64}"):
        fetch([one], tmp_path)
    good = Locked("one", "1:2-3", "amd64", hashlib.sha256(b"something else").hexdigest())
    fetch([good], tmp_path)


def test_what_is_no_package_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.deb"
    path.write_bytes(b"<html>")
    with pytest.raises(PackageError, match="not a Debian package"):
        unpack(Package("one"), path)


def test_the_lock_is_printed_as_it_is_read_and_names_every_package() -> None:
    text = LOCK.read_text()
    assert print_lock(parse_lock(text)) == text
    assert set(read_lock("amd64")) == set(every_package())


def test_certificates_become_one_file() -> None:
    tree = {f"usr/share/ca-certificates/m/{name}.crt": Entry(name.encode() + b"\n\n") for name in ("b", "a")}
    bundle = certificate_bundle(tree)
    assert bundle["etc/ssl/certs/ca-certificates.crt"].content == b"a\nb\n"
    assert bundle["usr/lib/ssl/cert.pem"].target == "/etc/ssl/certs/ca-certificates.crt"
